"""From observations to units to blocks: one canary session against k concurrent sessions of the incumbent.

Invariant: the unit is the session. It settles once, in the order in which sessions began, with a value that depends
only on what arrived for it before its deadline; each settled session enters at most one block. So a block's difference
is fresh, whatever the delays, and several requests of one session never count as independent. No statistics here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentops.errors import ReleaseError

METRICS = ("success", "latency", "cost", "denied", "error")  # one column each, as rules.GUARDRAILS
OUTCOME_COLUMNS = (0, 3, 4)  # can differ only where the two versions answered differently
TRAFFIC_COLUMNS = (1, 2)  # differ on all traffic
MAX_CONTROLS = 9  # per block
MAX_OPEN = 50_000  # sessions waiting for outcomes; beyond, the oldest settle with what is known (about 5 MB of state)
BUFFER = 64  # controls kept for pairing: older ones are not concurrent any more
COST_CLIP = 5.0  # times the incumbent's mean
HARD = ("crash", "must_pass", "leak")


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is known of one request, or what became known later of its session. None: not known (never a zero).

    Attributes:
        success: in [0, 1], from the project's outcome function.
        latency_s: of the router that served. cost: any one unit of money, >= 0.
        hard: "crash", "must_pass" or "leak" ends the release at once when the candidate did it.
        disagreed: whether the other version would have answered otherwise (both ran); None when it did not run.
        shadow_latency_s: of the version that ran without serving.
        complete: nothing more will come for this session.
    """

    success: float | None = None
    latency_s: float | None = None
    cost: float | None = None
    denied: bool | None = None
    error: bool | None = None
    hard: str = ""
    disagreed: bool | None = None
    shadow_latency_s: float | None = None
    complete: bool = False

    def checked(self) -> "Metrics":
        """Itself.

        Raises:
            ReleaseError: a number that is not finite or out of range, or an unknown hard failure.
        """
        for name, value, top in (
            ("success", self.success, 1.0),
            ("latency_s", self.latency_s, math.inf),
            ("cost", self.cost, math.inf),
            ("shadow_latency_s", self.shadow_latency_s, math.inf),
        ):
            if value is not None and not (math.isfinite(value) and 0 <= value <= top):
                raise ReleaseError(
                    f"{name} = {value!r} is not a metric: give a finite number from 0 to {top:g}, or None"
                )
        if self.hard and self.hard not in HARD:
            raise ReleaseError(f"hard = {self.hard!r} is not known: one of {', '.join(HARD)}, or empty")
        return self

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> "Metrics":
        return cls(*row)


@dataclass(slots=True)
class Unit:
    """One session on its way to being settled."""

    candidate: bool  # which version served it
    weight: float  # of the candidate when the session was assigned
    began: float
    sums: list[float] = field(default_factory=lambda: [0.0] * len(METRICS))
    counts: list[int] = field(default_factory=lambda: [0] * len(METRICS))
    disagreed: bool | None = None
    complete: bool = False

    @property
    def scarce(self) -> bool:
        """In the smaller arm: the candidate before promotion, the old version after it."""
        return self.candidate == (self.weight <= 0.5)

    @property
    def share(self) -> float:
        """Probability of the scarce arm."""
        return min(self.weight, 1.0 - self.weight)

    @property
    def exposed(self) -> bool:
        """Whether the two versions could have made a difference; when nobody compared them they could."""
        return self.disagreed is not False

    def add(self, metrics: Metrics, p95: float | None, mean_cost: float | None) -> None:
        latency = None if metrics.latency_s is None or p95 is None else float(metrics.latency_s > p95)
        values = (metrics.success, latency, _clipped(metrics.cost, mean_cost), metrics.denied, metrics.error)
        for column, value in enumerate(values):
            if value is not None:
                self.sums[column] += float(value)
                self.counts[column] += 1
        if metrics.disagreed is not None:
            self.disagreed = bool(self.disagreed) or metrics.disagreed
        self.complete = self.complete or metrics.complete

    def values(self) -> list[float | None]:
        """Mean of each metric over the session's requests, None where nothing is known."""
        return [total / count if count else None for total, count in zip(self.sums, self.counts, strict=True)]

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> "Unit":
        return cls(*row)


def _clipped(cost: float | None, mean: float | None) -> float | None:
    """Cost in units of COST_CLIP times the incumbent's mean, at most 1."""
    if cost is None or mean is None:
        return None
    if mean <= 0:
        return float(cost > 0)
    return min(1.0, cost / (COST_CLIP * mean))


class Lane:
    """Pairs each scarce session with k sessions of the other arm that settled most recently before or next after it."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.waiting: list[tuple[int, list[float | None]]] = []
        self.controls: list[list[float | None]] = []

    def add(self, unit: Unit, values: list[float | None]) -> list[list[float | None]]:
        """Blocks that `unit` completes: scarce minus mean of its controls, a column each, None where one is unknown."""
        if unit.scarce:
            ratio = (1.0 - unit.share) / max(unit.share, 1e-9)
            self.waiting.append((int(min(MAX_CONTROLS, max(1.0, ratio + 1e-9))), values))
        else:
            self.controls.append(values)
            del self.controls[:-BUFFER]
        blocks = []
        while self.waiting and len(self.controls) >= self.waiting[0][0]:
            size, scarce = self.waiting.pop(0)
            chosen = self.controls[-size:]
            del self.controls[-size:]
            blocks.append(
                [_difference(scarce[column], [one[column] for one in chosen]) for column in range(self.width)]
            )
        return blocks

    def to_json(self) -> list[Any]:
        return [self.waiting, self.controls]

    @classmethod
    def from_json(cls, width: int, saved: Sequence[Any]) -> "Lane":
        lane = cls(width)
        lane.waiting = [(size, values) for size, values in saved[0]]
        lane.controls = list(saved[1])
        return lane


def _difference(scarce: float | None, controls: list[float | None]) -> float | None:
    known = [value for value in controls if value is not None]
    return None if scarce is None or not known else scarce - sum(known) / len(known)


def _goodness(columns: Sequence[int], block: Sequence[float | None], sign: float) -> tuple[float | None, ...]:
    row: list[float | None] = [None] * len(METRICS)
    for column, difference in zip(columns, block, strict=True):
        if difference is not None:
            row[column] = difference * sign * (1.0 if column == 0 else -1.0)  # only success is better when higher
    return tuple(row)


@dataclass(frozen=True, slots=True)
class Block:
    """What one comparison says: goodness of each of METRICS (candidate minus incumbent, higher is better), None =
    nothing.

    `missing` is the difference in missing outcomes; `exposed` marks a canary session that could have made a difference.
    """

    goodness: tuple[float | None, ...]
    missing: float | None = None
    exposed: bool = False


class Pairing:
    """Blocks of goodness differences (candidate minus incumbent, higher is better) over all five metrics.

    Outcomes are compared only between sessions in which the two versions disagreed. Where they agreed the difference is
    zero by construction: such a canary session is a block of its own with difference 0, which keeps every margin in
    units of all traffic.
    """

    def __init__(self) -> None:
        self.outcomes = Lane(len(OUTCOME_COLUMNS))
        self.traffic = Lane(len(TRAFFIC_COLUMNS) + 1)  # the last column: outcome missing

    def add(self, unit: Unit) -> list[Block]:
        """Blocks this settled session completes."""
        values = unit.values()
        sign = 1.0 if unit.weight <= 0.5 else -1.0  # the scarce arm is the candidate, or the old version
        missing = 1.0 if values[0] is None else 0.0
        found = []
        for block in self.traffic.add(unit, [values[1], values[2], missing]):
            last = block.pop()
            found.append(Block(_goodness(TRAFFIC_COLUMNS, block, sign), None if last is None else sign * last))
        own = [values[column] for column in OUTCOME_COLUMNS]
        if unit.exposed:
            blocks = self.outcomes.add(unit, own)
        else:
            blocks = [[None if value is None else 0.0 for value in own]] if unit.scarce else []
        return found + [Block(_goodness(OUTCOME_COLUMNS, block, sign), exposed=unit.exposed) for block in blocks]

    def to_json(self) -> list[Any]:
        return [self.outcomes.to_json(), self.traffic.to_json()]

    @classmethod
    def from_json(cls, saved: Sequence[Any]) -> "Pairing":
        pairing = cls()
        pairing.outcomes = Lane.from_json(pairing.outcomes.width, saved[0])
        pairing.traffic = Lane.from_json(pairing.traffic.width, saved[1])
        return pairing


class Ledger:
    """Open sessions, settled in the order they began."""

    def __init__(self) -> None:
        self.open: dict[str, Unit] = {}

    def settle(self, now: float, deadline_s: float) -> list[Unit]:
        """Units from the front of the line that are complete, past their deadline, or too many to wait for."""
        settled = []
        while self.open:
            session, unit = next(iter(self.open.items()))
            if not unit.complete and now < unit.began + deadline_s and len(self.open) <= MAX_OPEN:
                break
            settled.append(self.open.pop(session))
        return settled

    def to_json(self) -> Mapping[str, Any]:
        return {session: unit.to_json() for session, unit in self.open.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Ledger":
        ledger = cls()
        ledger.open = {session: Unit.from_json(row) for session, row in saved.items()}
        return ledger
