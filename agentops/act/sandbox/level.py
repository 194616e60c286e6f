"""Which isolation this machine gives: tried out, not looked up.

Invariant: a level is offered only after a child at that level failed to read a file and to make a socket.
It decides nothing about a tool: its caller says which level is the least.
"""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from agentops.act.sandbox import bubblewrap, landlock
from agentops.act.sandbox.process import Sandboxed, Stream, start
from agentops.act.sandbox.profile import Profile
from agentops.errors import SandboxError
from agentops.types import Level

ORDER: tuple[Level, ...] = ("none", "landlock", "bubblewrap")  # weakest first

_PROBE = """
import socket, sys
for attempt in (lambda: open(sys.argv[1]), lambda: open(sys.argv[1], "r+"), socket.socket):
    try:
        attempt()
    except OSError:
        continue
    raise SystemExit(f"{attempt} was not refused")
print("held", flush=True)
"""


@functools.cache
def missing(level: Level) -> str:
    """What this machine lacks for `level`: "" when a child was held by it. Tried once in a process."""
    if level == "none":
        return ""
    if level == "bubblewrap" and not bubblewrap.executable():
        return "bubblewrap is not installed (package `bubblewrap`)"
    if level == "landlock" and not landlock.abi():
        return "the kernel has no Landlock (Linux 5.13 or newer, with `landlock` in its list of security modules)"
    with tempfile.NamedTemporaryFile() as secret:
        os.chmod(secret.name, 0o666)  # noqa: S103 - only the isolation refuses it, not the mode
        command = [sys.executable, "-I", "-S", "-c", _PROBE, secret.name]
        try:
            with start(level, command, Profile(), stdout=subprocess.PIPE) as probe:
                said, _ = probe.process.communicate(timeout=30)
        except (SandboxError, subprocess.TimeoutExpired) as error:
            return str(error)
    return "" if said == b"held\n" else f"a probe at level {level!r} was not held"


def detect() -> Level:
    """The strongest level that works here."""
    return next(level for level in reversed(ORDER) if not missing(level))


def spawn(
    argv: Sequence[str],
    profile: Profile,
    *,
    least: Level,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Sandboxed:
    """Run `argv` at the strongest level that works here; the arguments are those of `process.start`.

    It blocks until the restrictions are in place (tens of milliseconds): call it from a thread in asynchronous code.

    Raises:
        SandboxError: that level is below `least`, or the restrictions could not be put in place.
    """
    level = detect()
    if ORDER.index(level) < ORDER.index(least):
        lacks = "; ".join(missing(better) for better in ORDER[ORDER.index(level) + 1 :])
        raise SandboxError(f"a tool needs isolation {least!r} and this machine gives {level!r}: {lacks}")
    return start(level, argv, profile, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds, env=env)
