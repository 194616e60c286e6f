"""Budgets: tool calls and money, per run and per user and day, reserved before anything is decided.

Invariant: what is reserved in all processes together never exceeds a limit; calls in flight count. A crash leaves its
reservations counted, never forgotten. Cedar is stateless: three concurrent refunds would each pass a limit alone.

Money is reserved exactly, one atomic update per reservation. Calls are leased from the shared state in blocks
that grow with use (1, 2, 4 … 64 of a user's day), so that most calls touch no disk; at the very edge of a limit a
process may be refused what another has leased and not used. It knows no policy and no price.
"""

import hashlib
import itertools
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from agentops.audit import canonical
from agentops.errors import PolicyError, StoreError
from agentops.graph import Clock, RealClock
from agentops.policy.identity import DailyLimits
from agentops.store import State
from agentops.types import Run

LEASE = 64  # calls at most in one lease
RUN_LEASE = 4  # calls leased beside the first of a run: most requests need no more, and a crash wastes few
GRACE_S = 60.0  # a run's counters outlive its deadline by this much; no call starts after it
KEEP_MONEY_S = 25 * 3600.0  # counters of a run that moved money: as long as an approval can resume it
SLOTS = 4096  # runs share this many keys, so that finished runs leave nothing behind
POOLS = 20_000  # runs and users whose leases are kept in memory
ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class Reservation:
    """Calls and money set aside for one call. Settle it exactly once; unsettled, it stays spent."""

    id: int
    run_id: str
    calls: int
    money_cents: int
    day: str


@dataclass(slots=True)
class _Account:
    """One counter pair in the state, and what this process holds of it."""

    key: str
    field: str  # entry inside the key's value
    day: str = ""  # users: the day it counts
    left: int = 0  # leased calls not handed out yet
    block: int = 1  # size of the last lease
    calls: int = 0  # counted in the state when it was last read, leases included
    money: int = 0
    until: float = 0.0  # runs: when the entry may be pruned
    stored_until: float = 0.0  # runs: the same as the state knows it


class Budgets:
    """Reserve, settle, ask. Thread-safe; any number of processes share one `State`."""

    def __init__(self, state: State, clock: Clock = RealClock(), limits: DailyLimits = DailyLimits()) -> None:
        self._state = state
        self._clock = clock
        self._limits = limits
        self._lock = threading.RLock()
        self._accounts: OrderedDict[tuple[str, str], _Account] = OrderedDict()
        self._open: dict[int, tuple[_Account, _Account]] = {}
        self._numbers = itertools.count(1)

    def reserve(self, run: Run, calls: int, money_cents: int) -> Reservation | None:
        """Set calls and money aside, or None when a limit of the run's agent or of the user's day would be passed.

        Raises:
            PolicyError: a negative or fractional amount.
            StoreError: the shared state cannot answer: nothing is reserved.
        """
        for name, value in (("calls", calls), ("money_cents", money_cents)):
            if type(value) is not int or not 0 <= value < 2**53:
                raise PolicyError(f"{name} = {value!r} cannot be reserved: it is a whole number, not negative")
        now = self._clock.now()
        if now > run.deadline + GRACE_S:
            return None
        day = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")
        with self._lock:
            of_run, of_user = self._run_account(run), self._user_account(run, day)
            if not self._take(of_run, run.agent.max_calls, run.agent.max_money_cents, calls, money_cents, now):
                return None
            try:
                fits = self._take(of_user, self._limits.calls, self._limits.money_cents, calls, money_cents, now)
            except BaseException:
                self._give(of_run, calls, money_cents, now)
                raise
            if not fits:
                self._give(of_run, calls, money_cents, now)
                return None
            reservation = Reservation(next(self._numbers), run.id, calls, money_cents, day)
            self._open[reservation.id] = (of_run, of_user)
            return reservation

    def settle(self, reservation: Reservation, spent: bool) -> None:
        """Close a reservation: `spent` keeps it counted, otherwise calls and money go back. Once; then nothing."""
        with self._lock:
            accounts = self._open.pop(reservation.id, None)
            if accounts is None or spent:
                return
            now = self._clock.now()
            of_run, of_user = accounts
            self._give(of_run, reservation.calls, reservation.money_cents, now)
            if of_user.day == reservation.day:  # yesterday's counters are gone
                self._give(of_user, reservation.calls, reservation.money_cents, now)

    def used(self, run: Run) -> tuple[int, int]:
        """Calls and cents this run has used or reserved, as this process last saw them."""
        with self._lock:
            account = self._run_account(run)
            if not account.calls and not account.money:
                self._read(account, self._entries(account)[0])
            return account.calls - account.left, account.money

    def close(self) -> None:
        """Give leased calls that were not used back to the day's budget of their users."""
        with self._lock:
            for account in self._accounts.values():
                if account.day and account.left:
                    self._update(account, -account.left, 0, self._clock.now())
                    account.left = 0

    def _take(self, account: _Account, max_calls: int, max_money: int, calls: int, money: int, now: float) -> bool:
        if not money and account.left >= calls and account.until <= account.stored_until:
            account.left -= calls
            return True
        for attempt in range(ATTEMPTS):
            entries, version = self._entries(account)
            self._read(account, entries)
            need = max(0, calls - account.left)
            if account.calls + need > max_calls or account.money + money > max_money:
                return False
            spare = min(account.block, (max_calls - account.calls - need) // 2) if need else 0
            if self._write(account, entries, version, need + spare, money, now):
                account.left += need + spare - calls
                account.block = min(LEASE, account.block * 2)
                return True
            _back_off(attempt)
        raise StoreError(f"a budget was changed by others {ATTEMPTS} times in a row: try again")

    def _give(self, account: _Account, calls: int, money: int, now: float) -> None:
        account.left += calls
        if money:
            self._update(account, 0, -money, now)

    def _update(self, account: _Account, calls: int, money: int, now: float) -> None:
        for attempt in range(ATTEMPTS):
            entries, version = self._entries(account)
            self._read(account, entries)
            if self._write(account, entries, version, calls, money, now):
                return
            _back_off(attempt)
        raise StoreError(f"a budget was changed by others {ATTEMPTS} times in a row: try again")

    def _entries(self, account: _Account) -> tuple[dict[str, list[float]], int]:
        found = self._state.get(account.key)
        return ({}, 0) if found is None else (_decoded(found[0]), found[1])

    def _read(self, account: _Account, entries: Mapping[str, list[float]]) -> None:
        if account.field not in entries:
            account.left = 0  # new, or pruned meanwhile: a lease the state knows nothing of is void
        calls, money, account.stored_until = entries.get(account.field, [0, 0, 0])
        account.calls, account.money = int(calls), int(money)

    def _write(
        self, account: _Account, entries: dict[str, list[float]], version: int, calls: int, money: int, now: float
    ) -> bool:
        total, spent = max(0, account.calls + calls), max(0, account.money + money)
        if account.day:  # a neighbour whose clock is a little behind must not wipe the new day
            kept = {day: entries[day] for day in sorted(entries)[-2:]}
            until = 0.0
        else:
            kept = {field: entry for field, entry in entries.items() if entry[2] >= now}
            until = max(account.stored_until, account.until + (KEEP_MONEY_S if spent else 0))
        kept[account.field] = [total, spent, until]
        if not self._state.compare_and_set(account.key, orjson.dumps(kept), version):
            return False
        account.calls, account.money, account.stored_until = total, spent, until
        return True

    def _run_account(self, run: Run) -> _Account:
        # One request may be served by several agents, each under its own ceiling.
        name = hashlib.sha256(canonical([run.principal.tenant, run.id, run.agent.name])).hexdigest()
        account = self._account(f"budget/runs/{int(name[:8], 16) % SLOTS:03x}", name[:32], RUN_LEASE)
        account.until = max(account.until, run.deadline + GRACE_S)
        return account

    def _user_account(self, run: Run, day: str) -> _Account:
        name = hashlib.sha256(canonical([run.principal.tenant, run.principal.user])).hexdigest()
        account = self._account(f"budget/user/{name}", "", 1)
        if account.day != day:
            account.day = account.field = day
            account.left = account.calls = account.money = 0
            account.block = 1
        return account

    def _account(self, key: str, name: str, block: int) -> _Account:
        account = self._accounts.get((key, name))
        if account is None:
            account = self._accounts[key, name] = _Account(key, name, block=block)
            while len(self._accounts) > POOLS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end((key, name))
        return account


def _decoded(data: bytes) -> dict[str, list[float]]:
    try:
        entries = orjson.loads(data)
        if all(len(entry) == 3 and all(isinstance(part, int | float) for part in entry) for entry in entries.values()):
            return entries
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        pass  # told below, like every other form that is not ours
    raise StoreError("a budget in the shared state is damaged: nothing is allowed until it is removed")


def _back_off(attempt: int) -> None:
    """Wait a little longer each time, never in step with the others."""
    time.sleep(random.random() * min(0.05, 0.0005 * 2**attempt))
