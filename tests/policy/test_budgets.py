"""Budgets on both real stores: never above a limit, in flight included, over threads, replicas, days and resumes."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from policy_world import run_of

from agentops.errors import PolicyError, StoreError
from agentops.graph import VirtualClock
from agentops.policy import Budgets, DailyLimits, Limits, Refused, Reservation, TokenMeter
from agentops.store import State, open_state
from agentops.types import AgentSpec, Principal, Run

LIMITS = Limits(DailyLimits(calls=1000, money_cents=100_000))
NOON = 1_764_590_400.0  # 2025-12-01 12:00 UTC


def run_at(now: float, **changes) -> Run:
    return replace(run_of(**changes), deadline=now + 30)


@pytest.fixture
def budgets(open_store: Callable[[], State]) -> Budgets:
    return Budgets(open_store(), VirtualClock(NOON), LIMITS)


def test_calls_and_money_up_to_the_agents_ceiling(budgets: Budgets) -> None:
    run = run_at(NOON)
    for used in range(1, 11):
        assert isinstance(budgets.reserve(run, 1, 0), Reservation)
        assert budgets.used(run) == (used, 0)
    assert isinstance(budgets.reserve(run, 1, 0), Refused)
    other = run_at(NOON, id="run-2")
    assert isinstance(budgets.reserve(other, 1, 30_000), Reservation)
    assert isinstance(budgets.reserve(other, 1, 20_001), Refused)
    assert isinstance(budgets.reserve(other, 1, 20_000), Reservation)
    assert budgets.used(other) == (2, 50_000)


def test_what_was_not_spent_comes_back_once(budgets: Budgets) -> None:
    run = run_at(NOON)
    held = budgets.reserve(run, 2, 40_000)
    assert isinstance(held, Reservation)
    assert budgets.used(run) == (2, 40_000)
    budgets.settle(held, False)
    budgets.settle(held, False)
    assert budgets.used(run) == (0, 0)
    kept = budgets.reserve(run, 2, 40_000)
    assert isinstance(kept, Reservation)
    budgets.settle(kept, True)
    budgets.settle(kept, False)
    assert budgets.used(run) == (2, 40_000)


def test_each_agent_of_a_request_has_its_own_ceiling(budgets: Budgets) -> None:
    billing, helper = run_at(NOON), run_at(NOON, agent="help")
    assert all(isinstance(budgets.reserve(helper, 1, 0), Reservation) for _ in range(3))
    assert isinstance(budgets.reserve(helper, 1, 0), Refused)
    assert isinstance(budgets.reserve(billing, 1, 0), Reservation)
    assert budgets.reserve(helper, 0, 1) == Refused("run", "money")  # help moves no money


def test_a_users_day_is_shared_by_all_their_runs(open_store: Callable[[], State]) -> None:
    budgets = Budgets(open_store(), VirtualClock(NOON), Limits(DailyLimits(calls=12, money_cents=60_000)))
    granted = sum(isinstance(budgets.reserve(run_at(NOON, id=f"run-{n}"), 1, 0), Reservation) for n in range(20))
    assert granted == 12
    assert isinstance(budgets.reserve(run_at(NOON, id="x", user="C-2"), 1, 50_000), Reservation)
    assert isinstance(budgets.reserve(run_at(NOON, id="y", user="C-2"), 1, 10_001), Refused)
    assert budgets.used(run_at(NOON, id="y", user="C-2")) == (0, 0)  # the run's part was given back
    assert isinstance(budgets.reserve(run_at(NOON, id="x", user="C-1", tenant="acme"), 1, 0), Reservation)


def test_a_new_day_begins_at_nought(open_store: Callable[[], State]) -> None:
    clock = VirtualClock(NOON)
    budgets = Budgets(open_store(), clock, Limits(DailyLimits(calls=4, money_cents=0)))
    held = [budgets.reserve(run_at(NOON, id=f"r{n}"), 1, 0) for n in range(5)]
    assert held[4] == Refused("user", "calls")
    clock._now += 13 * 3600
    for reservation in held[:4]:
        budgets.settle(reservation, False)  # yesterday's: must not enlarge today's budget
    granted = [budgets.reserve(run_at(clock.now(), id=f"s{n}"), 1, 0) for n in range(5)]
    assert [isinstance(one, Reservation) for one in granted] == [True] * 4 + [False]


def test_a_replica_with_a_slow_clock_does_not_wipe_the_new_day(open_store: Callable[[], State]) -> None:
    state = open_store()
    midnight = NOON + 12 * 3600
    ahead = Budgets(state, VirtualClock(midnight + 1), Limits(DailyLimits(calls=3, money_cents=0)))
    behind = Budgets(state, VirtualClock(midnight - 1), Limits(DailyLimits(calls=3, money_cents=0)))
    run = run_at(midnight)
    assert all(isinstance(ahead.reserve(replace(run, id=f"a{n}"), 1, 0), Reservation) for n in range(3))
    assert isinstance(behind.reserve(replace(run, id="b"), 1, 0), Reservation)
    assert isinstance(ahead.reserve(replace(run, id="c"), 1, 0), Refused)
    later = Budgets(state, VirtualClock(midnight + 2), Limits(DailyLimits(calls=3)))
    assert later.reserve(replace(run, id="d"), 1, 0) == Refused("user", "calls")


@pytest.mark.parametrize("replicas", [1, 5])
def test_fifty_concurrent_reservations_never_pass_a_limit(open_store: Callable[[], State], replicas: int) -> None:
    everyone = [Budgets(open_store(), VirtualClock(NOON), LIMITS) for _ in range(replicas)]
    run = run_at(NOON)
    barrier, granted = threading.Barrier(50), []

    def work(number: int) -> None:
        barrier.wait()
        granted.append((everyone[number % replicas].reserve(run, 1, 6_000), number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        sum(isinstance(reservation, Reservation) for reservation, _ in granted) == 8
    )  # 8 x 60.00 of 500.00, calls would allow 10
    assert Budgets(open_store(), VirtualClock(NOON), LIMITS).used(run)[1] == 48_000


@pytest.mark.parametrize("replicas", [1, 5])
def test_fifty_concurrent_calls_near_the_ceiling(open_store: Callable[[], State], replicas: int) -> None:
    everyone = [Budgets(open_store(), VirtualClock(NOON), LIMITS) for _ in range(replicas)]
    run = run_at(NOON)
    barrier, granted = threading.Barrier(50), []

    def work(number: int) -> None:
        barrier.wait()
        granted.append(isinstance(everyone[number % replicas].reserve(run, 1, 0), Reservation))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 10


def test_a_crash_forgets_no_reservation(open_store: Callable[[], State]) -> None:
    run = run_at(NOON)
    Budgets(open_store(), VirtualClock(NOON), LIMITS).reserve(run, 1, 30_000)
    after = Budgets(open_store(), VirtualClock(NOON), LIMITS)
    assert after.used(run)[1] == 30_000
    assert isinstance(after.reserve(run, 1, 30_000), Refused)


def test_leases_that_were_not_used_come_back_at_close(open_store: Callable[[], State]) -> None:
    for _ in range(6):
        budgets = Budgets(open_store(), VirtualClock(NOON), Limits(DailyLimits(calls=12, money_cents=0)))
        for number in range(2):
            assert isinstance(budgets.reserve(run_at(NOON, id=f"{id(budgets)}-{number}"), 1, 0), Reservation)
        budgets.close()
    last = Budgets(open_store(), VirtualClock(NOON), Limits(DailyLimits(calls=12, money_cents=0)))
    assert isinstance(last.reserve(run_at(NOON, id="last"), 1, 0), Refused)


def test_most_calls_touch_no_store(open_store: Callable[[], State]) -> None:
    class Counting:
        def __init__(self, state: State) -> None:
            self.state, self.writes = state, 0

        def compare_and_set(self, key: str, value: bytes | None, version: int, durable: bool = True) -> bool:
            self.writes += 1
            return self.state.compare_and_set(key, value, version, durable)

        def __getattr__(self, name: str):
            return getattr(self.state, name)

    counting = Counting(open_store())
    budgets = Budgets(counting, VirtualClock(NOON), LIMITS)
    for request in range(50):
        run = run_at(NOON, id=f"run-{request}")
        for _ in range(4):
            assert isinstance(budgets.reserve(run, 1, 0), Reservation)
    assert counting.writes < 80  # 200 calls of 50 runs: one write a run, and one for each lease of the user


def test_finished_runs_leave_nothing_behind(open_store: Callable[[], State]) -> None:
    state, clock = open_store(), VirtualClock(NOON)
    budgets = Budgets(state, clock, Limits(DailyLimits(calls=100_000, money_cents=0)))
    import agentops.policy.budgets as module

    slots, module.SLOTS = module.SLOTS, 4
    try:
        for number in range(100):
            budgets.reserve(run_at(clock.now(), id=f"run-{number}"), 1, 0)
            clock._now += 200
    finally:
        module.SLOTS = slots
    assert sum(len(value) for _, value, _ in state.scan("budget/run/")) < 1000


def test_a_resumed_run_keeps_what_it_has_spent(open_store: Callable[[], State]) -> None:
    clock = VirtualClock(NOON)
    state = open_store()
    Budgets(state, clock, LIMITS).reserve(run_at(NOON), 1, 40_000)
    clock._now += 20 * 3600
    resumed = Budgets(state, clock, LIMITS)
    assert resumed.used(run_at(clock.now()))[1] == 40_000
    assert isinstance(resumed.reserve(run_at(clock.now()), 1, 10_001), Refused)


def test_no_reservation_after_the_deadline(budgets: Budgets) -> None:
    assert isinstance(budgets.reserve(run_at(NOON - 1000), 1, 0), Refused)


@pytest.mark.parametrize(("calls", "money"), [(-1, 0), (0, -1), (1.0, 0), (True, 0), (1, 2**60), ("1", 0)])
def test_odd_amounts_are_refused(budgets: Budgets, calls, money) -> None:
    with pytest.raises(PolicyError, match="cannot be reserved"):
        budgets.reserve(run_at(NOON), calls, money)


@pytest.mark.parametrize("value", [b"not json", b"[]", b'{"x": 1}', b'{"x": [1, 2]}', b'{"x": ["a", 1, 2, 3, 4]}'])
def test_a_damaged_counter_allows_nothing(open_store: Callable[[], State], value: bytes) -> None:
    state = open_store()
    budgets = Budgets(state, VirtualClock(NOON), LIMITS)
    budgets.reserve(run_at(NOON), 1, 0)
    for key, _, _ in state.scan("budget/"):
        state.put(key, value)
    with pytest.raises(StoreError, match="damaged"):
        Budgets(state, VirtualClock(NOON), LIMITS).reserve(run_at(NOON), 1, 0)


def test_tokens_are_reserved_as_estimated_and_charged_as_used(open_store: Callable[[], State]) -> None:
    state = open_store()
    budgets = Budgets(state, VirtualClock(NOON), Limits(DailyLimits(tokens=300_000)))
    run = run_at(NOON)
    first = budgets.reserve(run, 0, 0, 150_000)
    assert isinstance(first, Reservation)
    assert budgets.reserve(run, 0, 0, 50_001) == Refused("run", "tokens")  # 200,000 a run
    budgets.settle(first, True, tokens=1_000)
    second = budgets.reserve(run, 0, 0, 199_000)
    assert isinstance(second, Reservation)
    assert isinstance(budgets.reserve(run, 1, 0), Reservation)  # a tool's call needs none
    budgets.settle(second, True, tokens=250_000)  # more than was reserved
    assert budgets.reserve(run, 1, 0) == Refused("run", "tokens")
    for replica in (budgets, Budgets(state, VirtualClock(NOON), Limits(DailyLimits(tokens=300_000)))):
        other = run_at(NOON, id="run-2")
        assert replica.reserve(other, 0, 0, 49_001) == Refused("user", "tokens")
        held = replica.reserve(other, 0, 0, 49_000)
        assert isinstance(held, Reservation)
        replica.settle(held, False)


@pytest.mark.parametrize("said", [-5, 0, 2**70])
def test_what_a_provider_says_it_used_frees_no_more_than_was_reserved(
    open_store: Callable[[], State], said: int
) -> None:
    budgets = Budgets(open_store(), VirtualClock(NOON), LIMITS)
    before = budgets.reserve(run_at(NOON), 0, 0, 100_000)
    held = budgets.reserve(run_at(NOON), 0, 0, 100_000)
    assert isinstance(before, Reservation)
    assert isinstance(held, Reservation)
    budgets.settle(held, True, tokens=said)
    assert budgets.reserve(run_at(NOON), 0, 0, 100_001) == Refused("run", "tokens")


def test_a_meter_holds_a_runs_models_to_its_tokens(open_store: Callable[[], State]) -> None:
    budgets = Budgets(open_store(), VirtualClock(NOON), LIMITS)
    meter = TokenMeter(budgets, run_at(NOON))
    meter.settle(meter.reserve(150_000), None, 5)
    with pytest.raises(PolicyError, match="the limit of tokens for this request is reached"):
        meter.reserve(60_000)
    meter.settle(meter.reserve(50_000), 10, 5)
    meter.reserve(49_990)


def test_a_tenants_day_is_shared_by_all_its_users(open_store: Callable[[], State]) -> None:
    limits = Limits(LIMITS.user, DailyLimits(calls=5, money_cents=60_000, tokens=1000, seconds=100))
    state = open_store()
    replicas = [Budgets(state, VirtualClock(NOON), limits) for _ in range(2)]

    def reserve(number: int, *amounts: int, tenant: str = "default") -> Reservation | Refused:
        run = run_at(NOON, id=f"r{number}", user=f"C-{number}", tenant=tenant)
        return replicas[number % 2].reserve(run, *amounts)

    assert isinstance(reserve(1, 0, 40_000), Reservation)
    assert reserve(2, 0, 20_001) == Refused("tenant", "money")
    assert isinstance(reserve(2, 0, 20_000), Reservation)
    assert isinstance(reserve(3, 0, 0, 900), Reservation)
    assert reserve(4, 0, 0, 101) == Refused("tenant", "tokens")
    assert sum(isinstance(reserve(2 * number, 1, 0), Reservation) for number in range(9)) == 5
    assert reserve(2, 1, 0) == Refused("tenant", "calls")
    assert isinstance(reserve(2, 1, 50_000, 1000, tenant="acme"), Reservation)
    assert "this tenant and day" in Refused("tenant", "calls").reason


def test_busy_time_is_charged_when_it_is_known_and_refuses_the_next_call(open_store: Callable[[], State]) -> None:
    limits = Limits(DailyLimits(seconds=10))
    state = open_store()
    one, other = (Budgets(state, VirtualClock(NOON), limits) for _ in range(2))
    for number in range(2):
        held = one.reserve(run_at(NOON, id=f"r{number}"), 1, 0)
        assert isinstance(held, Reservation)
        one.settle(held, number == 0, milliseconds=5_000)  # it was busy also when nothing came of it
    assert one.reserve(run_at(NOON, id="r3"), 1, 0) == Refused("user", "time")
    assert other.reserve(run_at(NOON, id="r4"), 1, 0) == Refused("user", "time")
    assert isinstance(other.reserve(run_at(NOON, id="r5", user="C-2"), 1, 0), Reservation)


def test_busy_time_of_short_calls_is_charged_at_the_latest_at_close(open_store: Callable[[], State]) -> None:
    limits = Limits(DailyLimits(seconds=10))
    one = Budgets(open_store(), VirtualClock(NOON), limits)
    run = run_at(NOON)
    for _ in range(9):
        held = one.reserve(run, 1, 0)
        assert isinstance(held, Reservation)
        one.settle(held, True, milliseconds=1_111)
    one.close()
    other = Budgets(open_store(), VirtualClock(NOON), limits)
    held = other.reserve(run_at(NOON, id="last"), 1, 0)
    assert isinstance(held, Reservation)
    other.settle(held, True, milliseconds=1)
    assert other.reserve(run_at(NOON, id="over"), 1, 0) == Refused("user", "time")


WORKER = r"""
import asyncio, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from agentops.graph import VirtualClock
from agentops.policy import Budgets, DailyLimits, Limits, Reservation
from agentops.store import open_state
from agentops.types import AgentSpec, Principal, Run

home, url, log, number = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3], int(sys.argv[4])
limits = Limits(DailyLimits(200, 100_000, 50_000), DailyLimits(300, 150_000, 80_000))
budgets = Budgets(open_state(home, url), VirtualClock(1_764_590_400.0), limits)
agent = AgentSpec("a", frozenset(), frozenset(), max_calls=60, max_money_cents=50_000)
file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def take(n):
    calls, money, tokens = [(1, 0, 0), (1, 900, 0), (0, 0, 700)][n % 3]
    user = f"u{n % 2}"
    run = Run(f"r{user}{n % 5}", "s", Principal("t", user), agent, 1_764_590_500.0)
    held = budgets.reserve(run, calls, money, tokens)
    if isinstance(held, Reservation):
        os.write(file, f"{run.id} {user} {calls} {money} {tokens} {number}\n".encode())
        if n % 7 == 0:
            os.write(file, f"{run.id} {user} {-calls} {-money} {-tokens} {number}\n".encode())
            budgets.settle(held, False)
        else:
            budgets.settle(held, True, milliseconds=1)

async def main():
    os.write(file, b"ready\n")
    while not os.path.exists(log + ".go"):
        await asyncio.sleep(0.005)
    with ThreadPoolExecutor(25) as pool:
        threads = [asyncio.get_running_loop().run_in_executor(pool, take, n) for n in range(300)]
        async def in_loop(n):
            await asyncio.sleep(0)
            take(n)
        await asyncio.gather(*threads, *(in_loop(n) for n in range(25)))

asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_four_processes_one_of_them_killed_never_pass_a_limit(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest, open_store_of: Callable[[str], State], start: Any
) -> None:
    url = request.getfixturevalue("redis_url") if backend == "redis" else ""
    open_store_of(url)
    log = tmp_path / "log"
    workers = [start(WORKER, str(tmp_path), url, str(log), str(number)) for number in range(4)]
    deadline = time.monotonic() + 40
    while not log.exists() or log.read_text().count("ready") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "log.go").touch()
    while sum(line.endswith(" 0") for line in log.read_text().splitlines()) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    workers[0].kill()
    assert [worker.wait(60) for worker in workers] == [-9, 0, 0, 0]
    totals: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        if line == "ready":
            continue
        run, user, *amounts, _ = line.split()
        for name in (run, user, "tenant"):
            total = totals.setdefault(name, [0, 0, 0])
            totals[name] = [one + int(more) for one, more in zip(total, amounts, strict=True)]
    limits = {"r": (60, 50_000, 200_000), "u": (200, 100_000, 50_000), "t": (300, 150_000, 80_000)}
    for name, total in totals.items():
        assert all(used <= limit for used, limit in zip(total, limits[name[0]], strict=True)), (name, total)
    assert totals["tenant"][0] > 150  # a killed process takes its leases with it, not more
    assert totals["tenant"][2] > 50_000
    counted = Budgets(open_store_of(url), VirtualClock(NOON), Limits())
    for name, total in totals.items():  # nothing that was granted is forgotten
        if name.startswith("r"):
            agent = AgentSpec("a", frozenset(), frozenset(), max_calls=60, max_money_cents=50_000)
            run = Run(name, "s", Principal("t", name[1:3]), agent, NOON + 100)
            assert counted.used(run)[1] >= total[1]


class Ledger(RuleBasedStateMachine):
    """Two replicas, three runs of one user, time that moves: the model is what was granted and not given back."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.state = open_state(Path(self.folder.name), None)
        self.clock = VirtualClock(NOON)
        limits = Limits(DailyLimits(30, 70_000, 500), DailyLimits(28, 80_000, 700))
        self.replicas = [Budgets(self.state, self.clock, limits) for _ in range(2)]
        self.held: list[tuple[int, str, object]] = []
        self.spent: dict[str, list[int]] = {}
        self.tokens = 0

    @rule(
        replica=st.integers(0, 1),
        run=st.sampled_from(["a", "b", "c"]),
        calls=st.integers(0, 4),
        money=st.sampled_from([0, 0, 9_000, 30_000]),
        tokens=st.sampled_from([0, 0, 60, 200]),
    )
    def reserve(self, replica: int, run: str, calls: int, money: int, tokens: int) -> None:
        reservation = self.replicas[replica].reserve(run_at(self.clock.now(), id=run), calls, money, tokens)
        if isinstance(reservation, Reservation):
            self.held.append((replica, run, reservation))
            used = self.spent.setdefault(run, [0, 0])
            used[0] += calls
            used[1] += money
            assert not tokens or self.tokens + tokens <= 500, "granted above what was used"
            self.tokens += tokens

    @rule(spent=st.booleans(), tokens=st.none() | st.integers(0, 300), data=st.data())
    def settle(self, spent: bool, tokens: int | None, data: st.DataObject) -> None:
        if not self.held:
            return
        replica, run, reservation = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.replicas[replica].settle(reservation, spent, tokens, milliseconds=10)
        self.tokens -= reservation.tokens
        self.tokens += (reservation.tokens if spent else 0) if tokens is None else tokens
        if not spent:
            self.spent[run][0] -= reservation.calls
            self.spent[run][1] -= reservation.money_cents

    @rule()
    def wait(self) -> None:
        self.clock._now += 5

    @invariant()
    def no_limit_is_passed(self) -> None:
        assert all(calls <= 10 and money <= 50_000 for calls, money in self.spent.values())
        assert sum(calls for calls, _ in self.spent.values()) <= 28
        assert sum(money for _, money in self.spent.values()) <= 70_000

    def teardown(self) -> None:
        self.state.close()
        self.folder.cleanup()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
