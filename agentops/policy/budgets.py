"""Budgets: calls, money, model tokens and busy time, per run, user and tenant, reserved before anything is decided.

Invariant: what is reserved in all processes together never exceeds a limit of calls, money or tokens; calls in flight
count. A crash leaves its reservations counted, never forgotten. Cedar is stateless: three concurrent refunds would each
pass a limit alone. Two things are charged when they are known and may go over a limit, which then refuses the next
call (in another process: once its lease is used up): tokens beyond what was reserved, and busy time, of which a crash
forgets the last 5 s. A third are reads in the first `OUTAGE_S` without the shared state: at most `LENT` a user and
process, charged when it is back.

Money and tokens are reserved exactly, one atomic update per account. Calls are leased from the shared state in blocks
that grow with use (1, 2, 4 … 64 of a user's day), so that most calls touch no disk; at the very edge of a limit a
process may be refused what another has leased and not used. It knows no policy and no price.
"""

import functools
import hashlib
import itertools
import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from agentops.audit import canonical
from agentops.errors import PolicyError, StoreError
from agentops.graph import Clock, RealClock
from agentops.policy.counters import CALLS, KINDS, MONEY, TIME, TOKENS, Account, Amounts, Counters, Refused, Unreachable
from agentops.policy.limits import NO_LIMIT, UNLIMITED, DailyLimits, Limits
from agentops.store import State
from agentops.types import Effect, Run

_LOG = logging.getLogger(__name__)
RUN_LEASE = 4  # calls leased beside the first of a run: most requests need no more, and a crash wastes few
LENT = 64  # reads of one user that this process lets through without a lease while the state is unreachable
OUTAGE_S = 30.0  # for so long after the first failure
GRACE_S = 60.0  # a run's counters outlive its deadline by this much; no call starts after it
SLOTS = 4096  # runs share this many keys, so that finished runs leave nothing behind
POOLS = 20_000  # runs, users and tenants whose leases are kept in memory


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is set aside for one call. Settle it exactly once; unsettled, it stays spent."""

    id: int
    run_id: str
    calls: int
    money_cents: int
    tokens: int
    day: str


class Budgets:
    """Reserve, settle, ask. Thread-safe; any number of processes share one `State`."""

    def __init__(self, state: State, clock: Clock = RealClock(), limits: Limits = Limits()) -> None:
        self._counters = Counters(state, clock)
        self._clock = clock
        self._limits = limits
        self._of_tenants = limits.tenant != UNLIMITED
        self._lock = threading.RLock()
        self._accounts: OrderedDict[tuple[str, str], Account] = OrderedDict()
        self._open: dict[int, tuple[Account, ...]] = {}
        self._numbers = itertools.count(1)

    def reserve(
        self, run: Run, calls: int, money_cents: int, tokens: int = 0, effect: Effect = "write"
    ) -> Reservation | Refused:
        """Set amounts aside, or say which limit of the run's agent, the user's or the tenant's day would be passed.

        Args:
            run: who asks, through which agent.
            calls: of tools, 0 for a model's call.
            money_cents: exactly what the call may move.
            tokens: of a language model, as estimated; `settle` is told what was used.
            effect: of the tool; a "read" goes on without the shared state for a while.

        Raises:
            PolicyError: a negative or fractional amount.
            StoreError: the shared state cannot answer: nothing is reserved, try again later.
        """
        for name, value in (("calls", calls), ("money_cents", money_cents), ("tokens", tokens)):
            if type(value) is not int or not 0 <= value <= NO_LIMIT:
                raise PolicyError(f"{name} = {value!r} cannot be reserved: it is a whole number, not negative")
        now = self._clock.now()
        if now > run.deadline + GRACE_S:
            return Refused("run", KINDS[TIME])
        day = _day(int(now // 86_400))
        want = (calls, money_cents, tokens, 0)
        with self._lock:
            accounts = self._accounts_of(run, day)
            try:
                refused = self._take_all(accounts, want, now)
            except Unreachable:
                if effect != "read" or money_cents or tokens:
                    raise
                refused = self._lend(accounts, want, now)
            if refused is not None:
                return refused
            reservation = Reservation(next(self._numbers), run.id, calls, money_cents, tokens, day)
            self._open[reservation.id] = accounts
            return reservation

    def settle(
        self,
        reservation: Reservation,
        spent: bool,
        tokens: int | None = None,
        milliseconds: int = 0,
        moved: bool = True,
    ) -> None:
        """Close a reservation. Once; then nothing.

        Args:
            reservation: what `reserve` gave.
            spent: True keeps calls and money counted; otherwise they go back.
            tokens: what was used, more or less than was reserved; None: what was reserved if `spent`, else none.
            milliseconds: how long the tool or model was busy; charged in either case.
            moved: False gives the money back though the call was `spent`: the tool refused to move it.

        Raises:
            StoreError: the shared state cannot answer: what should have gone back stays counted.
        """
        with self._lock:
            accounts = self._open.pop(reservation.id, ())
            used = (reservation.tokens if spent else 0) if tokens is None else min(max(0, tokens), NO_LIMIT)
            back = (0, 0 if spent and moved else -reservation.money_cents, min(0, used - reservation.tokens), 0)
            behind = []
            for account in accounts:
                if account.day not in ("", reservation.day):
                    continue  # yesterday's is gone
                account.left += 0 if spent else reservation.calls
                account.owed[TOKENS] += max(0, used - reservation.tokens)
                if account.day:  # a run's time is its deadline
                    account.owed[TIME] += max(0, milliseconds)
                if any(back) or account.owed[TOKENS] or account.owed[TIME] >= account.charge_ms:
                    behind.append(account)
            for account in behind:
                self._counters.change(account, back, self._clock.now())

    def used(self, run: Run) -> tuple[int, int]:
        """Calls and cents this run has used or reserved, as this process last saw them."""
        with self._lock:
            account = self._run_account(run)
            if not any(account.counted) and not any(account.owed):
                self._counters.load(account)
            return account.counted[CALLS] + account.owed[CALLS] - account.left, account.counted[MONEY]

    def close(self) -> None:
        """Charge what is owed and give leased calls that were not used back to the day's budgets."""
        with self._lock:
            try:
                for account in self._accounts.values():
                    self._part(account)
            except StoreError as error:
                _LOG.warning("leased calls stay counted, and busy time of the last seconds does not: %s", error)

    # ---------------------------------------------------------------- taking

    def _take_all(self, accounts: tuple[Account, ...], want: Amounts, now: float) -> Refused | None:
        taken: list[Account] = []
        try:
            for account in accounts:
                refused = self._counters.take(account, want, now)
                if refused is not None:
                    self._give(taken, want, now)
                    return refused
                taken.append(account)
        except BaseException:
            self._give(taken, want, now)
            raise
        return None

    def _lend(self, accounts: tuple[Account, ...], want: Amounts, now: float) -> Refused | None:
        """Let a read through without the state: leases first, then on credit."""
        needs = [max(0, want[CALLS] - account.left) for account in accounts]
        for account, need in zip(accounts, needs, strict=True):
            refused = account.full((need, 0, 0, 0))
            if refused is not None:
                return refused
            if account.owner == "user" and account.owed[CALLS] + need > LENT:
                raise StoreError("the shared state does not answer, and reads without it are used up: try again later")
        if self._counters.silent_s > OUTAGE_S:
            raise StoreError(f"the shared state has not answered for {OUTAGE_S:g} s: try again later")
        for account, need in zip(accounts, needs, strict=True):
            account.owed[CALLS] += need
            account.left -= want[CALLS] - need
        return None

    def _give(self, accounts: list[Account], want: Amounts, now: float) -> None:
        """Undo `_take`. What the state cannot be told stays counted there."""
        for account in accounts:
            account.left += want[CALLS]
        for account in accounts:
            if want[MONEY] or want[TOKENS]:
                self._counters.change(account, (0, -want[MONEY], -want[TOKENS], 0), now)

    # ---------------------------------------------------------------- the state

    def _part(self, account: Account) -> None:
        """Charge what is owed; a day's account also gets its lease back. A run's lease ends with the run."""
        lease = account.left if account.day else 0
        if lease or any(account.owed):
            self._counters.change(account, (-lease, 0, 0, 0), self._clock.now())
            account.left -= lease

    # ---------------------------------------------------------------- accounts

    def _accounts_of(self, run: Run, day: str) -> tuple[Account, ...]:
        who = run.principal
        found = [self._run_account(run), self._day_account("user", (who.tenant, who.user), self._limits.user, day)]
        if self._of_tenants:
            found.append(self._day_account("tenant", (who.tenant,), self._limits.tenant, day))
        return tuple(found)

    def _run_account(self, run: Run) -> Account:
        # One request may be served by several agents, each under its own ceiling.
        name = _named(run.principal.tenant, run.id, run.agent.name)
        limits = (run.agent.max_calls, run.agent.max_money_cents, run.agent.max_tokens, NO_LIMIT)
        key = f"budget/run/{int(name[:8], 16) % SLOTS:03x}"
        account = self._account(key, name[:32], "run", limits, RUN_LEASE)
        account.until = max(account.until, run.deadline + GRACE_S)
        return account

    def _day_account(self, owner: str, names: tuple[str, ...], daily: DailyLimits, day: str) -> Account:
        limits = (daily.calls, daily.money_cents, daily.tokens, daily.seconds * 1000)
        account = self._account(f"budget/{owner}-day/{_named(*names)}", "", owner, limits, 1)
        if account.day != day:
            account.day = account.entry = day
            account.left, account.block = 0, 1
            account.counted, account.owed = [0, 0, 0, 0], [0, 0, 0, 0]
        return account

    def _account(self, key: str, name: str, owner: str, limits: Amounts, block: int) -> Account:
        account = self._accounts.get((key, name))
        if account is None:
            account = self._accounts[key, name] = Account(key, name, owner, limits, block=block)
            while len(self._accounts) > POOLS:
                _, oldest = self._accounts.popitem(last=False)
                with suppress(StoreError):  # a lease that cannot be given back stays counted
                    self._part(oldest)
        self._accounts.move_to_end((key, name))
        return account


class TokenMeter:
    """Budgets as `agentops.models.gateway.Meter`: what one run's model calls may use, and used."""

    def __init__(self, budgets: Budgets, run: Run) -> None:
        self._budgets, self._run = budgets, run

    def reserve(self, tokens: int) -> Reservation:
        """Set tokens aside.

        Raises:
            PolicyError: a limit would be passed; says which.
            StoreError: the shared state cannot answer.
        """
        held = self._budgets.reserve(self._run, 0, 0, tokens)
        if isinstance(held, Refused):
            raise PolicyError(held.reason)
        return held

    def settle(self, held: Reservation, tokens: int | None, milliseconds: int) -> None:
        """Charge what was used; None: what was reserved."""
        self._budgets.settle(held, True, tokens, milliseconds)


@functools.lru_cache(maxsize=POOLS)
def _named(*parts: str) -> str:
    return hashlib.sha256(canonical(list(parts))).hexdigest()


@functools.lru_cache(maxsize=8)
def _day(number: int) -> str:
    """UTC date of a day, counted from the epoch."""
    return datetime.fromtimestamp(number * 86_400, UTC).strftime("%Y-%m-%d")
