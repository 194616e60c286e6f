import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentops import project
from agentops.simulate import ProjectEnvironment


@pytest.mark.slow
def test_a_micro_planner_learns_plans_in_the_support_desk(
    desk: Callable[[], ProjectEnvironment], repo: Path, tmp_path: Path
) -> None:
    """SFT on gold plans, then GRPO in the real environment with the pipeline's own reward terms."""
    from agentops.train import grpo, micro, sft

    labels = ("shipping_costs", "payment_methods", "return_policy")  # plans without anybody's order numbers
    found = [
        task for task in project.module(repo, "pipelines.support.tasks").tasks("train") if task.labels[0] in labels
    ]
    tasks = {task.id: task for task in found if len(task.labels) == 1}
    tasks = dict(list(tasks.items())[:24])
    prompts = {name: [{"role": "user", "content": task.labels[0]}] for name, task in tasks.items()}  # easy on purpose
    sft_rows = [
        {"messages": [*prompts[name], {"role": "assistant", "content": task.plan}]} for name, task in tasks.items()
    ]
    grpo_rows = [{"prompt": prompts[name], "task_id": name} for name in tasks]
    for name, rows in (("sft", sft_rows), ("grpo", grpo_rows)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    base = micro.make(tmp_path / "base", [json.dumps(row, ensure_ascii=False) for row in sft_rows])
    sft.run(
        tmp_path / "sft.jsonl",
        {"steps": 150, "batch_size": 8, "learning_rate": 5e-3, "lora_r": 0},
        base,
        tmp_path / "planner",
    )
    rewards = project.module(repo, "pipelines.support.rewards")
    manifest = grpo.run(
        tmp_path / "grpo.jsonl",
        {"steps": 3, "batch_size": 16, "learning_rate": 5e-4, "lora_r": 0, "max_completion_length": 96},
        tmp_path / "planner",
        tmp_path / "trained",
        desk,
        tasks=tasks,
        terms=rewards.TERMS,
        pace=rewards.pace,
    )
    assert manifest["episodes"]["unscorable"] == 0
    assert max(manifest["outcome"]) > 0.3
    assert manifest["episodes"]["informative_groups"] > 0
