"""Keeps tools that run in the gateway's process from opening sockets, starting processes and loading native code.

Invariant: inside `in_tool` (and in what asyncio tasks and `asyncio.to_thread` carry it into) the interpreter's audit
events for these raise an error that is both SandboxError and PermissionError. Outside it nothing changes; an event that
is not listed costs one set look-up.

It stops honest mistakes and most injected code. It does not stop native code, code that tampers with the interpreter,
or work that does not carry the context along (a `threading.Thread`, an executor, a task with a context of its own):
code that may be hostile belongs in a process of its own, with `isolation=Isolation(…)`.
"""

import errno
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from agentops.errors import SandboxError

# Python's table of audit events, https://docs.python.org/3.11/library/audit_events.html
_EVENTS = frozenset(
    {
        *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
        *("socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"),
        *("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.system"),
        *("pty.spawn", "ctypes.dlopen", "ctypes.dlsym", "sqlite3.enable_load_extension", "sqlite3.load_extension"),
        *("os.putenv", "os.unsetenv", "sys.addaudithook"),
    }
)
_inside: ContextVar[bool] = ContextVar("inside an in-process tool", default=False)
_installing = Lock()
_installed = False


class Reaching(SandboxError, PermissionError):
    """Refused by the guard. It is an OSError too, so that libraries close what they had opened."""


@contextmanager
def in_tool() -> Generator[None]:
    """The code of an in-process tool runs inside this.

    Raises:
        SandboxError: from within, when the tool reaches outside its process.
    """
    if not _installed:
        _install()
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _install() -> None:
    global _installed
    with _installing:
        if not _installed:  # a hook cannot be removed, so there is one for the life of the process
            import ctypes  # noqa: F401 - importing it loads a library, which a tool may not do later

            sys.addaudithook(_hook)
            _installed = True


def _hook(event: str, _: tuple[Any, ...]) -> None:
    if event in _EVENTS and _inside.get():
        raise Reaching(
            errno.EPERM,
            f"a tool in the gateway's process may not use {event}: reach services through ctx.fetch or ctx.connect, "
            "with isolation=Isolation(hosts=…) on the tool",
        )
