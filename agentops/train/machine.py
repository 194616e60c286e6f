"""The machine a run uses: device, number format, threads; and silence from the libraries while it runs.

Invariant: leaving a block restores every global it touched (torch threads, log levels, progress bars, environment).
Nothing is reported to any service: no experiment tracker, no hub, no telemetry.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentops.errors import TrainError
from agentops.train.recipe import Machine

LOGGERS = ("transformers", "trl", "datasets", "accelerate", "peft")  # they quote rows: those stay out of logs
IGNORED = (
    # Each is raised by a library about its own internals; none is about the caller's data.
    (r".*is deprecated and will be removed in v\d", FutureWarning),  # TRL and PEFT calling transformers' old names
    (r"Could not find a config file in .*", UserWarning),  # PEFT, about bases that are folders with another name
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What `auto` became."""

    device: str
    bf16: bool
    threads: int


def resolve(machine: Machine) -> Resolved:
    """The device and number format to use.

    Raises:
        TrainError: CUDA or bf16 was asked for and is not there.
    """
    import torch

    cuda = torch.cuda.is_available()
    if machine.device == "cuda" and not cuda:
        raise TrainError("[machine] device = 'cuda' but torch sees no GPU: use 'auto' or 'cpu', or a CUDA build")
    device = "cuda" if cuda and machine.device != "cpu" else "cpu"
    has_bf16 = torch.cuda.is_bf16_supported() if device == "cuda" else torch.cpu._is_amx_tile_supported()
    if machine.bf16 is True and device == "cuda" and not has_bf16:
        raise TrainError("[machine] bf16 = true but this GPU has no bfloat16: use 'auto' or false")
    bf16 = has_bf16 if machine.bf16 == "auto" else machine.bf16
    return Resolved(device, bf16, machine.threads or torch.get_num_threads())


def arguments(recipe: Any, machine: Resolved, folder: str | Path) -> dict[str, Any]:
    """Keyword arguments every TRL configuration here shares.

    `logging_nan_inf_filter` is off: the default replaces a NaN loss by the running mean, which hides it.
    """
    return {
        "output_dir": str(folder),
        "max_steps": recipe.steps,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.gradient_accumulation,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "lr_scheduler_type": recipe.schedule,
        "warmup_steps": recipe.warmup_steps,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "bf16": machine.bf16,
        "use_cpu": machine.device == "cpu",
        "activation_checkpointing": recipe.gradient_checkpointing,
        "dataloader_pin_memory": machine.device == "cuda",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "push_to_hub": False,
    }


def lora(recipe: Any, model: Any, seed_adapter: Path | None = None) -> Any:
    """The PEFT configuration of a run, or None when all weights train or an existing adapter goes on.

    With `lora_layers` only the last layers get one: the backward pass stops below them, which on a CPU saves about a
    third of a step. `lm_head` never gets one, TRL would refuse it.
    """
    if recipe.lora_r == 0 or seed_adapter is not None:
        return None
    import torch
    from peft import LoraConfig

    head = model.get_output_embeddings()
    names = {
        name.rpartition(".")[2]
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear) and part is not head
    }
    depth = model.config.num_hidden_layers
    return LoraConfig(
        r=recipe.lora_r,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=0.0,
        target_modules=sorted(names),
        layers_to_transform=list(range(max(0, depth - recipe.lora_layers), depth)) if recipe.lora_layers else None,
        task_type="CAUSAL_LM",
    )


@contextlib.contextmanager
def running(machine: Resolved) -> Generator[None]:
    """Threads set, libraries quiet; everything restored at the end."""
    import datasets
    import torch
    from huggingface_hub import constants
    from transformers.utils import logging as transformers_logging

    before = torch.get_num_threads()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    tqdm_disable = os.environ.get("TQDM_DISABLE")
    no_telemetry = constants.HF_HUB_DISABLE_TELEMETRY
    transformers_bar = transformers_logging.is_progress_bar_enabled()
    datasets_bar = datasets.are_progress_bars_disabled()
    try:
        torch.set_num_threads(machine.threads)
        os.environ["TQDM_DISABLE"] = "1"
        constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL's trainers report home; the variable was read at import
        transformers_logging.disable_progress_bar()
        datasets.disable_progress_bars()
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            for message, category in IGNORED:
                warnings.filterwarnings("ignore", message=message, category=category)
            yield
    finally:
        torch.set_num_threads(before)
        constants.HF_HUB_DISABLE_TELEMETRY = no_telemetry
        if tqdm_disable is None:
            os.environ.pop("TQDM_DISABLE", None)
        else:
            os.environ["TQDM_DISABLE"] = tqdm_disable
        if transformers_bar:
            transformers_logging.enable_progress_bar()
        if not datasets_bar:
            datasets.enable_progress_bars()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
