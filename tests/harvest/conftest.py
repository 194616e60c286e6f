"""Episodes to harvest, built by hand, and a redactor with a fixed key."""

from collections.abc import Callable
from typing import Any

import pytest

from agentops.redact import Redactor
from agentops.types import Outcome, StepRecord, Trajectory

GOOD, BAD, UNKNOWN = Outcome(1, "verdict:test"), Outcome(0, "verdict:test"), Outcome(None)


@pytest.fixture(scope="session")
def redactor() -> Redactor:
    return Redactor(b"a key for tests, thirty-two bytes")


@pytest.fixture(scope="session")
def episode() -> Callable[..., Trajectory]:
    return make


def make(
    trace: str,
    text: str = "where is my order",
    *calls: tuple[str, dict[str, Any], Any] | tuple[str, dict[str, Any], Any, str],
    answer: str = "It is on its way.",
    outcome: Outcome = GOOD,
    **more: Any,
) -> Trajectory:
    """An episode with one user turn: each call (tool, arguments, result, status "ok") is a turn of its own."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    steps = []
    for number, (tool, arguments, result, *status) in enumerate(calls):
        id = f"{trace}-{number}"
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": id, "content": str(result)})
        start = float(number)
        steps.append(
            StepRecord(id, tool, arguments, *(status or ["ok"]), result=result, started_at=start, ended_at=start + 1)
        )
    if answer:
        messages.append({"role": "assistant", "content": answer})
    given = {
        "trace_id": trace,
        "service": "desk",
        "started_at": 0.0,
        "ended_at": float(len(calls) or 1),
        "messages": tuple(messages),
        "steps": tuple(steps),
        "answer": answer,
        "outcome": outcome,
        "tenant": "acme",
    }
    return Trajectory(**{**given, **more})
