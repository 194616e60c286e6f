"""200 recorded episodes of a real model (tau-bench airline): the funnel, and that TRL reads the rows as they are."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agentops.errors import HarvestError
from agentops.harvest import Exclusion, harvest
from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import import_files, names, trajectories
from agentops.types import Dataset, Trajectory

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def recorded(data_dir: Path) -> list[dict[str, Any]]:
    return orjson.loads((data_dir / "tau_airline" / "gpt-4o-airline.json").read_bytes())


@pytest.fixture(scope="module")
def episodes(data_dir: Path, tmp_path_factory: pytest.TempPathFactory, redactor: Redactor) -> list[Trajectory]:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    import_files(lake, redactor, [data_dir / "tau_airline" / "gpt-4o-airline.json"])
    return list(trajectories(lake))


@pytest.fixture(scope="module")
def made(
    episodes: list[Trajectory], tmp_path_factory: pytest.TempPathFactory, redactor: Redactor
) -> dict[str, Dataset]:
    out = tmp_path_factory.mktemp("tau")
    return {
        kind: harvest(kind, episodes, out / kind, exclude=Exclusion({}), redactor=redactor)
        for kind in ("sft", "dpo", "grpo", "distill")
    }


def trial(one: Trajectory) -> tuple[str, str]:
    return str(one.unknown[names.TASK_ID]), str(one.unknown[names.TRIAL])


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


def test_every_call_and_result_is_kept(
    made: dict[str, Dataset], episodes: list[Trajectory], recorded: list[dict[str, Any]]
) -> None:
    by_trial = {(str(one["task_id"]), str(one["trial"])): one["traj"] for one in recorded}
    by_trace = {one.trace_id: by_trial[trial(one)] for one in episodes}
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


def test_pairs_are_grounded_steps(made: dict[str, Dataset], episodes: list[Trajectory]) -> None:
    task = {one.trace_id: trial(one)[0] for one in episodes}
    for row in rows(made["dpo"]):
        [chosen], [rejected] = row["chosen"], row["rejected"]
        assert chosen["role"] == rejected["role"] == "assistant"
        assert chosen["tool_calls"]
        assert [one["function"] for one in chosen["tool_calls"]] != [
            one["function"] for one in rejected.get("tool_calls", ())
        ]
        assert row["prompt"][-1]["role"] in ("user", "tool")
        assert task[row["chosen_trace_id"]] == task[row["rejected_trace_id"]]


def test_traces_of_other_frameworks_become_rows(data_dir: Path, tmp_path: Path, redactor: Redactor) -> None:
    lake = Lake(tmp_path / "lake")
    import_files(lake, redactor, sorted((data_dir / "otlp").glob("*.pb")))
    found = list(trajectories(lake))
    with pytest.raises(HarvestError, match="6 outcome unknown"):
        harvest("sft", found, tmp_path / "sft", exclude=Exclusion({}), redactor=redactor)
    options = {"include_undecided": True, "validation": 0.0}
    data = harvest("sft", found, tmp_path / "sft", exclude=Exclusion({}), redactor=redactor, options=options)
    # Three recorded agents had the same two conversations; in the second the refund failed.
    assert stage(data, "decidable")["dropped"] == {"outcome unknown, and it did not go through": 3}
    for row in rows(data):
        assert [len(one.get("tool_calls", ())) for one in row["messages"] if one["role"] == "assistant"] == [2, 1, 0]
        assert {one["function"]["name"] for one in row["tools"]} == {"get_order", "search_policy", "issue_refund"}
    assert data.manifest["redaction"]["findings"] == {}


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
