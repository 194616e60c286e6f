"""The gateway's benchmark measures what it says: governed calls run the tool, each with its records on disk."""

import asyncio
import time
from pathlib import Path

from agentops.audit import records, verify
from benchmarks import gateway


def test_every_governed_call_has_an_intent_and_an_outcome_on_disk(tmp_path: Path) -> None:
    desk = gateway.Desk(tmp_path)
    call = desk.call("write_note", 0.0)
    taken, whole = asyncio.run(gateway.latencies(call, callers=4, calls=24))
    desk.close()
    assert len(taken) == 24
    assert 0 < max(taken) <= whole
    found = [one["type"] for one in records(tmp_path / "audit")]
    assert (found.count("tool.intent"), found.count("tool.outcome")) == (24, 24)
    assert verify(tmp_path / "audit").ok


def test_each_way_gives_the_same_result_and_waits_for_the_tool(tmp_path: Path) -> None:
    async def both() -> tuple[object, object]:
        desk = gateway.Desk(tmp_path, durable=False)
        began = time.perf_counter()
        bare = await gateway.bare("write_note", 0.02)(7)
        governed = await desk.call("write_note", 0.02)(7)
        assert time.perf_counter() - began >= 0.04
        answer = await gateway.toolnode("write_note", 0.0)(7)
        desk.close()
        assert "SO-10007" in answer["messages"][0].content  # type: ignore[index]
        return bare, governed

    bare, governed = asyncio.run(both())
    assert bare == governed
