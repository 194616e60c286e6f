import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import TrainError
from agentops.train import grpo, rewards, sft
from agentops.train.recipe import GrpoRecipe
from agentops.types import StepRecord, Task, Trajectory, Verdict

Write = Callable[[Any], Path]
FAST = 'a = order() & b = stock()\nsay "done"'
SLOW = 'a = order()\nb = stock()\nsay "done"'
TASKS = {f"t{number}": Task(f"t{number}", f"is order {number} here?", ("order_status",), "u") for number in range(4)}
ROWS = [
    {"prompt": [{"role": "user", "content": task.text}], "task_id": name, "band": "trainable", "images": None}
    for name, task in TASKS.items()
]


class Desk:
    """A whole environment in a few lines: two plans succeed, one of them in half the time, all other texts are none."""

    broken = 0  # episodes that break before one runs

    def reset(self, seed: int, task: Task) -> str:
        self.task = task
        return task.text

    async def run(self, plan: str) -> Trajectory:
        await asyncio.sleep(0)
        if Desk.broken:
            Desk.broken -= 1
            raise ConnectionError("the sandbox is gone")
        seconds = {FAST: 1.0, SLOW: 2.0}.get(plan.strip())
        steps = () if seconds is None else (StepRecord("a", "order", {}, "ok"), StepRecord("b", "stock", {}, "ok"))
        error = "PlanError: line 1: not a plan" if seconds is None else ""
        return Trajectory("t", "s", 5.0, 5.0 + (seconds or 0.0), (), steps=steps, error=error, plan=plan)

    def verify(self, trajectory: Trajectory) -> Verdict:
        return Verdict("t", "desk", not trajectory.error)

    def close(self) -> None:
        pass


def score(texts: list[str], tasks: list[str] | None = None, **recipe: Any) -> list[float | None]:
    scorer = grpo.Scorer(Desk, TASKS, GrpoRecipe(free_s=1.0, max_s=3.0, ms_per_token=0.0, **recipe))
    return scorer.score(
        completions=[[{"role": "assistant", "content": text}] for text in texts],
        completion_ids=[[1, 2, 3]] * len(texts),
        task_id=tasks or ["t0"] * len(texts),
        prompts=None,
    )


def test_a_faster_success_beats_a_slower_one_beats_a_failure() -> None:
    fast, slow, none = score([FAST, SLOW, "hello"])
    assert fast is not None
    assert slow is not None
    assert none is not None
    assert fast > slow > 0.5 > 0.04 >= none


def test_speed_does_not_count_while_most_of_a_group_fails() -> None:
    fast, slow, *_ = score([FAST, SLOW, "a", "b", "c"])
    assert fast == slow


def test_pass_rates_are_per_task() -> None:
    fast, slow, *_ = score([FAST, SLOW, "a", "b", "c"], ["t0", "t0", "t1", "t1", "t1"])
    assert fast is not None
    assert slow is not None
    assert fast > slow


def test_writing_costs_virtual_time() -> None:
    assert score([FAST, FAST])[0] != score([FAST, FAST], deadline_s=0.5)[0]


def test_what_broke_is_tried_again_and_then_unscorable_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "broken", 1)
    assert None not in score([FAST, SLOW])
    monkeypatch.setattr(Desk, "broken", 2)
    first, second = score([FAST, SLOW])
    assert first is None
    assert second is not None


def test_a_batch_without_one_score_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "broken", 99)
    with pytest.raises(TrainError, match="none of 2 episodes could be scored"):
        score([FAST, SLOW])


def test_rewards_can_be_asked_for_inside_a_running_loop() -> None:
    async def main() -> list[float | None]:
        return score([FAST])

    assert asyncio.run(main()) == score([FAST])


def test_the_pipelines_own_terms_and_paces_are_used() -> None:
    scorer = grpo.Scorer(
        Desk,
        TASKS,
        GrpoRecipe(ms_per_token=0.0),
        {"process": lambda task, trajectory, verdict: 0.25, "outcome": lambda *_: 0.0},
        lambda labels: (0.5, 1.5) if labels == ("order_status",) else (0.0, 1.0),
    )
    [found] = scorer.score(completions=[[{"content": FAST}]], completion_ids=[[1]], task_id=["t0"])
    assert found == pytest.approx(
        rewards.reward(rewards.Signals(1.0, 1.0, 0.25, 0.0), rewards.Pace(0.5, 1.5), rewards.Weights())
    )


@pytest.fixture(scope="module")
def planner(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A micro planner that writes a plan about half of the time."""
    folder = tmp_path_factory.mktemp("planner")
    rows = [
        {"messages": [{"role": "user", "content": task.text}, {"role": "assistant", "content": plan}]}
        for task in TASKS.values()
        for plan in (FAST, SLOW, "I do not know.", "It was sent.")
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sft.run(folder, {"steps": 60, "batch_size": 16, "learning_rate": 5e-3, "lora_r": 0}, base, folder / "model")
    return folder / "model"


def test_plans_that_succeed_become_more_likely_and_equal_runs_agree(
    planner: Path, write: Write, tmp_path: Path
) -> None:
    recipe = {
        "steps": 12,
        "batch_size": 32,
        "learning_rate": 2e-3,
        "lora_r": 0,
        "max_completion_length": 32,
        "free_s": 1.0,
        "max_s": 3.0,
    }
    data, seen = write([*ROWS, {**ROWS[0], "task_id": "request/unknown"}]), []
    report = lambda step, total, values: seen.append((step, total, values["outcome"]))  # noqa: E731
    manifest = grpo.run(data, recipe, planner, tmp_path / "out", Desk, report, tasks=TASKS)
    assert [(step, total) for step, total, _ in seen] == [(step, 12) for step in range(1, 13)]
    outcomes = manifest["outcome"]
    assert sum(outcomes[-4:]) > sum(outcomes[:4])
    assert manifest["dataset"]["without_task"] == 1
    assert manifest["episodes"]["unscorable"] == 0
    assert 0 < manifest["episodes"]["informative_groups"] <= manifest["episodes"]["groups"]
    short = {**recipe, "steps": 2}
    again = [grpo.run(data, short, planner, tmp_path / name, Desk, tasks=TASKS)["loss"] for name in ("a", "b")]
    assert again[0] == again[1] == manifest["loss"][:2]


def test_a_run_in_which_all_plans_fail_alike_is_an_error(base: Path, write: Write, tmp_path: Path) -> None:
    recipe = {"steps": 1, "batch_size": 4, "generations": 2, "max_completion_length": 4}
    with pytest.raises(TrainError, match="nothing was learned: in 4 groups of 2 plans"):
        grpo.run(write(ROWS), recipe, base, tmp_path / "out", Desk, tasks=TASKS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"recipe": {"batch_size": 12, "generations": 8}}, "make it a multiple of"),
        ({"environment": None}, "needs an environment"),
        ({"tasks": {}}, "none of 4 rows has a task_id of the 0 tasks"),
        ({"rows": [{**ROWS[0], "prompt": [{"role": "assistant", "content": "x"}]}]}, "ends with an assistant message"),
    ],
)
def test_what_cannot_be_scored_is_refused(changed: dict[str, Any], says: str, write: Write, tmp_path: Path) -> None:
    given = {"rows": ROWS, "recipe": {}, "environment": Desk, "tasks": TASKS, **changed}
    with pytest.raises(TrainError, match=says):
        grpo.run(
            write(given["rows"]),
            given["recipe"],
            tmp_path,
            tmp_path / "out",
            given["environment"],
            tasks=given["tasks"],
        )
