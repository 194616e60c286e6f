"""`agentops prune` removes what ended long ago, and nothing that somebody still waits for."""

import asyncio
import time
import uuid

import pytest

from agentops import threads
from agentops.errors import StoreError
from agentops.graph import VirtualClock
from agentops.policy import Approvals
from agentops.store import MemoryState
from agentops.types import AgentSpec, Decision, Principal, Run, ToolCall, ToolSpec

SPEC = ToolSpec("pay", "desk", "Pay.", {"type": "object", "properties": {}}, "money", frozenset({"w"}), 1.0, digest="d")
FINANCE = Principal("acme", "fred", roles=frozenset({"finance"}))


def test_ended_approvals_go_and_open_ones_stay() -> None:
    clock, state = VirtualClock(1_000_000.0), MemoryState()
    approvals = Approvals(state, clock)
    run = Run("r", "s", Principal("acme", "ann"), AgentSpec("desk", frozenset({"pay"}), frozenset()), 2e6)
    asked = Decision("approve", "why", ("p",), "digest", "finance")

    def ask(key: str) -> str:
        return approvals.request(run, ToolCall(key, "pay", {}, idempotency_key=key), SPEC, asked).id

    denied, used = ask("denied"), ask("used")
    approvals.decide(denied, False, FINANCE)
    approvals.decide(used, True, FINANCE)
    assert approvals.consume(used, ToolCall("used", "pay", {}, idempotency_key="used"), SPEC, "digest", run)
    asyncio.run(clock.drive(clock.sleep(10_000.0)))
    waiting = ask("waiting")
    assert approvals.prune(before=clock.now() - 20_000) == 0
    assert approvals.prune(before=clock.now() - 5_000) == 2
    assert [one.id for one in approvals.list("")] == [waiting]
    assert len(state.scan("approvals/call/")) == 1
    asyncio.run(clock.drive(clock.sleep(3 * 86_400.0)))
    assert approvals.prune(before=clock.now() - 86_400) == 1, "it expired two days ago"


def test_a_conversation_that_waits_too_long_is_deleted(tmp_path) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    async def write() -> None:
        async with threads.checkpointer(tmp_path) as saver:
            for thread in ("old", "new"):
                config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
                checkpoint = empty_checkpoint()
                if thread == "old":  # a version 6 UUID of 2001-09-09
                    ticks = (1_000_000_000 + 12_219_292_800) * 10_000_000
                    checkpoint["id"] = str(
                        uuid.UUID(int=(ticks >> 12) << 80 | 0x6 << 76 | (ticks & 0xFFF) << 64 | 1 << 63)
                    )
                await saver.aput(config, checkpoint, {}, {})

    async def left() -> list[str]:
        async with threads.checkpointer(tmp_path) as saver:
            return [item.config["configurable"]["thread_id"] async for item in saver.alist(None)]

    assert threads.prune(tmp_path, time.time()) == 0, "there is none yet"
    asyncio.run(write())
    assert threads.prune(tmp_path, 999_999_999.0) == 0
    assert threads.prune(tmp_path, time.time() - 60) == 1
    assert asyncio.run(left()) == ["new"]
    (tmp_path / "threads.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(StoreError, match="restore it or move it away"):
        threads.prune(tmp_path, 0.0)
