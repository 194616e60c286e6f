"""A process that is killed between a durable intent and the tool's effect, and what happens after a restart."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentops import audit
from agentops.act import records
from agentops.cli import auditing, main
from agentops.runtime import new_request
from agentops.workspace import local_principal

from .trapped import CUSTOMER, Trapped, environment, lines

ASK = """
import asyncio, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from trapped import CUSTOMER, Trapped, open_trap
from agentops.runtime import new_request, open_runtime
from agentops.workspace import local_principal

async def main():
    with open_trap(Path(sys.argv[2])) as workspace:
        async with open_runtime(workspace) as opened:
            desk = Trapped(workspace, opened, sys.argv[3])
            if sys.argv[4] == "resume":
                await desk.runtime.resume("request-1")
            else:
                who = local_principal(workspace, CUSTOMER)
                await desk.runtime.ask(new_request("press it", who, "session-1", id="request-1"))

asyncio.run(main())
"""


def killed_inside_the_tool(root: Path, label: str, how: str = "ask") -> None:
    """Serve a request in a process of its own and kill it with -9 when its tool has begun and done nothing yet."""
    home = root / ".agentops"
    (home / "wait").touch()
    before = len(lines(home / "entered"))
    command = [sys.executable, "-c", ASK, str(Path(__file__).parent), str(root), label, how]
    process = subprocess.Popen(command, env=environment(home))
    try:
        deadline = time.monotonic() + 60
        while len(lines(home / "entered")) == before:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        (home / "wait").unlink()


async def again(desk: Trapped) -> Any:
    """The same request of the same conversation once more, as a client does that got no answer."""
    who = local_principal(desk.workspace, CUSTOMER)
    return await desk.runtime.ask(new_request("press it", who, "session-1", id="request-1"))


def begun(root: Path) -> list[records.Unfinished]:
    return records.unfinished(audit.records(root / ".agentops" / "audit"), time.time() + 1)


def test_an_effect_that_a_crash_cut_off_is_listed_and_not_repeated(
    trap: Path,
    within: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed_inside_the_tool(trap, "press")
    assert len(lines(trap / ".agentops" / "entered")) == 1
    assert lines(trap / ".agentops" / "effects") == []

    async def after(desk: Trapped) -> tuple[Any, list[str]]:
        return await again(desk), desk.pressed()

    answer, pressed = within(after, "press")
    assert pressed == []
    assert [result.status for result in answer.results] == ["denied"]
    assert "is not repeated" in answer.results[0].error
    report = audit.verify(trap / ".agentops" / "audit")
    assert report.ok, report.lines()

    [row] = begun(trap)
    assert (row.tool, row.run, row.ended, row.effect) == ("press", "request-1", "", "write")
    assert lines(trap / ".agentops" / "entered") == [f"press {row.key}"], "the tool's own system knows it by this key"
    monkeypatch.setenv("AGENTOPS_HOME", str(trap / ".agentops"))
    assert shown(["audit", "unfinished", "--project", str(trap), "--json"], capsys, monkeypatch) == "[]\n", "too fresh"
    monkeypatch.setattr(auditing, "_SETTLED_S", -1.0)
    [told] = orjson.loads(shown(["audit", "unfinished", "--project", str(trap), "--json"], capsys, monkeypatch))
    assert (told["tool"], told["key"], told["trace"], told["ended"]) == ("press", row.key, row.trace, "")
    assert "no outcome" in shown(["audit", "unfinished", "--project", str(trap)], capsys, monkeypatch)


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints; it must end well."""
    monkeypatch.setattr(sys, "argv", ["agentops", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_a_tool_that_knows_its_key_may_be_called_again(trap: Path, within: Callable[..., Any]) -> None:
    killed_inside_the_tool(trap, "press_safely")
    assert [row.tool for row in begun(trap)] == ["press_safely"]

    async def after(desk: Trapped) -> tuple[str, list[str]]:
        answer = await again(desk)
        return answer.results[0].status, desk.pressed()

    status, pressed = within(after, "press_safely")
    assert (status, len(pressed)) == ("ok", 1)
    assert len(set(lines(trap / ".agentops" / "entered"))) == 1, "both times under one key"
    assert begun(trap) == [], "what was done under the key ends every attempt"


def test_a_resume_that_a_crash_cut_off_does_not_use_the_approval_again(trap: Path, within: Callable[..., Any]) -> None:
    async def ask(desk: Trapped) -> str:
        answer = await again(desk)
        [approval] = answer.approvals
        finance = local_principal(desk.workspace, "E-1", ("finance",))
        desk.workspace.approvals.decide(approval, True, finance, "fine")
        return answer.status

    assert within(ask, "press_vault") == "pending"
    killed_inside_the_tool(trap, "press_vault", "resume")

    async def resume(desk: Trapped) -> tuple[Any, list[str]]:
        return await desk.runtime.resume("request-1"), desk.pressed()

    answer, pressed = within(resume, "press_vault")
    assert pressed == []
    assert [result.status for result in answer.results] == ["denied"]
    assert [(row.tool, row.run) for row in begun(trap)] == [("press", "request-1")]


def intent(at: float, key: str, call: str = "c", tenant: str = "t") -> dict[str, Any]:
    named = {name: f"{name}-1" for name in ("tool", "effect", "agent", "run", "trace")}
    return {
        "type": "tool.intent",
        "at": at,
        "tenant": tenant,
        "key": key,
        "call": call,
        "log": "l",
        "index": 0,
        **named,
    }


def outcome(at: float, key: str, status: str, tenant: str = "t") -> dict[str, Any]:
    return {"type": "tool.outcome", "at": at, "tenant": tenant, "key": key, "status": status}


def test_what_counts_as_unfinished() -> None:
    found = [
        intent(1, "crashed"),
        intent(2, "done"),
        outcome(3, "done", "ok"),
        intent(4, "slow"),
        outcome(5, "slow", "timeout"),
        intent(6, "refused"),
        outcome(7, "refused", "error"),
        intent(8, "retried"),
        intent(9, "retried"),
        outcome(10, "retried", "error"),
        outcome(11, "crashed", "ok", tenant="another"),
        intent(100, "fresh"),
    ]
    rows = records.unfinished(found, before=90)
    assert [(row.key, row.at, row.ended) for row in rows] == [
        ("crashed", 1, ""),
        ("slow", 4, "timeout"),
        ("retried", 8, ""),
    ]
    assert records.unfinished([*found, outcome(101, "retried", "ok")], before=90) == rows[:2]
    assert records.unfinished([outcome(1, "only", "ok"), outcome(2, "only", "ok")], before=90) == []
