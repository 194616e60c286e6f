"""Whole calls while the shared state is killed, restarted and hangs, and under the kill switch."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from agentops.errors import StoreError
from agentops.graph import RealClock
from agentops.types import Principal, ToolCall

OPERATOR = Principal("acme", "olga", roles=frozenset({"operator"}))


@pytest.fixture
def shared(make_desk: Any, durable_server: Any) -> Any:
    return make_desk(RealClock(), redis_url=durable_server.url)


def ask(desk: Any, tool: str, number: int = 0, **arguments: Any) -> tuple[str, str, float]:
    began = time.monotonic()
    result = asyncio.run(desk.gateway.call(desk.run(id=f"run-{number}"), ToolCall(f"c-{number}", tool, arguments)))
    return result.status, result.error, time.monotonic() - began


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_reads_go_on_and_effects_are_refused_as_to_be_tried_again(shared: Any, durable_server: Any, how: str) -> None:
    assert ask(shared, "look", order_id="A")[0] == "ok"
    (durable_server.stop if how == "killed" else durable_server.pause)()
    waits = []
    for number in range(10):
        status, _, waited = ask(shared, "work", number, seconds=0.0)
        waits.append(waited)
        assert status == "ok"
    for tool, arguments in (("cancel", {"order_id": "A"}), ("pay", {"order_id": "A", "cents": 5})):
        status, error, waited = ask(shared, tool, **arguments)
        waits.append(waited)
        assert (status, "try again later" in error) == ("error", True)
    assert max(waits) < 1.5
    assert sorted(waits)[-2] < 0.4  # only the first waits for the state
    assert shared.world.paid == []
    durable_server.start() if how == "killed" else durable_server.resume()
    for _ in range(100):
        if ask(shared, "cancel", 20, order_id="A")[0] == "ok":
            break
        time.sleep(0.05)
    assert ask(shared, "pay", 21, order_id="A", cents=5)[0] == "ok"


def test_a_killed_tool_is_denied_recorded_and_not_charged(shared: Any) -> None:
    shared.kill.kill("tool:pay", OPERATOR, "wrong amounts")
    status, error, _ = ask(shared, "pay", order_id="A", cents=5)
    assert (status, error.startswith("pay: the tool pay is stopped since")) == ("denied", True)
    [record] = shared.records("tool.decision")
    assert (record["decision"], record["policies"]) == ("deny", ["kill-switch"])
    assert shared.budgets.used(shared.run(id="run-0")) == (0, 0)
    assert ask(shared, "look", order_id="A")[0] == "ok"
    shared.kill.revive("tool:pay", OPERATOR, "mended")
    assert ask(shared, "pay", 1, order_id="A", cents=5)[0] == "ok"


def test_a_refused_call_names_its_limit(desk: Any) -> None:
    agent = replace(desk.run().agent, max_calls=1, max_money_cents=4)
    run = desk.run(agent=agent)
    assert desk.go(desk.call("pay", run, order_id="A", cents=5)).error == (
        "pay: the limit of money for this request is reached"
    )
    assert desk.go(desk.call("look", run, order_id="A")).status == "ok"
    assert desk.go(desk.call("look", run, order_id="A")).error == (
        "look: the limit of calls for this request is reached"
    )
    assert [one["policies"] for one in desk.records("tool.decision")] == [
        ["budget:run:money"], ["within-scopes"], ["budget:run:calls"],
    ]  # fmt: skip


def test_a_stopped_state_is_no_answer(shared: Any) -> None:
    shared.state.close()
    with pytest.raises(StoreError):
        asyncio.run(shared.kill.stopped(shared.run(), shared.specs["look"]))
