"""Tools in the gateway's process reach nothing outside it, and everything else goes on as before."""

import asyncio
import ctypes
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.act.files import open_beneath
from agentops.act.sandbox.guard import in_tool


def _fetch(port: int) -> None:
    import urllib.request

    urllib.request.urlopen(f"http://127.0.0.1:{port}/ok", timeout=2).read()


def _httpx(port: int) -> None:
    import httpx

    httpx.get(f"http://127.0.0.1:{port}/ok", trust_env=False)


def _datagram(port: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as end:
        end.sendto(b"x", ("127.0.0.1", port))


REACHING: dict[str, Callable[[int], Any]] = {
    "connect": lambda port: socket.create_connection(("127.0.0.1", port)).close(),
    "urllib": _fetch,
    "httpx": _httpx,
    "bind": lambda _: socket.create_server(("127.0.0.1", 0)).close(),
    "datagram": _datagram,
    "lookup": lambda _: socket.getaddrinfo("localhost", 80),
    "process": lambda _: subprocess.run([sys.executable, "-c", "pass"], check=True),
    "system": lambda _: os.system("true"),
    "spawn": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "fork": lambda _: os.fork() or os._exit(0),
    "exec": lambda _: os.execv("/bin/true", ["true"]),
    "library": lambda _: ctypes.CDLL(None),
}


@pytest.mark.parametrize("kind", REACHING)
def test_reaching_outside_is_refused_inside_a_tool(server: Any, kind: str) -> None:
    before = len(server.seen)
    with in_tool(), pytest.raises(Exception, match="may not use"):
        REACHING[kind](server.port)
    assert len(server.seen) == before


def test_outside_a_tool_nothing_changes(server: Any) -> None:
    with in_tool():
        pass
    for kind in ("connect", "urllib", "process", "library"):
        REACHING[kind](server.port)


def test_tasks_and_threads_of_a_tool_are_inside_it_and_others_are_not(server: Any) -> None:
    def reach() -> None:
        REACHING["connect"](server.port)

    async def tool() -> list[str]:
        with in_tool():
            answers = await asyncio.gather(
                asyncio.create_task(asyncio.to_thread(reach)),
                asyncio.create_task(_open(server.port)),
                return_exceptions=True,
            )
        return [type(answer).__name__ for answer in answers]

    async def both() -> None:
        refused, _ = await asyncio.gather(tool(), _open(server.port))
        assert refused == ["Reaching", "Reaching"]
        await _open(server.port)

    asyncio.run(both())


async def _open(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()


def test_what_an_honest_tool_needs_works(tmp_path: Path) -> None:
    async def tool() -> int:
        with in_tool():
            with sqlite3.connect(tmp_path / "world.db") as db:
                db.execute("CREATE TABLE t (a)")
            db.close()
            (tmp_path / "file").write_text("x")
            os.close(open_beneath(tmp_path, "file"))
            await asyncio.sleep(0)
            return await asyncio.to_thread(lambda: 1) + await asyncio.wait_for(asyncio.sleep(0, 2), 1)

    assert asyncio.run(tool()) == 3

    def loop_inside() -> int:
        with in_tool():
            return asyncio.run(asyncio.sleep(0, 5))

    assert loop_inside() == 5


def test_an_event_that_is_not_listed_costs_little() -> None:
    code = (
        "import sys, time\n"
        "def cost():\n"
        "    best = 1.0\n"
        "    for _ in range(5):\n"
        "        start = time.thread_time()\n"
        "        for _ in range(20_000): sys.audit('some.event', 1)\n"
        "        best = min(best, (time.thread_time() - start) / 20_000)\n"
        "    return best\n"
        "before = cost()\n"
        "from agentops.act.sandbox.guard import in_tool\n"
        "with in_tool(): inside = cost()\n"
        "print(max(0.0, inside - before))\n"
    )
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(added) < 1e-6
