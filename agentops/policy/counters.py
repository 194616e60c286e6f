"""Counters of budgets in the shared state, and what this process holds of them.

Invariant: a counter changes only by one compare-and-set of its whole entry, so that amounts of all processes together
stay exact; what a process owes is added with its next change. A counter that is damaged allows nothing. Which accounts
a call is charged to, and what happens without the state, is the business of `budgets`.
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import orjson

from agentops.errors import StoreError
from agentops.graph import Clock
from agentops.store import State

T = TypeVar("T")
Amounts = tuple[int, int, int, int]  # calls, cents, tokens, milliseconds
LEASE = 64  # calls at most in one lease
CHARGE_MS = 5_000  # busy time that may wait to be charged until the account is written for another reason
KEEP_S = 25 * 3600.0  # counters of a run that moved money or used tokens: as long as an approval can resume it
ATTEMPTS = 200
CALLS, MONEY, TOKENS, TIME = range(4)  # places in what an account counts; time in milliseconds
KINDS = ("calls", "money", "tokens", "time")
_OWNERS = {"run": "this request", "user": "this user and day", "tenant": "this tenant and day"}


@dataclass(frozen=True, slots=True)
class Refused:
    """Which limit stands in the way."""

    owner: str  # "run", "user" or "tenant"
    kind: str  # "calls", "money", "tokens" or "time"

    @property
    def reason(self) -> str:
        """A sentence's half, safe to show."""
        return f"the limit of {self.kind} for {_OWNERS[self.owner]} is reached"


class Unreachable(StoreError):
    """The state did not answer; unlike a damaged counter, which it answers with."""


@dataclass(slots=True)
class Account:
    """What the state counts under one key and entry, and what this process holds of it."""

    key: str
    entry: str  # inside the key's value
    owner: str
    limits: Amounts
    day: str = ""  # users and tenants: the day it counts
    left: int = 0  # leased calls not handed out yet
    block: int = 1  # size of the last lease
    counted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # when last read, leases included
    owed: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # used, and not counted in the state yet
    until: float = 0.0  # runs: when the entry may be pruned
    stored_until: float = 0.0  # runs: the same as the state knows it

    @property
    def charge_ms(self) -> int:
        """Busy time that is owed at most."""
        return min(CHARGE_MS, max(1, self.limits[TIME] // 10))

    def full(self, want: Amounts) -> Refused | None:
        """The limit that `want` would pass, as far as it is known here."""
        for kind, (counted, owed, wanted, limit) in enumerate(
            zip(self.counted, self.owed, want, self.limits, strict=True)
        ):
            if counted + owed + wanted > limit or (kind == TIME and counted + owed >= limit):
                return Refused(self.owner, KINDS[kind])
        return None


class Counters:
    """The counters of one state. `now`: clock time. Not thread-safe: `Budgets` holds a lock."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._failing_since: float | None = -math.inf  # None: the state answered last time; it never did yet

    @property
    def silent_s(self) -> float:
        """For how long the state has not answered, in seconds; 0 while it does, infinite when it never did."""
        return 0.0 if self._failing_since is None else self._clock.now() - self._failing_since

    def load(self, account: Account) -> None:
        """Read what is counted."""
        self._read(account, self._entries(account)[0])

    def take(self, account: Account, want: Amounts, now: float) -> Refused | None:
        """Count what is wanted, calls from the lease as long as it lasts; or say which limit it would pass.

        Raises:
            Unreachable: the state does not answer: it may or may not be counted.
            StoreError: the counter is damaged, or others change it all the time.
        """
        calls, money, tokens, _ = want
        leased = not money and not tokens and account.left >= calls and account.until <= account.stored_until
        if leased and account.full((0, 0, 0, 0)) is None:
            account.left -= calls
            return None
        for attempt in range(ATTEMPTS):
            entries, version = self._entries(account)
            self._read(account, entries)
            need = max(0, calls - account.left)
            refused = account.full((need, money, tokens, 0))
            if refused is not None:
                return refused
            free = account.limits[CALLS] - account.counted[CALLS] - account.owed[CALLS] - need
            spare = min(account.block, free // 2) if need else 0
            if self._write(account, entries, version, (need + spare, money, tokens, 0), now):
                account.left += need + spare - calls
                account.block = min(LEASE, account.block * 2)
                return None
            _back_off(attempt)
        raise StoreError(f"a budget was changed by others {ATTEMPTS} times in a row: try again")

    def change(self, account: Account, change: Amounts, now: float) -> None:
        """Add to what is counted, below nought too, and what is owed with it; raises as `take`."""
        for attempt in range(ATTEMPTS):
            entries, version = self._entries(account)
            self._read(account, entries)
            if self._write(account, entries, version, change, now):
                return
            _back_off(attempt)
        raise StoreError(f"a budget was changed by others {ATTEMPTS} times in a row: try again")

    def _entries(self, account: Account) -> tuple[dict[str, list[float]], int]:
        found = self._asked(lambda: self._state.get(account.key))
        return ({}, 0) if found is None else (_decoded(found[0]), found[1])

    def _read(self, account: Account, entries: Mapping[str, list[float]]) -> None:
        if account.entry not in entries:
            account.left = 0  # new, or pruned meanwhile: a lease the state knows nothing of is void
        *counted, account.stored_until = entries.get(account.entry, [0, 0, 0, 0, 0])
        account.counted = [int(count) for count in counted]

    def _write(
        self,
        account: Account,
        entries: dict[str, list[float]],
        version: int,
        change: Amounts,
        now: float,
    ) -> bool:
        total = [max(0, sum(parts)) for parts in zip(account.counted, account.owed, change, strict=True)]
        if account.day:  # a neighbour whose clock is a little behind must not wipe the new day
            kept = {day: entries[day] for day in sorted(entries)[-2:]}
            until = 0.0
        else:
            kept = {name: entry for name, entry in entries.items() if entry[-1] >= now}
            keep = KEEP_S if total[MONEY] or total[TOKENS] else 0
            until = max(account.stored_until, account.until + keep)
        kept[account.entry] = [*total, until]
        data = orjson.dumps(kept)
        durable = change[MONEY] != 0  # a power cut may give back the calls of its last moments, never money
        if not self._asked(lambda: self._state.compare_and_set(account.key, data, version, durable)):
            return False
        account.counted, account.owed, account.stored_until = total, [0, 0, 0, 0], until
        return True

    def _asked(self, operation: Callable[[], T]) -> T:
        try:
            answer = operation()
        except StoreError as error:
            if self._failing_since is None:
                self._failing_since = self._clock.now()
            raise Unreachable(str(error)) from None
        self._failing_since = None
        return answer


def _decoded(data: bytes) -> dict[str, list[float]]:
    try:
        entries = orjson.loads(data)
        if all(len(entry) == 5 and all(isinstance(part, int | float) for part in entry) for entry in entries.values()):
            return entries
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        pass  # told below, like every other form that is not ours
    raise StoreError("a budget in the shared state is damaged: nothing is allowed until it is removed")


def _back_off(attempt: int) -> None:
    """Wait a little longer each time, never in step with the others."""
    time.sleep(random.random() * min(0.05, 0.0005 * 2**attempt))
