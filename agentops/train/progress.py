"""What a run tells while it trains: the loss curve, a callback for a progress bar, and a stop at NaN.

Invariant: every optimiser step adds exactly one entry to the curve, or the run ends with a TrainError that says at
which step and why. Drawing a bar is the command line's business.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from agentops.errors import TrainError

Progress = Callable[[int, int, Mapping[str, float]], None]  # step (1-based), total steps, values such as loss


def train(trainer: Any) -> None:
    """Run a trainer without its own printing: what happened is in the curve."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.train()


def callback(progress: Progress | None, curve: list[dict[str, float]]) -> Any:
    """A transformers TrainerCallback that fills `curve` and calls `progress` after each step.

    Args:
        progress: called in the training thread; None for silence.
        curve: gets {"step", "loss", …} for each optimiser step, in order.
    """
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if not logs or "loss" not in logs:
                return  # the summary at the end
            values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            if not math.isfinite(values["loss"]) or not math.isfinite(values.get("grad_norm", 0.0)):
                raise TrainError(
                    f"training stopped at step {state.global_step} of {state.max_steps}: loss {values['loss']!r}, "
                    f"gradient norm {values.get('grad_norm')!r}; nothing was saved. Lower learning_rate"
                    f" ({args.learning_rate!r}), or set bf16 = false"
                )
            curve.append({"step": state.global_step, **values})
            if progress is not None:
                progress(state.global_step, state.max_steps, values)

    return Watch()
