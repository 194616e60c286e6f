"""Isolated tools run in processes of their own, which cannot harm whoever calls them."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agentops.act import Labels, Marked
from agentops.errors import SandboxError, ToolError


def test_a_call_gets_its_arguments_and_nothing_that_identifies_the_user(lab: Any) -> None:
    answer = lab.go("echo", text="hello")
    assert answer["text"] == "hello"
    assert answer["user"].startswith("<USER:")
    assert answer["world"] is None


def test_a_worker_is_used_again_by_its_tenant_and_by_no_other(lab: Any) -> None:
    first = lab.go("echo", text="a", context=lab.context("blue"))
    second = lab.go("echo", text="b", context=lab.context("blue"))
    other = lab.go("echo", text="c", context=lab.context("red"))
    assert second["calls"] == first["calls"] + 1
    assert other["calls"] == 1


def test_a_fresh_tool_finds_nothing_of_earlier_calls(lab: Any) -> None:
    assert [lab.go("once", text="x")["calls"] for _ in range(3)] == [1, 1, 1]


def test_labels_of_parts_come_back(lab: Any) -> None:
    assert lab.go("marked") == {"subject": Marked("from outside", Labels("untrusted", "personal")), "n": 1}


def test_a_refusal_is_a_tool_error_and_the_worker_lives_on(lab: Any) -> None:
    before = lab.go("echo", text="a")["process"]
    with pytest.raises(ToolError, match="no such order"):
        lab.go("misbehave", kind="refuse")
    assert lab.go("echo", text="a")["process"] == before


@pytest.mark.parametrize(
    ("kind", "text"),
    [("fault", "ValueError"), ("object", "not JSON serializable: object"), ("big", "bytes"), ("exit", "SystemExit")],
)
def test_a_fault_ends_the_call_and_names_nobody(lab: Any, kind: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text) as caught:
        lab.go("misbehave", kind=kind)
    assert "ann@example.com" not in str(caught.value)


def test_a_process_that_dies_is_an_error_and_the_next_call_works(lab: Any) -> None:
    with pytest.raises(SandboxError, match="ended"):
        lab.go("misbehave", kind="die")
    assert lab.go("echo", text="again")["text"] == "again"


@pytest.mark.parametrize("kind", ["sleep", "spin", "wait", "children"])
def test_what_does_not_end_is_killed_with_all_its_children(lab: Any, kind: str, living: Any) -> None:
    lab.go("echo", text="warm")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        lab.go("misbehave", timeout_s=0.5, kind=kind)
    assert time.monotonic() - started < 1.5
    lab.workers.close()
    deadline = time.monotonic() + 5
    while living() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not living()


def test_a_cancelled_call_leaves_nothing_running(lab: Any, living: Any) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(lab.call("misbehave", kind="spin"))
        await asyncio.sleep(1.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    lab.loop.run_until_complete(cancelled())
    lab.workers.close()
    assert not living()


def test_output_is_bounded_and_only_in_the_debug_log_redacted(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "agentops.act.sandbox"):
        assert lab.go("misbehave", kind="verbose") == "done"
        lab.go("echo", text="write to ann@example.com")
    printed = [record.getMessage() for record in caplog.records if "printed" in record.getMessage()]
    assert any("yyyy" in text for text in printed)
    assert all(len(text) < 70_000 for text in printed)
    assert not any("ann@example.com" in text for text in printed)
    assert any("seen write to" in text for text in printed)


def test_endless_output_ends_the_process(lab: Any) -> None:
    with pytest.raises(SandboxError, match="printed more than"):
        lab.go("misbehave", kind="flood")


LIES = ["length", "empty", "json", "deep", "list", "other", "bool", "ask", "types", "unasked", "listed", "storm"]


@pytest.mark.parametrize("kind", [*LIES, "surrogate", "kind", "extra", "labels", "unhashable"])
def test_a_lie_in_the_protocol_ends_the_process(lab: Any, kind: str) -> None:
    with pytest.raises(SandboxError):
        lab.go("lie", kind=kind, context=lab.context("liar"))


def test_after_a_lie_another_process_answers(lab: Any) -> None:
    assert lab.go("echo", text="fine", context=lab.context("liar"))["calls"] == 1


def test_an_answer_given_in_advance_is_not_taken_for_the_next_call(lab: Any) -> None:
    context = lab.context("late")
    assert lab.go("lie", kind="late", context=context) == "ok"
    time.sleep(0.6)
    assert lab.go("echo", text="true", context=context)["text"] == "true"


def test_a_process_sees_its_pack_and_declared_files_and_nothing_else(lab: Any, tmp_path: Path) -> None:
    os.environ["LAB_TEST_SECRET"] = "in-the-environment"
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    hidden = [str(lab.root / path) for path in ("policies/base.cedar", "policies/secrets.toml", ".agentops/world.db")]
    hidden += [f"/proc/{os.getpid()}/environ", "/etc/shadow", str(tmp_path / "secret")]
    try:
        lab.workers.close()
        seen = lab.go("look", paths=[*hidden, str(lab.root / "data"), str(lab.root / "tools/secrets_of_tools.txt")])
    finally:
        os.close(secret)
        del os.environ["LAB_TEST_SECRET"]
    paths = seen["paths"]
    assert all(paths[path] in ("FileNotFoundError", "PermissionError", "NotADirectoryError") for path in hidden), paths
    assert "list.txt" in paths[str(lab.root / "data")]
    assert paths[str(lab.root / "tools/secrets_of_tools.txt")] == "tools are readable"
    assert set(seen["environ"]) <= {"PATH", "LANG", "PWD", "LC_CTYPE", "HOME"}
    assert len(seen["fds"]) <= 7  # three streams, the channel, three of the event loop


def test_files_are_read_beneath_the_declared_folders_only(lab: Any) -> None:
    assert lab.go("read", path="data/list.txt") == "one\ntwo\n"
    for path in (
        "policies/secrets.toml",
        "/etc/passwd",
        "data/../policies/base.cedar",
        "datax",
        "tools/lab/__init__.py",
    ):
        with pytest.raises((SandboxError, ToolError)):
            lab.go("read", path=path)
    with pytest.raises(ToolError, match="link"):
        lab.go("read", path="data/link.txt")


def test_a_changed_source_is_refused_by_processes_that_know_the_old_one(lab: Any) -> None:
    from dataclasses import replace

    tool = lab.tools.echo
    changed = type(tool)(replace(tool.spec, digest="sha256:other"), tool.function)
    with pytest.raises(SandboxError, match="restart"):
        lab.loop.run_until_complete(lab.workers.call(changed, lab.context(), {"text": "x"}, 20.0))


def test_only_tools_of_the_project_are_isolated_here(lab: Any) -> None:
    from agentops.act import Context, tool
    from agentops.types import Isolation

    @tool(effect="read", scopes={"r"}, timeout_s=1, isolation=Isolation())
    async def stray(ctx: Context) -> str:
        """Defined in a test."""
        return "x"

    with pytest.raises(SandboxError, match="belong into tools/"):
        lab.loop.run_until_complete(lab.workers.call(stray, lab.context(), {}, 5.0))


def test_too_weak_isolation_is_an_error_not_a_weaker_process(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.act.sandbox.level.detect", lambda: "none")
    if lab.tools.LAB.least == "none":
        pytest.skip("this machine has no isolation at all")
    lab.workers.close()
    with pytest.raises(SandboxError, match="isolation"):
        lab.go("echo", text="x")
    lab.workers.close()


def test_calls_at_once_share_few_processes(lab: Any) -> None:
    async def many() -> set[int]:
        answers = await asyncio.gather(*(lab.call("echo", text=str(n), context=lab.context("busy")) for n in range(40)))
        assert [answer["text"] for answer in answers] == [str(n) for n in range(40)]
        return {answer["process"] for answer in answers}

    lab.workers.close()
    assert len(lab.loop.run_until_complete(many())) <= 4


def test_idle_processes_are_ended(lab: Any, living: Any) -> None:
    lab.workers.close()
    workers = lab.make(idle_s=0.3)
    try:
        lab.loop.run_until_complete(workers.call(lab.tools.echo, lab.context(), {"text": "x"}, 20.0))
        assert living()
        deadline = time.monotonic() + 8
        while living() and time.monotonic() < deadline:
            lab.loop.run_until_complete(asyncio.sleep(0.1))
        assert not living()
        lab.loop.run_until_complete(workers.call(lab.tools.echo, lab.context(), {"text": "x"}, 20.0))
    finally:
        workers.close()
    assert not living()


def test_nothing_is_left_after_many_calls_and_kills(lab: Any, living: Any) -> None:
    lab.workers.close()
    lab.loop.run_until_complete(asyncio.sleep(0.1))
    folders = set(Path("/tmp").glob("agentops-sandbox-*"))
    fds = len(os.listdir("/proc/self/fd"))

    async def used() -> None:
        for _ in range(200):
            await lab.call("echo", text="x")
        for _ in range(6):
            with pytest.raises(TimeoutError):
                await lab.call("misbehave", timeout_s=0.05, kind="children")

    lab.loop.run_until_complete(used())
    lab.workers.close()
    lab.loop.run_until_complete(asyncio.sleep(0.1))
    assert not living()
    assert set(Path("/tmp").glob("agentops-sandbox-*")) <= folders
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_tenants_take_turns_where_processes_are_few(lab: Any, living: Any) -> None:
    lab.workers.close()
    workers = lab.make(max_workers=1)

    async def turns() -> list[int]:
        given = [("blue", "a"), ("red", "b")] * 3
        calls = (workers.call(lab.tools.echo, lab.context(tenant), {"text": text}, 20.0) for tenant, text in given)
        return [answer["calls"] for answer in await asyncio.gather(*calls)]

    async def crowded() -> None:
        held = asyncio.ensure_future(workers.call(lab.tools.misbehave, lab.context(), {"kind": "wait"}, 1.5))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await workers.call(lab.tools.echo, lab.context(), {"text": "no process is free"}, 0.5)
        with pytest.raises(TimeoutError):
            await held

    try:
        assert lab.loop.run_until_complete(turns()) == [1] * 6
        lab.loop.run_until_complete(crowded())
    finally:
        workers.close()
    assert not living()
