"""The kill switch: in force with the next call of every replica, and closed whenever it cannot be relied on."""

import asyncio
import json
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
from policy_world import run_of, spec_of, who

from agentops.audit import MemoryAudit
from agentops.errors import AuditError, PolicyError, StoreError
from agentops.graph import RealClock, VirtualClock
from agentops.policy import KillSwitch
from agentops.store import MemoryState, State

NOON = 1_764_590_400.0  # 2025-12-01 12:00 UTC
OPERATOR = who("olga", roles=("operator",))
WHY = "a supplier's data is wrong"


def asked(switch: KillSwitch, tool: str = "get_order", **of_run) -> str:
    return asyncio.run(switch.stopped(run_of(**of_run), spec_of(tool)))


@pytest.mark.parametrize(
    ("target", "stopped", "going"),
    [
        ("all", {}, None),
        ("tool:get_order", {}, {"tool": "cancel_order"}),
        ("agent:billing", {}, {"agent": "help"}),
        ("user:default/C-1", {}, {"user": "C-2"}),
        ("user:default/C-1", {}, {"tenant": "acme"}),
        ("tenant:default", {"user": "C-2"}, {"tenant": "acme"}),
    ],
)
def test_a_target_is_stopped_in_every_replica_and_nothing_else(
    open_store: Callable[[], State], target: str, stopped: dict, going: dict | None
) -> None:
    one, other = (KillSwitch(open_store(), VirtualClock(NOON)) for _ in range(2))
    assert asked(other, **stopped) == ""
    one.kill(target, OPERATOR, WHY)
    reason = asked(other, **stopped)
    assert reason.endswith(f"is stopped since 2025-12-01 12:00 UTC: {WHY}")
    assert "olga" not in reason
    assert "C-1" not in reason
    assert going is None or asked(other, **going) == ""
    assert [kill.target for kill in other.active()] == [target]
    other.revive(target, OPERATOR, "mended")
    assert asked(one, **stopped) == ""


@pytest.mark.parametrize(
    ("target", "stops"),
    [
        ("all", True),
        ("agent:billing", True),
        ("user:default/C-1", True),
        ("tenant:default", True),
        ("tool:get_order", False),
    ],
)
def test_a_language_model_is_stopped_too_and_a_tool_stops_none(target: str, stops: bool) -> None:
    state = MemoryState()
    switch = KillSwitch(state, VirtualClock(NOON))
    switch.kill(target, OPERATOR, WHY)
    assert bool(asyncio.run(switch.stopped(run_of()))) is stops


def test_a_user_is_stopped_as_a_service_that_acts_for_others_too() -> None:
    switch = KillSwitch(MemoryState(), VirtualClock(NOON))
    switch.kill("user:default/desk-bot", OPERATOR, WHY)
    run = run_of()
    acting = replace(run, principal=replace(run.principal, actors=("gateway", "desk-bot")))
    assert asyncio.run(switch.stopped(run, spec_of("get_order"))) == ""
    assert asyncio.run(switch.stopped(acting, spec_of("get_order"))).startswith("this user is stopped")


@pytest.mark.parametrize(
    "target",
    [
        "", "everything", "ALL", "all:x", "tool:", "tool:a b", "tool:../x", "agent:é", "user:C-1", "user:a/b/c",
        "user:/C-1", "tenant:", "tenant:a/b", "tenant:" + "x" * 65, "tool:x\n", "user:default/C-1\n",
    ],
)  # fmt: skip
def test_odd_targets_are_refused(target: str) -> None:
    switch = KillSwitch(MemoryState(), VirtualClock(NOON))
    with pytest.raises(PolicyError, match="tool:NAME"):
        switch.kill(target, OPERATOR, WHY)
    assert switch.active() == []


@pytest.mark.parametrize("reason", ["", "  ", "x" * 201, "two\nlines", "\x1b[2J"])
def test_a_reason_is_one_line(reason: str) -> None:
    switch = KillSwitch(MemoryState(), VirtualClock(NOON))
    with pytest.raises(PolicyError, match="one line"):
        switch.kill("all", OPERATOR, reason)
    assert switch.active() == []


def test_only_an_operator_in_person_may_use_it() -> None:
    audit = MemoryAudit()
    switch = KillSwitch(MemoryState(), VirtualClock(NOON), audit)
    switch.kill("tool:get_order", OPERATOR, WHY)
    for by in (who("staff", roles=("staff", "finance")), replace(OPERATOR, actors=("bot",))):
        with pytest.raises(PolicyError):
            switch.kill("all", by, WHY)
        with pytest.raises(PolicyError):
            switch.revive("tool:get_order", by, WHY)
    assert [kill.target for kill in switch.active()] == ["tool:get_order"]
    assert len(audit.records) == 1
    with pytest.raises(PolicyError, match="is not stopped"):
        switch.revive("all", OPERATOR, WHY)


def test_it_is_recorded_before_it_counts_and_names_nobody() -> None:
    state, audit = MemoryState(), MemoryAudit()
    switch = KillSwitch(state, VirtualClock(NOON), audit)
    switch.kill("user:default/C-1", OPERATOR, WHY)
    switch.revive("user:default/C-1", OPERATOR, "mended")
    assert [record["type"] for record in audit.records] == ["kill.set", "kill.revive"]
    assert not {"olga", "C-1", WHY} & set(json.dumps(audit.records).replace("/", '"').split('"'))

    class Full(MemoryAudit):
        def append_now(self, record) -> int:
            raise AuditError("the disk is full")

    with pytest.raises(AuditError):
        KillSwitch(state, VirtualClock(NOON), Full()).kill("all", OPERATOR, WHY)
    assert switch.active() == []


@pytest.mark.parametrize(
    "value",
    [
        b"", b"null", b"[]", b"{}", b"not json", b'{"changed_at": 1}', b'{"changed_at": "x", "kills": []}',
        b'{"changed_at": 1, "kills": [{"target": "tool:x"}]}',
        b'{"changed_at": 1, "kills": [{"target": "todo:x", "reason": "", "at": 1, "by": ""}]}',
        b'{"changed_at": 1, "kills": []}' + b" " * 300_000,
    ],
)  # fmt: skip
def test_a_damaged_switch_stops_everything_until_all_is_stopped_and_revived(value: bytes) -> None:
    state = MemoryState()
    switch = KillSwitch(state, VirtualClock(NOON))
    assert asked(switch) == ""
    state.put("kill", value)
    assert "damaged" in asked(switch)
    assert "damaged" in asked(KillSwitch(state, VirtualClock(NOON)))
    with pytest.raises(StoreError, match="kill all"):
        switch.kill("tool:get_order", OPERATOR, WHY)
    switch.kill("all", OPERATOR, WHY)
    assert "everything is stopped" in asked(switch)
    switch.revive("all", OPERATOR, "checked")
    assert asked(switch) == ""


def test_a_store_that_lost_or_set_back_the_switch_stops_everything() -> None:
    state, clock = MemoryState(), VirtualClock(NOON)
    switch = KillSwitch(state, clock)
    switch.kill("tool:get_order", OPERATOR, WHY)
    old, _ = state.get("kill") or (b"", 0)
    switch.kill("tool:cancel_order", OPERATOR, WHY)
    assert asked(switch, "create_refund") == ""
    state.put("kill", old)
    assert "set back" in asked(switch, "create_refund")
    _, version = state.get("kill") or (b"", 0)
    assert state.compare_and_set("kill", None, version)
    assert "was lost" in asked(switch, "create_refund")
    clock._now += 1
    switch.kill("all", OPERATOR, WHY)
    switch.revive("all", OPERATOR, "checked")
    assert asked(switch, "create_refund") == ""


def test_an_operator_with_a_slow_clock_is_heard() -> None:
    state = MemoryState()
    ahead, behind = KillSwitch(state, VirtualClock(NOON)), KillSwitch(state, VirtualClock(NOON - 3600))
    ahead.kill("tool:cancel_order", OPERATOR, WHY)
    assert asked(ahead) == ""
    behind.kill("tool:get_order", OPERATOR, WHY)
    assert "get_order is stopped" in asked(ahead)


def test_too_many_targets() -> None:
    switch = KillSwitch(MemoryState(), VirtualClock(NOON))
    for number in range(256):
        switch.kill(f"tool:t{number}", OPERATOR, WHY)
    with pytest.raises(PolicyError, match="256"):
        switch.kill("all", OPERATOR, WHY)
    switch.kill("tool:t7", OPERATOR, "another reason")  # what is stopped already is no more
    assert len(switch.active()) == 256


class Slow:
    """A remote state whose reads can be held after they were answered."""

    local = False

    def __init__(self) -> None:
        self.inner, self.reads = MemoryState(), 0
        self.answered, self.go = threading.Event(), threading.Event()
        self.go.set()

    def get(self, key: str) -> tuple[bytes, int] | None:
        self.reads += 1
        found = self.inner.get(key)
        self.answered.set()
        assert self.go.wait(10)
        return found

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


def test_a_call_never_uses_a_read_that_began_before_it() -> None:
    state = Slow()
    switch, operator = KillSwitch(state, RealClock()), KillSwitch(state.inner, RealClock())

    async def race() -> tuple[str, str]:
        state.go.clear()
        before = asyncio.create_task(switch.stopped(run_of(), spec_of("get_order")))
        await asyncio.to_thread(state.answered.wait, 10)  # its read has its answer: not stopped
        operator.kill("all", OPERATOR, WHY)
        after = asyncio.create_task(switch.stopped(run_of(), spec_of("get_order")))
        await asyncio.sleep(0.02)
        state.go.set()
        return await before, await after

    before, after = asyncio.run(race())
    assert before == ""
    assert "everything is stopped" in after


def test_calls_that_wait_together_share_a_read_and_the_loop_goes_on() -> None:
    state = Slow()
    switch = KillSwitch(state, RealClock())

    async def crowd() -> int:
        state.go.clear()
        calls = [asyncio.create_task(switch.stopped(run_of(), spec_of("get_order"))) for _ in range(50)]
        ticks = 0
        for _ in range(10):
            await asyncio.sleep(0.002)
            ticks += 1
        calls[3].cancel()  # one that gives up takes nobody with it
        calls += [asyncio.create_task(switch.stopped(run_of(), spec_of("get_order"))) for _ in range(50)]
        await asyncio.sleep(0)
        state.go.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, asyncio.CancelledError) for answer in answers].count(True) == 1
        assert answers.count("") == 99
        return ticks

    assert asyncio.run(crowd()) == 10
    assert state.reads == 2
    assert asyncio.run(crowd()) == 10  # another event loop


WORKER = """
import asyncio, json, sys, time
from pathlib import Path
from agentops.graph import RealClock
from agentops.policy import KillSwitch
from agentops.store import open_state
from agentops.types import AgentSpec, Principal, Run, ToolSpec

home, url, log, stop = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3], Path(sys.argv[4])
spec = ToolSpec("pay", "p", "", {}, "money", frozenset(), 1.0)
run = Run("r", "s", Principal("t", "u"), AgentSpec("a", frozenset(), frozenset()), 1e12)
calls = []

async def caller(switch):
    while not stop.exists():
        began = time.monotonic()
        refused = await switch.stopped(run, spec)
        calls.append((began, refused))
        await asyncio.sleep(0)

async def main():
    switch = KillSwitch(open_state(home, url), RealClock())
    Path(log + ".ready").touch()
    await asyncio.gather(*(caller(switch) for _ in range(8)))
    Path(log).write_text(json.dumps(calls))

asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_no_call_of_four_busy_processes_begins_after_the_kill(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest, open_store_of: Callable[[str], State], start: Any
) -> None:
    url = request.getfixturevalue("redis_url") if backend == "redis" else ""
    operator, stop = KillSwitch(open_store_of(url), RealClock()), tmp_path / "stop"
    logs = [tmp_path / f"calls-{number}" for number in range(4)]
    workers = [start(WORKER, str(tmp_path), url, str(log), str(stop)) for log in logs]
    deadline = time.monotonic() + 30
    while not all(Path(f"{log}.ready").exists() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    operator.kill("tool:pay", OPERATOR, WHY)
    killed = time.monotonic()  # the same clock in every process of a machine
    time.sleep(0.3)
    stop.touch()
    assert [worker.wait(30) for worker in workers] == [0, 0, 0, 0]
    late = 0
    for log in logs:
        calls = json.loads(log.read_text())
        assert any(not refused for began, refused in calls if began < killed)
        after = [refused for began, refused in calls if began > killed]
        assert len(after) > 20
        late += sum(not refused for refused in after)
    assert late == 0


class Switchboard(RuleBasedStateMachine):
    """Two replicas of a switch next to a plain set of targets."""

    TARGETS = ("all", "tool:get_order", "tool:cancel_order", "agent:help", "user:default/C-2", "tenant:acme")

    def __init__(self) -> None:
        super().__init__()
        state = MemoryState()
        self.replicas = [KillSwitch(state, VirtualClock(NOON)) for _ in range(2)]
        self.stopped: set[str] = set()

    @rule(replica=st.integers(0, 1), what=st.sampled_from(TARGETS))
    def kill(self, replica: int, what: str) -> None:
        self.replicas[replica].kill(what, OPERATOR, WHY)
        self.stopped.add(what)

    @rule(replica=st.integers(0, 1), what=st.sampled_from(TARGETS))
    def revive(self, replica: int, what: str) -> None:
        if what in self.stopped:
            self.replicas[replica].revive(what, OPERATOR, WHY)
            self.stopped.remove(what)
        else:
            with pytest.raises(PolicyError):
                self.replicas[replica].revive(what, OPERATOR, WHY)

    @invariant()
    def calls_are_stopped_as_the_set_says(self) -> None:
        for tool, agent, user, tenant in (
            ("get_order", "billing", "C-1", "default"),
            ("cancel_order", "help", "C-2", "default"),
            ("create_refund", "billing", "C-2", "acme"),
        ):
            covering = {"all", f"tool:{tool}", f"agent:{agent}", f"user:{tenant}/{user}", f"tenant:{tenant}"}
            for switch in self.replicas:
                said = asked(switch, tool, agent=agent, user=user, tenant=tenant)
                assert bool(said) == bool(covering & self.stopped)


TestSwitchboard = Switchboard.TestCase
TestSwitchboard.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
