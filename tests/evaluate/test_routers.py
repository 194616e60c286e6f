"""Reports on routers with known mistakes."""

import json
import time

import pytest

from agentops.errors import EvaluateError
from agentops.evaluate import (
    evaluate_router,
    from_json,
    gate,
    gate_problems,
    junit,
    latencies,
    load,
    rows,
    save,
    to_json,
)
from agentops.types import Route

RULES = {
    "min_accuracy": 0.7, "non_inferiority_margin": 0.02, "must_pass": True, "max_ece": 0.1, "max_latency_ratio": 50.0,
}  # fmt: skip


def test_figures_are_those_of_the_planted_mistakes(made, scripted):
    suite = made()
    report = evaluate_router(suite, scripted(suite, "new", 0.9), scripted(suite, "old", 0.8))
    metrics = report.metrics
    assert metrics["accuracy"].value == pytest.approx(0.9, abs=0.03)
    assert metrics["accuracy"].low < 0.9 < metrics["accuracy"].high
    assert metrics["baseline/accuracy"].value == pytest.approx(0.8, abs=0.03)
    assert metrics["difference"].value == pytest.approx(metrics["accuracy"].value - metrics["baseline/accuracy"].value)
    assert metrics["in_scope_accuracy"].n == 900
    assert metrics["out_of_scope_recall"].n == 100
    assert metrics["label/label1"].n == sum("label1" in task.labels for task in suite.tasks)
    assert metrics["stage_share/encoder"].value + metrics["stage_share/causal"].value == pytest.approx(1)
    assert metrics["latency_p50_s"].n == 300
    assert report.details["fixed"] - report.details["broken"] == round(metrics["difference"].value * 1000)
    assert report.details["mcnemar_p"] < 0.01
    assert (report.candidate, report.baseline, report.suite_digest) == ("new", "old", suite.digest)
    assert report.passed is None


def test_one_of_two_intents_is_not_right(made):
    suite = made()

    class Half:
        version = "half"

        def route(self, texts):
            return [(Route("label1", 0.9, "encoder"),) for _ in texts]

    report = evaluate_router(suite, Half())
    exact = sum(set(task.labels) == {"label1"} for task in suite.tasks) / 1000
    assert report.metrics["accuracy"].value == pytest.approx(exact)
    assert report.metrics["label/label1"].value == 1.0


def test_a_limit_draws_a_sample_and_keeps_every_must_pass_case(made, scripted):
    suite = made(must_pass=30)
    router = scripted(suite, "new", 1.0, wrong=frozenset({"text number 7"}))
    report = evaluate_router(suite, router, limit=50)
    assert report.must_pass_failures == ("t7",)
    assert 50 <= report.metrics["accuracy"].n <= 80
    with pytest.raises(EvaluateError, match="at least 1"):
        evaluate_router(suite, router, limit=0)


def test_routers_take_turns_and_each_is_timed_on_every_text() -> None:
    asked: list[tuple[str, str]] = []

    class Timed:
        version = ""

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def route(self, texts: list[str]) -> list[tuple[Route, ...]]:
            asked.append((self.name, texts[0]))
            time.sleep(self.seconds)
            return [(Route("a", 1.0, "encoder"),)]

    fast, slow = latencies([Timed("fast", 0.0), Timed("slow", 0.01)], ["one", "two"], repeats=2)
    assert min(slow) >= 0.01 > max(fast)
    turns = ["fast", "slow", "slow", "fast"]
    assert asked[2:] == [*((name, "one") for name in turns), *((name, "two") for name in turns[2:] + turns[:2])]


def test_a_router_that_swallows_texts_is_refused(made):
    class Short:
        version = "short"

        def route(self, texts):
            return [() for _ in texts]

    with pytest.raises(EvaluateError, match="at least one route"):
        evaluate_router(made(20), Short())


def test_the_gate_passes_a_better_router_and_fails_a_worse_one(made, scripted):
    suite = made(must_pass=40)
    always = frozenset(task.text for task in suite.tasks if task.must_pass)
    better = evaluate_router(suite, scripted(suite, "perfect", 1.0, confidence=0.99), scripted(suite, "old", 0.8))
    judged = gate(better, RULES)
    assert judged.passed is True, judged.reasons
    assert len(judged.reasons) == len(RULES)
    assert "all 40 must-pass cases passed: the failure rate is below 7.5%" in " ".join(judged.reasons)
    worse = gate(evaluate_router(suite, scripted(suite, "bad", 0.6, wrong=always), scripted(suite, "old", 0.9)), RULES)
    assert worse.passed is False
    assert {name for name, rule in worse.details["gate"].items() if rule["passed"] is False} >= {
        "min_accuracy", "non_inferiority_margin", "must_pass", "max_ece",
    }  # fmt: skip


def test_a_small_suite_is_inconclusive_and_says_how_many_tasks_would_tell(made, scripted):
    suite = made(40)
    report = gate(
        evaluate_router(suite, scripted(suite, "new", 0.8), scripted(suite, "old", 0.8)),
        {"non_inferiority_margin": 0.02},
    )
    assert report.passed is None
    assert "cannot tell" in report.reasons[0]
    low = gate(evaluate_router(suite, scripted(suite, "new", 0.8)), {"min_accuracy": 0.75})
    assert low.passed is None
    assert "cases instead of 40 would tell" in low.reasons[0]


def test_a_comparison_without_a_baseline_is_never_a_pass(made, scripted):
    suite = made()
    report = gate(evaluate_router(suite, scripted(suite, "new", 0.95)), RULES)
    assert report.passed is None
    assert any("evaluate with a baseline" in reason for reason in report.reasons)
    assert gate(report, {}).passed is None


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"min_acuracy": 0.5}, "'min_acuracy' is not a rule"),
        ({"min_accuracy": 70}, "from 0 to 1"),
        ({"max_ece": True}, "must be a number"),
        ({"must_pass": 1}, "true or false"),
        ({"min_accuracy": float("nan")}, "must be a number"),
    ],
)
def test_wrong_rules_are_refused(made, scripted, rules, says):
    suite = made(30)
    with pytest.raises(EvaluateError, match=says):
        gate(evaluate_router(suite, scripted(suite, "new", 1.0)), rules)


def test_wrong_rules_are_found_in_the_file_with_their_line(repo, tmp_path):
    assert gate_problems(repo / "policies") == []
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "release.toml").write_text("[gate]\nmust_pass = true\nmax_ece = 3\nmin_speed = 1\n")
    assert [(problem.line, problem.path) for problem in gate_problems(folder)] == [
        (3, "policies/release.toml"),
        (4, "policies/release.toml"),
    ]


def test_reports_survive_json_and_disk(made, scripted, tmp_path):
    suite = made(300, must_pass=5)
    report = gate(evaluate_router(suite, scripted(suite, "new", 0.9), scripted(suite, "old", 0.8)), RULES)
    assert from_json(json.loads(json.dumps(to_json(report), allow_nan=False))) == report
    save(report, tmp_path / "r")
    assert load(tmp_path / "r") == report
    (tmp_path / "r" / "report.json").write_text('{"suite": 1}')
    with pytest.raises(EvaluateError, match="not a report"):
        load(tmp_path / "r")
    with pytest.raises(EvaluateError, match="no readable report"):
        load(tmp_path / "none")
    table = rows(report)
    assert next(row for row in table if row["metric"] == "accuracy")["baseline"] is not None
    assert not any(row["metric"].startswith("label/") for row in table)


def test_junit_has_a_case_for_each_rule_and_each_must_pass_failure(made, scripted):
    from xml.etree import ElementTree

    suite = made(300, must_pass=5)
    always = frozenset({"text number 1"})
    report = gate(evaluate_router(suite, scripted(suite, "new\x00", 0.95, wrong=always)), RULES)
    root = ElementTree.fromstring(junit(report))
    assert int(root.attrib["tests"]) == len(root) == len(RULES) + 1
    assert int(root.attrib["failures"]) == len(root.findall(".//failure")) >= 2
    assert int(root.attrib["errors"]) == len(root.findall(".//error")) == 2  # nothing to compare with
