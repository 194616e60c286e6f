"""Reports as JSON, as table rows and as JUnit XML.

Invariant: `from_json(to_json(report))` is the report again, and a number that does not exist (or a bound that is
infinite) is null, never NaN. It computes nothing.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from agentops.errors import EvaluateError
from agentops.types import Interval, Json, Report

FILE = "report.json"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def to_json(report: Report) -> dict[str, Json]:
    """The report as plain JSON values."""
    return _plain(dataclasses.asdict(report))


def from_json(table: Mapping[str, Any]) -> Report:
    """The report a JSON object holds.

    Raises:
        EvaluateError: a missing or unknown field.
    """
    try:
        metrics = {
            name: Interval(
                math.nan if row["value"] is None else row["value"],
                -math.inf if row["low"] is None else row["low"],
                math.inf if row["high"] is None else row["high"],
                row["n"],
            )
            for name, row in table["metrics"].items()
        }
        fields: dict[str, Any] = {**table, "metrics": metrics}
        fields |= {key: tuple(table[key]) for key in ("must_pass_failures", "reasons")}
        return Report(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise EvaluateError(
            f"this is not a report: {type(error).__name__} {error}; make one with `agentops evaluate`"
        ) from None


def save(report: Report, folder: Path) -> Path:
    """Write `folder`/report.json (the folder is made), ready to be put into the artifact store."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    file.write_text(json.dumps(to_json(report), indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    return file


def load(folder: Path) -> Report:
    """The report saved in `folder`.

    Raises:
        EvaluateError: missing or damaged.
    """
    try:
        return from_json(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise EvaluateError(f"no readable report in {str(folder)!r} ({type(error).__name__}): evaluate again") from None


def rows(report: Report, labels: bool = False) -> list[dict[str, Json]]:
    """Table rows: metric, value, low, high, n, and baseline where it was measured. `labels`: also one row a label."""
    found = []
    for name, value in report.metrics.items():
        if name.startswith("baseline/") or (name.startswith("label/") and not labels):
            continue
        baseline = report.metrics.get(f"baseline/{name}")
        row = {"metric": name, "value": value.value, "low": value.low, "high": value.high, "n": value.n}
        found.append(_plain({**row, "baseline": None if baseline is None else baseline.value}))
    return found


def junit(report: Report) -> str:
    """JUnit XML for a CI job: a test case for each gate rule (inconclusive = error) and each must-pass failure."""
    gate: Mapping[str, Any] = report.details.get("gate", {})
    failures = sum(rule["passed"] is False for rule in gate.values()) + len(report.must_pass_failures)
    unsure = sum(rule["passed"] is None for rule in gate.values())
    total = len(gate) + len(report.must_pass_failures)
    suite = ElementTree.Element(
        "testsuite", name=_clean(report.suite), tests=str(total), failures=str(failures), errors=str(unsure)
    )
    for name, rule in gate.items():
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=_clean(name))
        if rule["passed"] is not True:
            kind = "failure" if rule["passed"] is False else "error"
            ElementTree.SubElement(case, kind, message=_clean(rule["reason"]))
    for task in report.must_pass_failures:
        case = ElementTree.SubElement(suite, "testcase", classname="must_pass", name=_clean(task))
        ElementTree.SubElement(case, "failure", message="a must-pass case failed")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _clean(text: str) -> str:
    """Text without the characters XML 1.0 cannot hold."""
    return _CONTROL.sub("\ufffd", text)
