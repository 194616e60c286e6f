"""Counts at every filter, in order: how many went in, how many came out, and why the others did not.

Invariant: for a filter, in - out equals the sum of its reasons; a making step (episodes to rows, rows to pairs) changes
the unit and states both counts. Nothing is dropped without passing through here.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Stage:
    """One filter or making step."""

    name: str
    unit: str  # what is counted on the way in
    makes: str = ""  # what a making step puts out; "" for a filter
    entered: int = 0
    left: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def judge(self, reason: str) -> bool:
        """Count one thing through a filter: kept when there is no reason to drop it."""
        self.entered += 1
        if reason:
            self.dropped[reason] += 1
        else:
            self.left += 1
        return not reason

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count


class Funnel:
    """Stages in the order in which they were first used."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}

    def stage(self, name: str, unit: str, makes: str = "") -> Stage:
        return self.stages.setdefault(name, Stage(name, unit, makes))

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "filter": stage.name,
                "unit": stage.unit,
                **({"makes": stage.makes} if stage.makes else {}),
                "in": stage.entered,
                "out": stage.left,
                "dropped": dict(sorted(stage.dropped.items())),
            }
            for stage in self.stages.values()
        ]

    def sentence(self) -> str:
        """Where everything went, for an error message."""
        parts = []
        for stage in self.stages.values():
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(stage.dropped.items()))
            if why:
                parts.append(f"{stage.name}: {why}")
        return "; ".join(parts) or "no episode came in"
