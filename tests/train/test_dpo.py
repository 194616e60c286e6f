from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import TrainError
from agentops.train import dpo, sft

Write = Callable[[Any], Path]
RECIPE = {"steps": 4, "batch_size": 4, "learning_rate": 2e-3}


def pair(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": f"is order {number} here?"}],
        "chosen": [{"role": "assistant", "content": "It was sent."}],
        "rejected": [{"role": "assistant", "content": "I do not know."}],
        "margin": 1.0,
        "trace_id": f"trace-{number}",
        **changed,
    }


PAIRS = [pair(number) for number in range(8)]


def test_the_margin_grows_from_zero_and_equal_runs_agree(base: Path, write: Write, tmp_path: Path) -> None:
    data, seen = write(PAIRS), []
    first = dpo.run(data, RECIPE, base, tmp_path / "one", progress=lambda step, total, values: seen.append(values))
    margins = [values["rewards/margins"] for values in seen]
    assert margins[0] == 0  # the reference is where the run starts
    assert margins[-1] > 0
    assert first["loss"][-1] < first["loss"][0]
    assert dpo.run(data, RECIPE, base, tmp_path / "two") == first


def test_an_sft_adapter_is_the_start_and_the_reference_and_the_result_is_one_adapter(
    base: Path, write: Write, tmp_path: Path
) -> None:
    episodes = [{"messages": [*one["prompt"], *one["rejected"]]} for one in PAIRS]
    sft.run(write(episodes), {"steps": 3, "batch_size": 4, "learning_rate": 5e-3}, base, tmp_path / "sft")
    seen: list[float] = []
    dpo.run(
        write(PAIRS),
        {**RECIPE, "steps": 2},
        base,
        tmp_path / "dpo",
        progress=lambda step, total, values: seen.append(values["rewards/margins"]),
        adapter=tmp_path / "sft",
    )
    assert seen[0] == 0
    assert not (tmp_path / "dpo" / "ref").exists()


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (pair(1, chosen=[]), "row 1: chosen must be a list of one message, got 0"),
        (pair(1, rejected=[*PAIRS[0]["rejected"]] * 2), "rejected must be a list of one message, got 2"),
        (pair(1, chosen=[{"role": "tool", "content": "x"}]), "chosen has role 'tool'"),
        (pair(1, rejected=PAIRS[0]["chosen"]), "chosen and rejected are the same"),
        (pair(1, prompt=PAIRS[0]["chosen"]), "the prompt ends with an assistant message"),
        (pair(1, chosen="It was sent."), "got str"),
        (
            pair(1, chosen=[{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "f"}}]}]),
            "not an object",
        ),
    ],
)
def test_pairs_that_are_not_step_level_preferences_are_refused(
    row: Any, says: str, write: Write, tmp_path: Path
) -> None:
    with pytest.raises(TrainError, match=says):
        dpo.run(write([row]), RECIPE, tmp_path, tmp_path / "out")
