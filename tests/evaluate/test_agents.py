"""Whole episodes: success, unknowns and crashes are three different things."""

import asyncio

import pytest

from agentops.evaluate import evaluate_agent, gate
from agentops.types import StepRecord, Trajectory, Verdict


def runner(outcome):
    async def run(task):
        number = int(task.id[1:])
        await asyncio.sleep(0)
        result = outcome(number)
        if isinstance(result, Exception):
            raise result
        steps = tuple(StepRecord(f"c{index}", "look", {}, "ok") for index in range(1 + number % 3))
        trajectory = Trajectory(task.id, "sim", 0.0, 2.0, (), steps=steps, timed=number != 5)
        return trajectory, Verdict(task.id, "state", result, evidence="no database")

    return run


@pytest.mark.anyio
async def test_success_is_over_judged_episodes_and_a_crash_is_unknown(made):
    suite = made(100, must_pass=3)
    report = await evaluate_agent(
        suite,
        runner(lambda n: RuntimeError() if n == 1 else None if n == 2 else n % 4 != 0),
        candidate="sha256:x",
        concurrency=8,
    )
    assert report.metrics["success"].n == 98
    assert report.metrics["success"].value == pytest.approx(73 / 98)
    assert report.metrics["unknown"].value == pytest.approx(0.02)
    assert [row["why"] for row in report.details["unknown"]] == ["RuntimeError", "no database"]
    assert report.metrics["latency_p50_s"].value == 2.0
    assert report.metrics["latency_p50_s"].n == 98  # one crashed, one has no real times
    assert report.metrics["calls"].value == pytest.approx(2.0, abs=0.02)
    assert report.must_pass_failures == ("t0", "t1", "t2")  # a must-pass case that could not be judged did not pass
    assert gate(report, {"min_success": 0.9}).passed is False


@pytest.mark.anyio
async def test_two_agents_are_compared_on_the_same_tasks(made):
    report = await evaluate_agent(
        made(200), runner(lambda n: n % 10 != 0), runner(lambda n: n % 5 != 0), candidate="b", baseline_version="a"
    )
    assert report.metrics["difference"].value == pytest.approx(0.1)
    assert (report.details["fixed"], report.details["broken"]) == (20, 0)
    assert gate(report, {"min_success": 0.8, "non_inferiority_margin": 0.02, "min_accuracy": 0.5}).passed is True
