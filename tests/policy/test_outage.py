"""The shared state killed, paused and restarted: reads go on for a while, nothing else does, and nobody waits long."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from policy_world import run_of, spec_of, who

from agentops.errors import StoreError
from agentops.graph import RealClock, VirtualClock
from agentops.policy import Budgets, DailyLimits, KillSwitch, Limits, Refused, Reservation
from agentops.store import State
from agentops.types import Run

NOON = 1_764_590_400.0  # 2025-12-01 12:00 UTC
OPERATOR = who("olga", roles=("operator",))
LATER = "try again later"
PATIENCE_S = 1.2  # the state's own limit is 0.5 s; the rest is what a busy machine may take


def run_at(now: float, id: str = "run-1", user: str = "C-1") -> Run:
    return replace(run_of(id=id, user=user), deadline=now + 100)


def until(true: Callable[[], Any], seconds: float = 10.0) -> float:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


def answers(state: State) -> bool:
    try:
        state.get("x")
    except StoreError:
        return False
    return True


@pytest.fixture
def state(durable_server: Any, open_store_of: Callable[[str], State]) -> State:
    return open_store_of(durable_server.url)


def said(switch: KillSwitch, tool: str) -> str:
    return asyncio.run(asked(switch, tool))


async def asked(switch: KillSwitch, tool: str) -> str:
    try:
        return await switch.stopped(run_of(), spec_of(tool))
    except StoreError:
        return LATER


def test_reads_go_on_without_the_state_and_are_charged_when_it_is_back(
    durable_server: Any, state: State, open_store_of: Callable[[str], State]
) -> None:
    clock = VirtualClock(NOON)
    budgets = Budgets(state, clock, Limits(DailyLimits(calls=1000), DailyLimits(calls=1000)))
    assert isinstance(budgets.reserve(run_at(NOON), 1, 0), Reservation)
    durable_server.stop()

    def reads(count: int, user: str = "C-1") -> list[Reservation | Refused]:
        return [budgets.reserve(run_at(NOON, f"o-{n}", user), 1, 0, effect="read") for n in range(count)]

    began = time.monotonic()
    assert all(isinstance(one, Reservation) for one in reads(50))
    for run in (run_at(NOON), run_at(NOON, "new")):
        with pytest.raises(StoreError):
            budgets.reserve(run, 1, 1)  # money
        with pytest.raises(StoreError):
            budgets.reserve(run, 0, 0, 100)  # a model's tokens
    with pytest.raises(StoreError):
        budgets.reserve(run_at(NOON, "new"), 1, 0)  # a write
    assert time.monotonic() - began < PATIENCE_S
    with pytest.raises(StoreError, match=LATER):
        reads(30)  # 64 a user
    assert all(isinstance(one, Reservation) for one in reads(64, "C-2"))

    clock._now += 31
    with pytest.raises(StoreError, match=LATER):
        reads(1, "C-3")
    durable_server.start()
    until(lambda: answers(state))
    [read] = reads(1, "C-3")
    assert isinstance(read, Reservation)
    budgets.close()
    used = 1 + 1 + 64 + 64 + 1  # before; what was leased; on credit of two users; after
    for limit, free in ((used, False), (used + 1, True)):
        fresh = Budgets(open_store_of(durable_server.url), clock, Limits(tenant=DailyLimits(calls=limit)))
        assert isinstance(fresh.reserve(run_at(clock.now(), f"x{limit}", "C-4"), 1, 0), Reservation) == free


def test_a_known_limit_holds_without_the_state(durable_server: Any, state: State) -> None:
    budgets = Budgets(state, VirtualClock(NOON), Limits(DailyLimits(calls=5)))
    for number in range(3):
        budgets.reserve(run_at(NOON, f"r{number}"), 1, 0)
    durable_server.stop()
    granted = [budgets.reserve(run_at(NOON, f"s{number}"), 1, 0, effect="read") for number in range(4)]
    assert [isinstance(one, Reservation) for one in granted] == [True, True, False, False]
    assert granted[2] == Refused("user", "calls")


def test_a_process_that_never_reached_the_state_lets_nothing_through(durable_server: Any, state: State) -> None:
    durable_server.stop()
    with pytest.raises(StoreError):
        Budgets(state, VirtualClock(NOON)).reserve(run_at(NOON), 1, 0, effect="read")
    switch = KillSwitch(state, VirtualClock(NOON))
    assert said(switch, "get_order") == LATER


def test_the_last_known_switch_holds_for_reads_and_nothing_else_goes_on(durable_server: Any, state: State) -> None:
    clock = VirtualClock(NOON)
    switch = KillSwitch(state, clock)
    switch.kill("user:default/C-9", OPERATOR, "a stolen key")
    assert said(switch, "get_order") == ""
    durable_server.stop()
    began = time.monotonic()
    assert said(switch, "get_order") == ""
    for tool in ("cancel_order", "create_refund", "send_document", "run_code"):
        assert said(switch, tool) == LATER
    stolen = asyncio.run(switch.stopped(run_of(user="C-9"), spec_of("get_order")))
    assert "a stolen key" in stolen
    assert time.monotonic() - began < PATIENCE_S
    clock._now += 31
    assert said(switch, "get_order") == LATER
    with pytest.raises(StoreError):
        switch.kill("all", OPERATOR, "too late")
    durable_server.start()
    until(lambda: answers(state))
    assert said(switch, "get_order") == said(switch, "create_refund") == ""
    assert "a stolen key" in asyncio.run(switch.stopped(run_of(user="C-9"), spec_of("get_order")))


def test_a_restart_that_forgot_the_switch_stops_everything(server: Any, open_store_of: Callable[[str], State]) -> None:
    state = open_store_of(server.url)
    switch = KillSwitch(state, RealClock())
    switch.kill("tool:create_refund", OPERATOR, "wrong amounts")
    assert said(switch, "get_order") == ""
    server.stop()
    server.start()
    until(lambda: answers(state))
    assert "was lost" in said(switch, "get_order")
    assert "was lost" in said(switch, "create_refund")


def test_a_state_that_hangs_costs_one_wait_and_the_loop_none(durable_server: Any, state: State) -> None:
    switch = KillSwitch(state, RealClock())
    assert said(switch, "get_order") == ""
    durable_server.pause()

    async def calls() -> tuple[list[str], float, float]:
        longest, last, done = 0.0, time.monotonic(), asyncio.Event()

        async def tick() -> None:
            nonlocal longest, last
            while not done.is_set():
                await asyncio.sleep(0.01)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()

        ticking = asyncio.create_task(tick())
        slowest, found = 0.0, []
        for _ in range(20):
            began = time.monotonic()
            found += await asyncio.gather(*(asked(switch, "cancel_order") for _ in range(20)))
            slowest = max(slowest, time.monotonic() - began)
        done.set()
        await ticking
        return found, slowest, longest

    found, slowest, longest = asyncio.run(calls())
    assert all(LATER in one for one in found)
    assert 0.3 < slowest < PATIENCE_S
    assert longest < 0.45  # it would be the 0.5 s of the state
    durable_server.resume()
    assert until(lambda: answers(state)) < 3.0
    assert said(switch, "cancel_order") == ""


def test_threads_that_ask_a_hanging_state_wait_once(durable_server: Any, state: State) -> None:
    durable_server.pause()
    waits: list[float] = []

    def ask() -> None:
        for _ in range(50):
            began = time.monotonic()
            assert not answers(state)
            waits.append(time.monotonic() - began)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waits) < PATIENCE_S
    assert sum(wait > 0.2 for wait in waits) <= 4
    durable_server.resume()
    until(lambda: answers(state))


def test_a_state_that_was_never_there_leaves_no_thread_behind(open_store_of: Callable[[str], State]) -> None:
    with pytest.raises(StoreError, match="does not answer"):
        open_store_of("redis://127.0.0.1:1/0")
    until(lambda: not any(thread.name == "state-probe" for thread in threading.enumerate()))
