"""Gates: may this candidate go on? Every rule passes, fails or is inconclusive, with one sentence and what would change
it.

Invariant: a rule passes only when the whole 95 % interval is on the right side; an inconclusive rule is never a pass.
The numbers come from the [gate] table of policies/release.toml; none is written here.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentops.errors import EvaluateError
from agentops.evaluate import statistics
from agentops.project import line_of, read_toml
from agentops.types import Interval, Problem, Report

Judgement = tuple[bool | None, str]
FILE = "release.toml"


def gate(report: Report, rules: Mapping[str, Any]) -> Report:
    """`report` with `passed` and one reason a rule.

    Args:
        report: of a router or of an agent.
        rules: any of min_accuracy, min_success, non_inferiority_margin, must_pass, max_ece, max_latency_ratio. A rule
        about a
            metric that this kind of report does not have is left out; a comparison without a baseline is inconclusive.

    Returns:
        passed True: every rule passed. False: at least one failed. None: none failed, but at least one is inconclusive
        or no rule applied. `details["gate"]` lists each rule with its verdict.

    Raises:
        EvaluateError: an unknown rule or a value out of range.
    """
    wrong = [message for _, message in _faults(rules)]
    if wrong:
        raise EvaluateError(f"[gate] {wrong[0]}")
    judged = {}
    for name, limit in rules.items():
        rule = RULES.get(name)
        if rule is not None:
            verdict = rule(report, limit)
            if verdict is not None:
                judged[name] = verdict
    verdicts = [passed for passed, _ in judged.values()]
    passed = False if False in verdicts else None if None in verdicts or not verdicts else True
    reasons = tuple(sentence for _, sentence in judged.values()) or ("no gate rule applies to this report",)
    shown = {name: {"passed": ok, "reason": sentence} for name, (ok, sentence) in judged.items()}
    return dataclasses.replace(report, passed=passed, reasons=reasons, details={**report.details, "gate": shown})


def gate_problems(policies: Path) -> list[Problem]:
    """What is wrong with the [gate] table of `policies`/release.toml, with lines; nothing when the file is missing or
    not TOML."""
    file = policies / FILE
    if not file.is_file():
        return []
    table, bad = read_toml(policies.parent, file)
    rules = table.get("gate", {})
    if bad or not isinstance(rules, Mapping):
        return []  # reported with the rest of the file
    shown = f"{policies.name}/{FILE}"
    return [Problem(shown, line_of(file, rf"^\s*{name}\s*="), message) for name, message in _faults(rules)]


def _faults(rules: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in rules.items():
        if name in ("must_pass", "required"):
            if not isinstance(value, bool):
                found.append((name, f"{name} = {value!r} must be true or false"))
        elif name not in RULES:
            found.append((name, f"{name!r} is not a rule; rules: {', '.join(sorted(RULES))}, required"))
        else:
            top = 100.0 if name == "max_latency_ratio" else 1.0
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not 0 <= value <= top:
                found.append((name, f"{name} = {value!r} must be a number from 0 to {top:g}"))
    return found


def _at_least(metric: str, report: Report, limit: float) -> Judgement | None:
    found = report.metrics.get(metric)
    if found is None:
        return None
    name = metric.replace("_", " ")
    if found.n == 0:
        return None, f"{name}: nothing was measured"
    if found.low >= limit:
        return True, f"{name} {found} is at least {limit:g}"
    if found.high < limit:
        return False, f"{name} {found} is below {limit:g}: {_points(limit - found.value)} more are needed"
    return None, f"{name} {found} may lie on either side of {limit:g}: {_more(found, limit)}"


def _at_most(metric: str, report: Report, limit: float) -> Judgement | None:
    found = report.metrics.get(metric)
    if found is None:
        return None
    name = {"ece": "calibration error"}.get(metric, metric.replace("_", " "))
    if found.n == 0:
        return None, f"{name}: nothing was measured"
    if found.high <= limit:
        return True, f"{name} {found} is at most {limit:g}"
    if found.low > limit:
        return False, f"{name} {found} is above {limit:g}: it would have to fall by {found.value - limit:.3f}"
    return None, f"{name} {found} may lie on either side of {limit:g}: {_more(found, limit)}"


def _non_inferior(report: Report, margin: float) -> Judgement | None:
    metric = "accuracy" if "accuracy" in report.metrics else "success"
    if metric not in report.metrics:
        return None
    found = report.metrics.get("difference")
    if found is None or found.n == 0:
        return None, "difference from the serving version: not measured; evaluate with a baseline"
    shown = (
        f"{metric} differs by {_points(found.value, True)} [{_points(found.low, True)}, {_points(found.high, True)}]"
    )
    if found.low >= -margin:
        return True, f"{shown}: not more than {_points(margin)} worse"
    if found.high < -margin:
        return False, f"{shown}: more than {_points(margin)} worse than the serving version"
    flips = report.details.get("fixed", 0) + report.details.get("broken", 0)
    needed = statistics.pairs_needed(margin, flips / found.n)
    room = found.value + margin
    more = (
        f"about {needed} tasks instead of {found.n} would decide it" if needed > found.n and room > 0
        else f"{_points(max(0.0, -margin - found.low))} fewer lost would decide it"
    )  # fmt: skip
    return None, f"{shown}: the suite cannot tell whether it is more than {_points(margin)} worse; {more}"


def _must_pass(report: Report, wanted: bool) -> Judgement | None:
    if not wanted:
        return None
    failures, cases = report.must_pass_failures, int(report.details.get("must_pass", 0))
    if failures:
        shown = ", ".join(failures[:5]) + (f" and {len(failures) - 5} more" if len(failures) > 5 else "")
        return False, f"{len(failures)} of {cases} must-pass cases failed: {shown}"
    if cases == 0:
        return True, "the suite marks no case as must-pass, so this rule says nothing"
    return True, f"all {cases} must-pass cases passed: the failure rate is below {min(1.0, 3 / cases):.1%} (95 %)"


RULES: Mapping[str, Callable[[Report, Any], Judgement | None]] = {
    "min_accuracy": lambda report, limit: _at_least("accuracy", report, limit),
    "min_success": lambda report, limit: _at_least("success", report, limit),
    "non_inferiority_margin": _non_inferior,
    "must_pass": _must_pass,
    "max_ece": lambda report, limit: _at_most("ece", report, limit),
    "max_latency_ratio": lambda report, limit: _latency(report, limit),
}


def _latency(report: Report, limit: float) -> Judgement | None:
    if "latency_ratio" in report.metrics:
        return _at_most("latency_ratio", report, limit)
    if "accuracy" not in report.metrics:
        return None
    return None, "latency ratio to the serving version: not measured; evaluate with a baseline"


def _more(found: Interval, limit: float) -> str:
    """How many tasks would bring the limit outside an interval that shrinks with the square root of their number."""
    distance = abs(found.value - limit)
    half = max(found.high - found.value, found.value - found.low)
    if distance < 1e-9 or not math.isfinite(half):
        return "it is on the limit"
    return f"about {math.ceil(found.n * (half / distance) ** 2)} cases instead of {found.n} would tell"


def _points(share: float, signed: bool = False) -> str:
    return f"{100 * share:+.1f} points" if signed else f"{100 * share:.1f} points"
