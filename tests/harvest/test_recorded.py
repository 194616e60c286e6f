"""200 recorded episodes of a real model (tau-bench airline): the funnel, and that TRL reads the rows as they are."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agentops.harvest import Exclusion, harvest
from agentops.redact import Redactor
from agentops.types import Dataset, Outcome, StepRecord, Trajectory

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def recorded(data_dir: Path) -> list[dict[str, Any]]:
    return orjson.loads((data_dir / "tau_airline" / "gpt-4o-airline.json").read_bytes())


@pytest.fixture(scope="module")
def made(
    recorded: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, redactor: Redactor
) -> dict[str, Dataset]:
    out = tmp_path_factory.mktemp("tau")
    episodes = [trajectory(one) for one in recorded]
    return {
        kind: harvest(kind, episodes, out / kind, exclude=Exclusion({}), redactor=redactor)
        for kind in ("sft", "dpo", "grpo", "distill")
    }


def trajectory(one: dict[str, Any]) -> Trajectory:
    results = iter([message for message in one["traj"] if message["role"] == "tool"])
    steps = []
    for message in one["traj"]:
        for call in message.get("tool_calls") or ():
            result = next(results)["content"]
            status = "error" if result.startswith("Error") else "ok"
            function = call["function"]
            steps.append(
                StepRecord(call["id"], function["name"], orjson.loads(function["arguments"]), status, result=result)
            )
    return Trajectory(
        trace_id=f"tau-{one['task_id']}-{one['trial']}",
        service="tau",
        started_at=0.0,
        ended_at=0.0,
        messages=tuple(one["traj"]),
        steps=tuple(steps),
        outcome=Outcome(1 if one["reward"] == 1 else 0, "verdict:import:reward"),
        source="import:chat",
        timed=False,
        unknown={"task_id": one["task_id"], "info": one["info"]},
    )


def rows(data: Dataset) -> list[dict[str, Any]]:
    names = ("rows.jsonl", "validation.jsonl")
    return [orjson.loads(line) for name in names for line in (data.path / name).read_bytes().splitlines()]


def stage(data: Dataset, name: str) -> dict[str, Any]:
    return next(one for one in data.manifest["funnel"] if one["filter"] == name)


def test_the_funnel_from_200_episodes(made: dict[str, Dataset]) -> None:
    assert stage(made["sft"], "outcome")["dropped"] == {"failed": 116}
    assert stage(made["sft"], "inaction") == {
        "filter": "inaction",
        "unit": "episodes",
        "in": 84,
        "out": 27,
        "dropped": {"inaction": 57},  # 53 tried nothing, 4 tried and failed; the end state was right all the same
    }
    assert len(rows(made["sft"])) == 27
    assert len(rows(made["grpo"])) == 41  # of 50 tasks; nine were only ever solved by doing nothing
    assert stage(made["dpo"], "pair")["out"] == len(rows(made["dpo"])) >= 15
    assert len(rows(made["distill"])) == 50
    assert all(0 <= row["pass_rate"] <= 1 for row in rows(made["grpo"]))


def test_every_call_and_result_is_kept(made: dict[str, Dataset], recorded: list[dict[str, Any]]) -> None:
    by_trace = {f"tau-{one['task_id']}-{one['trial']}": one["traj"] for one in recorded}
    for row in rows(made["sft"]):
        before = [one for one in by_trace[row["trace_id"]] if one["role"] in ("assistant", "tool")]
        after = [one for one in row["messages"] if one["role"] in ("assistant", "tool")]
        assert [one["role"] for one in before] == [one["role"] for one in after]
        for old, new in zip(before, after, strict=True):
            assert isinstance(new["content"], str)
            calls = [call["function"] for call in old.get("tool_calls") or ()]
            assert [call["name"] for call in calls] == [call["function"]["name"] for call in new.get("tool_calls", ())]
            for call in new.get("tool_calls", ()):
                assert isinstance(call["function"]["arguments"], dict)


def test_no_answer_key_is_in_any_row(made: dict[str, Dataset], recorded: list[dict[str, Any]]) -> None:
    instructions = {one["info"]["task"]["instruction"] for one in recorded}
    for data in made.values():
        text = (data.path / "rows.jsonl").read_text() + (data.path / "validation.jsonl").read_text()
        assert '"actions"' not in text
        assert "gt_data_hash" not in text
        assert not any(orjson.dumps(one).decode()[1:-1] in text for one in instructions)


def test_pairs_are_grounded_steps(made: dict[str, Dataset]) -> None:
    for row in rows(made["dpo"]):
        [chosen], [rejected] = row["chosen"], row["rejected"]
        assert chosen["role"] == rejected["role"] == "assistant"
        assert chosen["tool_calls"]
        assert [one["function"] for one in chosen["tool_calls"]] != [
            one["function"] for one in rejected.get("tool_calls", ())
        ]
        assert row["prompt"][-1]["role"] in ("user", "tool")
        assert row["chosen_trace_id"].split("-")[1] == row["rejected_trace_id"].split("-")[1]  # the same task


@pytest.mark.slow
def test_datasets_and_trl_read_the_rows_as_they_are(
    made: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
    from trl.chat_template_utils import qwen2_5_chat_template

    from agentops.train import micro

    tables = {
        kind: load_dataset(
            "json",
            data_files={name: str(data.path / f"{name}.jsonl") for name in ("rows", "validation")},
            cache_dir=str(tmp_path / "cache"),
        )
        for kind, data in made.items()
    }
    for kind, data in made.items():
        read = [dict(row) for name in ("rows", "validation") for row in tables[kind][name]]
        assert read == rows(data), kind  # no null crept into arguments or messages

    texts = [message["content"] for row in rows(made["sft"]) for message in row["messages"]]
    base = micro.make(tmp_path / "micro", texts, vocabulary=4_000)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = qwen2_5_chat_template
    for row in rows(made["sft"]):
        shown = tokenizer.apply_chat_template(row["messages"], tools=row["tools"] or None, tokenize=False)
        assert shown.count("<tool_call>") == sum(len(one.get("tool_calls", ())) for one in row["messages"])
        assert shown.count("<tool_response>") == sum(one["role"] == "tool" for one in row["messages"])
        assert "<|im_start|>assistant\nNone" not in shown

    common: dict[str, Any] = {"output_dir": str(tmp_path / "out"), "max_steps": 1, "per_device_train_batch_size": 1}
    common |= {"use_cpu": True, "bf16": False, "report_to": [], "activation_checkpointing": False, "max_length": None}

    def short(kind: str) -> Any:
        """The two shortest rows: whole, without truncation, in seconds."""
        table = tables[kind]["rows"]
        return table.select(sorted(range(len(table)), key=lambda at: len(str(table[at])))[:2])

    model = AutoModelForCausalLM.from_pretrained(base)
    sft = SFTTrainer(model, SFTConfig(**common), train_dataset=short("sft"), processing_class=tokenizer)
    assert sft.train().training_loss > 0
    dpo = DPOTrainer(model, args=DPOConfig(**common), train_dataset=short("dpo"), processing_class=tokenizer)
    assert dpo.train().training_loss > 0
