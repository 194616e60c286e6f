"""The rules of releases: `policies/release.toml`, validated.

Invariant: a Rules value is complete and every number in it is in range; an unknown or missing key is a Problem with its
line. The [gate] table is handed through to the evaluation untouched (its keys are validated there). Nothing is decided
here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentops.errors import ReleaseError
from agentops.project import read_toml
from agentops.types import Problem

FILE = "release.toml"
GUARDRAILS = ("success", "latency", "cost", "denied", "error")
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Shadow(_Table):
    sessions: int = Field(ge=100, le=1_000_000)  # fewer cannot place a p95
    min_disagreement: Rate


class Step(_Table):
    weight: float = Field(gt=0, le=0.5, allow_inf_nan=False)
    units: Count
    evidence: float = Field(ge=0, le=1e9, allow_inf_nan=False)


class Promote(_Table):
    alpha: Share
    max_units: Count


class Triggered(_Table):
    enabled: bool


class Guardrail(_Table):
    alpha: Share
    tolerance: Rate
    margin: Share


class Health(_Table):
    sample_ratio_alpha: Share
    missing_difference: Rate
    missing_margin: Share
    missing_alpha: Share


class Outcomes(_Table):
    deadline_s: float = Field(ge=0, le=90 * 86400, allow_inf_nan=False)


class HoldBack(_Table):
    share: float = Field(ge=0, lt=0.5, allow_inf_nan=False)  # 0: none, and no watch
    days: float = Field(gt=0, le=3650, allow_inf_nan=False)
    warn: float = Field(gt=1, allow_inf_nan=False)
    roll_back: float = Field(gt=1, allow_inf_nan=False)


class _Guardrails(_Table):
    success: Guardrail
    latency: Guardrail
    cost: Guardrail
    denied: Guardrail
    error: Guardrail


class _File(_Table):
    gate: dict[str, Any]
    shadow: Shadow
    steps: list[Step] = Field(min_length=1, max_length=20)
    promote: Promote
    triggered: Triggered
    guardrails: _Guardrails
    health: Health
    outcomes: Outcomes
    hold_back: HoldBack


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything `policies/release.toml` says. Build with `load_rules` or `rules_from`."""

    shadow: Shadow
    steps: tuple[Step, ...]
    promote: Promote
    guardrails: Mapping[str, Guardrail]  # in the order of GUARDRAILS
    health: Health
    outcomes: Outcomes
    hold_back: HoldBack
    triggered: bool = False
    gate_required: bool = True
    gate: Mapping[str, Any] = field(default_factory=dict)
    table: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # as validated: a release keeps the rules it began with

    @property
    def tolerances(self) -> list[float]:
        return [rail.tolerance for rail in self.guardrails.values()]

    @property
    def margins(self) -> list[float]:
        return [rail.margin for rail in self.guardrails.values()]

    @property
    def harm_limits(self) -> list[float]:
        """log(1/alpha) of each guardrail's harm test."""
        return [-math.log(rail.alpha) for rail in self.guardrails.values()]


def load_rules(policies: Path) -> Rules:
    """The rules in `policies`/release.toml.

    Raises:
        ReleaseError: the file is missing or wrong; names every problem with its line.
    """
    rules, found = _read(policies)
    if rules is None:
        raise ReleaseError("; ".join(map(str, found)))
    return rules


def problems(policies: Path) -> list[Problem]:
    """Everything wrong with `policies`/release.toml."""
    return _read(policies)[1]


def rules_from(table: Mapping[str, Any]) -> Rules:
    """Rules from a table like the file's, for simulations and tests.

    Raises:
        ReleaseError: names the first problem.
    """
    rules, found = _validated(table, "", FILE)
    if rules is None:
        raise ReleaseError("; ".join(map(str, found)))
    return rules


def _read(policies: Path) -> tuple[Rules | None, list[Problem]]:
    file = policies / FILE
    shown = f"{policies.name}/{FILE}"
    if not file.is_file():
        return None, [
            Problem(shown, 0, "is missing: a release needs its margins and alphas (`agentops init` writes one)")
        ]
    table, found = read_toml(policies.parent, file)
    if found:
        return None, found
    return _validated(table, file.read_text(encoding="utf-8"), shown)


def _validated(table: Mapping[str, Any], text: str, shown: str) -> tuple[Rules | None, list[Problem]]:
    try:
        parsed = _File.model_validate(table)
    except ValidationError as error:
        return None, [_problem(item, text, shown) for item in error.errors(include_url=False)]
    found = [Problem(shown, _line(text, loc), message) for loc, message in _contradictions(parsed)]
    if found:
        return None, found
    gate = dict(parsed.gate)
    required = gate.pop("required", True)
    return (
        Rules(
            parsed.shadow,
            tuple(parsed.steps),
            parsed.promote,
            {name: getattr(parsed.guardrails, name) for name in GUARDRAILS},
            parsed.health,
            parsed.outcomes,
            parsed.hold_back,
            parsed.triggered.enabled,
            required,
            gate,
            parsed.model_dump(),
        ),
        [],
    )


def _contradictions(parsed: _File) -> list[tuple[tuple[str | int, ...], str]]:
    """What each value allows by itself but not together."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    for number in range(1, len(parsed.steps)):
        before, after = parsed.steps[number - 1], parsed.steps[number]
        if after.weight <= before.weight:
            message = f"weight = {after.weight} is not above the step before ({before.weight}): steps must grow"
            found.append((("steps", number, "weight"), message))
        if after.evidence < before.evidence:
            message = f"evidence = {after.evidence} is below the step before ({before.evidence})"
            found.append((("steps", number, "evidence"), message))
    last = parsed.steps[-1]
    if last.evidence < 1 / parsed.promote.alpha - 1e-9:
        message = f"evidence = {last.evidence} on the last step does not prove promote.alpha = {parsed.promote.alpha}"
        found.append(
            (("steps", len(parsed.steps) - 1, "evidence"), f"{message}: write at least {1 / parsed.promote.alpha:g}")
        )
    for name in GUARDRAILS:
        rail = getattr(parsed.guardrails, name)
        if rail.margin <= rail.tolerance:
            message = f"margin = {rail.margin} must be larger than tolerance = {rail.tolerance}"
            found.append((("guardrails", name, "margin"), message))
    if parsed.health.missing_margin <= parsed.health.missing_difference:
        message = f"missing_margin = {parsed.health.missing_margin} must be larger than missing_difference"
        found.append((("health", "missing_margin"), message))
    if parsed.hold_back.roll_back < parsed.hold_back.warn:
        found.append((("hold_back", "roll_back"), f"roll_back = {parsed.hold_back.roll_back:g} is below warn"))
    if not isinstance(parsed.gate.get("required", True), bool):
        found.append((("gate", "required"), f"required = {parsed.gate['required']!r} must be true or false"))
    return found


def _problem(item: Mapping[str, Any], text: str, shown: str) -> Problem:
    loc: tuple[str | int, ...] = item["loc"]
    key = ".".join(str(part + 1) if isinstance(part, int) else part for part in loc)
    if item["type"] == "extra_forbidden":
        message = f"{key} is not a rule: remove it, or check its spelling"
    elif item["type"] == "missing":
        message = f"{key} is missing: every rule must be stated"
    else:
        message = f"{key} = {item['input']!r:.80} is not allowed: {item['msg']}"
    return Problem(shown, _line(text, loc), message)


def _line(text: str, loc: tuple[str | int, ...]) -> int:
    """1-based line of a key, or of its table when the key is missing; 0 when neither is there."""
    names = [part for part in loc if isinstance(part, str)]
    wanted = next((part for part in loc if isinstance(part, int)), 0)  # which [[steps]]
    best, inside, seen = 0, False, -1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\[?\s*([\w.]+)\s*\]\]?", line)
        if header:
            path = header[1].split(".")
            inside = path == names[: len(path)] and len(path) >= max(1, len(names) - 1)
            if line.lstrip().startswith("[[") and inside:
                seen += 1
                inside = seen == wanted
            if inside:
                best = number
        elif inside and re.match(rf"\s*{re.escape(names[-1])}\s*=", line):
            return number
    return best
