import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import TrainError
from agentops.train import machine, sft
from agentops.train.recipe import Machine

Write = Callable[[Any], Path]
RECIPE = {"steps": 4, "batch_size": 4, "learning_rate": 5e-3}


def episode(number: int) -> dict[str, Any]:
    """Odd rows call another tool with other arguments, which Arrow alone would pad with nulls."""
    name, arguments = ("get_order", {"order_id": f"SO-{number}"}) if number % 2 else ("stock", {"sku": "A", "limit": 3})
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    schema = {"name": name, "description": "x", "parameters": {"type": "object", "properties": {}}}
    return {
        "messages": [
            {"role": "user", "content": f"where is order SO-{number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": name, "content": '{"status": "sent"}'},
            {"role": "assistant", "content": "It was sent."},
        ],
        "tools": [{"type": "function", "function": schema}],
        "trace_id": f"trace-{number}",
        "images": None,  # metadata with a name that TRL would take for pictures
        "prompt": "metadata too",
    }


EPISODES = [episode(number) for number in range(12)]


def test_a_run_reports_each_step_and_equal_runs_give_equal_bytes(
    base: Path, write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, seen = write(EPISODES), []
    report = lambda step, total, values: seen.append((step, total, values["loss"]))  # noqa: E731
    first = sft.run(data, RECIPE, base, tmp_path / "one", progress=report)
    second = sft.run(data, RECIPE, base, tmp_path / "two")
    assert [(step, total) for step, total, _ in seen] == [(step, 4) for step in (1, 2, 3, 4)]
    assert [round(loss, 6) for *_, loss in seen] == first["loss"]
    assert first["loss"][-1] < first["loss"][0]
    assert first == second
    files = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "two").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "manifest.json", "tokenizer.json"} <= files.keys()
    assert not any(str(tmp_path.parent).encode() in content for content in files.values())
    assert json.loads(files["manifest.json"]) == first
    assert first["kind"] == "adapter"
    assert first["dataset"]["rows"] == first["dataset"]["trained_on"] == 12
    assert capfd.readouterr() == ("", "")  # drawing a bar is the command line's business
    from huggingface_hub.utils import _telemetry

    assert _telemetry._TELEMETRY_THREAD is None  # TRL's trainers report home unless they are kept from it


def test_an_adapter_is_trained_on_and_loads_into_its_base(base: Path, write: Write, tmp_path: Path) -> None:
    data = write(EPISODES)
    first = sft.run(data, RECIPE, base, tmp_path / "one")
    second = sft.run(data, RECIPE, base, tmp_path / "two", adapter=tmp_path / "one")
    assert second["loss"][0] < first["loss"][0]
    assert second["adapter"].startswith("sha256:")
    assert first["base"] == second["base"]
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with machine.running(machine.resolve(Machine())):  # PEFT calls transformers by an old name, which warns
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "two")


def test_only_the_assistants_turns_are_learned(base: Path, write: Write, tmp_path: Path) -> None:
    conversation = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "alpha beta"},
        {"role": "assistant", "content": "done"},
    ]
    sft.run(
        write([{"messages": conversation}] * 4),
        {"steps": 30, "batch_size": 4, "learning_rate": 5e-3, "lora_r": 0},
        base,
        tmp_path / "model",
    )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    prompt = tokenizer.apply_chat_template(conversation[:2], add_generation_prompt=True, return_dict=False)
    answer = tokenizer.encode("done<|im_end|>")

    def loss(labels: list[int]) -> float:
        return float(model(torch.tensor([prompt + answer]), labels=torch.tensor([labels])).loss.detach())

    of_answer = loss([-100] * len(prompt) + answer)
    of_prompt = loss(prompt + [-100] * len(answer))
    assert of_answer < 2 < of_prompt  # a random model is at ln(vocabulary), about 6


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"messages": [{"role": "user", "content": "x"}]}], "row 1: has no assistant message"),
        ([EPISODES[0], {"text": "x"}], "row 2: expected a list of messages"),
        ([{"messages": [{"role": "assistant", "content": None}]}], "row 1, message 1: content is NoneType"),
        ([{**EPISODES[0], "tools": "x"}], "row 1: tools must be a list"),
    ],
)
def test_bad_rows_are_named_before_anything_is_loaded(rows: Any, says: str, write: Write, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=says):
        sft.run(write(rows), RECIPE, tmp_path / "no base", tmp_path / "out")


def test_rows_that_would_be_cut_are_refused(base: Path, write: Write, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="12 of 12 rows are longer than 16 tokens"):
        sft.run(write(EPISODES), {**RECIPE, "max_length": 16}, base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_not_a_number_stops_and_saves_nothing(base: Path, write: Write, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainError, match=r"stopped at step 1 of 4: loss nan"):
        sft.run(write(EPISODES), RECIPE, broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out-*"))


def test_an_artifact_is_never_written_over(base: Path, write: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(TrainError, match="is never written over"):
        sft.run(write(EPISODES), RECIPE, base, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "x"


@pytest.mark.parametrize("missing", ["config.json", "chat_template.jinja"])
def test_an_unusable_base_is_the_users_mistake(base: Path, write: Write, tmp_path: Path, missing: str) -> None:
    import shutil

    shutil.copytree(base, tmp_path / "base", ignore=lambda *_: [missing])
    with pytest.raises(TrainError, match="base 'base' has no"):
        sft.run(write(EPISODES), RECIPE, tmp_path / "base", tmp_path / "out")


def test_globals_are_restored_even_after_an_error() -> None:
    import torch

    before = torch.get_num_threads(), os.environ.get("TQDM_DISABLE"), logging.getLogger("trl").level

    def work() -> None:
        with machine.running(machine.Resolved("cpu", False, 1)):
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert (torch.get_num_threads(), os.environ.get("TQDM_DISABLE"), logging.getLogger("trl").level) == before


def test_a_gpu_that_is_not_there_is_not_promised() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TrainError, match="torch sees no GPU"):
        machine.resolve(Machine(device="cuda"))
