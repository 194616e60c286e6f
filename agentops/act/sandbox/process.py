"""Start a process at a given isolation level, and end it with everything it started.

Invariant: `start` returns a process only after its restrictions are in place; otherwise nothing of it is left running.
It does not choose the level (`level` does) and does not speak with the process.
"""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from agentops.act.sandbox import bubblewrap, landlock, seccomp, shim
from agentops.act.sandbox.profile import SHIM, Profile, interpreter, system
from agentops.errors import SandboxError
from agentops.types import Level

Stream = int | IO[bytes]
START_S = 30.0  # longest wait for the restrictions to be in place; a busy machine needs well under a second
_ORDERS_BYTES = 65_536  # what a pipe takes at once
_KILL_S = 10.0  # longest wait for the end of what was killed
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@dataclass(slots=True, eq=False)
class Sandboxed:
    """A running isolated process. `process.wait()` gives the command's exit status, or 128+n after signal n.

    `kill` must be called, also after the command has ended; a `with` block does so.
    """

    level: Level
    process: subprocess.Popen[bytes]  # the outermost process: bubblewrap or the supervisor
    _scratch: tuple[str, tuple[int, int]] | None = field(default=None, repr=False)  # None where it is bubblewrap's own
    _handle: int = field(default=-1, repr=False)  # pidfd of bubblewrap's first process, or the supervisor's lifeline
    _ended: bool = field(default=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def pid(self) -> int:
        """The outermost process, as this machine counts."""
        return self.process.pid

    def kill(self) -> None:
        """End every descendant and remove the scratch folder. Idempotent; returns when they are gone.

        Raises:
            SandboxError: something is left after 10 s.
        """
        with self._lock:
            if self._ended:
                return
            self._ended = True
            try:
                self._tell()
                self.process.wait(_KILL_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise SandboxError(f"sandbox {self.pid} did not end in {_KILL_S:.0f} s and was cut off") from None
            finally:
                if self._scratch:
                    _remove(*self._scratch)

    def _tell(self) -> None:
        """Have the kernel end the namespace, or the supervisor its tree."""
        if self._handle < 0:
            self.process.kill()
            return
        try:
            if self.level == "bubblewrap":
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
                gone = select.poll()  # the first process counts as ended when the others of its namespace have
                gone.register(self._handle, select.POLLIN)
                if not gone.poll(_KILL_S * 1000):
                    raise subprocess.TimeoutExpired("bwrap", _KILL_S)
            else:
                with suppress(BrokenPipeError):
                    os.write(self._handle, b"k")  # said aloud: a fork of the engine may hold the descriptor open
        finally:
            os.close(self._handle)

    def __enter__(self) -> "Sandboxed":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


def start(
    level: Level,
    argv: Sequence[str],
    profile: Profile,
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Sandboxed:
    """Run `argv` at exactly `level`.

    Args:
        level: how to isolate; `level.detect` says what works here.
        profile: what it may read and use.
        argv: the command; the first word is an absolute path that the profile or the interpreter's folders hold.
        stdin: as for `subprocess.Popen`, `subprocess.PIPE` included.
        stdout: the same.
        stderr: `subprocess.DEVNULL`, a descriptor or a file; no pipe is made.
        pass_fds: descriptors that the command inherits under their own numbers, and the only ones.
        env: added to PATH and LANG, which is all that the command sees of the environment.

    Raises:
        SandboxError: the command is not acceptable, or a restriction could not be put in place (which one is said).
    """
    if not argv or not os.path.isabs(argv[0]):
        raise SandboxError(f"a sandbox runs an absolute path, not {argv[0] if argv else ''!r}")
    for path in profile.read:
        if not path.exists():
            raise SandboxError(
                f"a sandbox's read path {str(path)!r} does not exist: name files and folders that are there"
            )
    folder = "" if level == "bubblewrap" else os.path.realpath(tempfile.mkdtemp(prefix="agentops-sandbox-"))
    known = shim.identity(folder) if folder else (0, 0)
    try:
        command = {"argv": list(argv), "env": _ENVIRONMENT | dict(env or {}), "keep": list(pass_fds), "identity": known}
        return _launch(_restrictions(level, profile, folder) | command, profile, stdin, stdout, stderr)
    except BaseException:
        if folder:
            _remove(folder, known)
        raise


def _remove(folder: str, known: tuple[int, int]) -> None:
    """Remove a scratch folder whose supervisor did not: it was killed, or something is in the way."""
    if not os.path.lexists(folder):
        return
    try:
        shim.remove(folder, known)
    except OSError as error:
        raise SandboxError(f"the scratch folder {folder!r} is left: {error.strerror}; look at what is there") from error


def _restrictions(level: Level, profile: Profile, folder: str) -> dict[str, Any]:
    """The part of the shim's orders that follows from the level and the profile."""
    root = os.geteuid() == 0
    drop = root and level != "none"
    scratch = Path(folder) if folder else bubblewrap.SCRATCH
    filtered = b""
    if level != "none":
        filtered = seccomp.build(mounts=not folder, shared_uid=not root, landlock_abi=landlock.abi())
    return {
        "level": level,
        "scratch": str(scratch),
        "limits": {limit: getattr(profile, limit) for limit in shim.LIMITS},
        "uid": _unused_user() if drop else None,
        "search": drop and _needs_search(profile, scratch if folder else None),
        "landlock": landlock.ruleset(profile, scratch) if level == "landlock" else None,
        "seccomp": filtered.hex(),
    }


def _launch(orders: dict[str, Any], profile: Profile, stdin: Stream, stdout: Stream, stderr: Stream) -> Sandboxed:
    """Start the shim, give it its orders, and wait until it says that the restrictions are in place."""
    wrapped = orders["level"] == "bubblewrap"
    with ExitStack() as ours, ExitStack() as theirs:
        orders_in, orders_out = _pipe(theirs, ours)
        status, status_in = _pipe(ours, theirs)
        errors, errors_in = _pipe(ours, theirs)  # bubblewrap's and the shim's own; the command's go to `stderr`
        if wrapped:
            handle, told = _pipe(ours, theirs)  # bubblewrap tells the number of its first process
        else:
            told, handle = _pipe(theirs, ours)  # the supervisor is told to end
        if stderr == subprocess.DEVNULL:
            stderr = theirs.enter_context(open(os.devnull, "wb"))
        stderr = stderr if isinstance(stderr, int) else stderr.fileno()
        orders |= {"status": status_in, "stderr": stderr, "lifeline": -1 if wrapped else told}
        text = json.dumps(orders).encode() + b"\n"
        if len(text) > _ORDERS_BYTES:
            raise SandboxError(f"a sandbox's command and environment take {len(text)} bytes, at most {_ORDERS_BYTES}")
        command = [sys.executable, "-I", "-S", str(SHIM), str(orders_in)]
        launched = _launcher().submit(
            subprocess.Popen[bytes],
            [*bubblewrap.command(profile, told), *command] if wrapped else command,
            stdin=stdin,
            stdout=stdout,
            stderr=errors_in,
            pass_fds=tuple({*orders["keep"], orders_in, status_in, stderr, told}),
            env={},
            cwd="/",
            start_new_session=True,
        )
        process = launched.result()
        theirs.close()
        sandboxed = Sandboxed(orders["level"], process, None if wrapped else (orders["scratch"], orders["identity"]))
        try:
            sandboxed._handle = _first_process(handle) if wrapped else os.dup(handle)
            with suppress(BrokenPipeError):  # it has ended already: `status` is empty then
                os.write(orders_out, text)
            said = _read(status)
            if said != b"armed\n":
                raise SandboxError(f"no isolation at level {sandboxed.level!r}: {_reason(said, errors)}")
        except BaseException:
            sandboxed.kill()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()
            raise
    return sandboxed


def _pipe(read: ExitStack, write: ExitStack) -> tuple[int, int]:
    """A pipe whose ends close with the given stacks."""
    ends = os.pipe()
    read.callback(os.close, ends[0])
    write.callback(os.close, ends[1])
    return ends


def _read(fd: int, end: bytes = b"") -> bytes:
    """What arrives on a pipe until it is closed, or until `end` has arrived; at most 64 KiB.

    Raises:
        SandboxError: it takes longer than `START_S`.
    """
    found, limit = b"", time.monotonic() + START_S
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while len(found) < 65_536 and not (end and end in found):
        if not poller.poll(max(0.0, limit - time.monotonic()) * 1000):
            raise SandboxError(f"a sandbox was not ready within {START_S:.0f} s: is the machine overloaded?")
        if not (piece := os.read(fd, 4096)):
            break
        found += piece
    return found


def _first_process(info: int) -> int:
    """A pidfd of the first process of bubblewrap's namespace, with which the kernel ends all the others.

    The process waits for its orders, so its number cannot have passed to another yet.
    """
    said = _read(info, b"}")
    if b"}" not in said:
        return -1  # bubblewrap gave up: its words are on the pipe for errors
    return os.pidfd_open(json.loads(said)["child-pid"])


def _reason(said: bytes, errors: int) -> str:
    """Why the restrictions are not in place, in one line."""
    words = said.removeprefix(b"armed\n")
    if not words:
        os.set_blocking(errors, False)
        with suppress(BlockingIOError):
            words = os.read(errors, 4096)
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "its process ended without a word"


def _unused_user() -> int:
    """A user number that no account has, for one sandbox: its processes can be counted, and cannot reach another's.

    Where a container maps few numbers, the range that systemd takes for such users serves; else `nobody`.
    """
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    for first, size in ((0x70000000, 0x0FFF0000), (61184, 4336)):
        if any(start <= first and first + size <= start + length for start, _, length in ranges):
            return first + secrets.randbelow(size)
    return 65534


def _needs_search(profile: Profile, scratch: Path | None) -> bool:
    """Whether a granted path is closed to other users than root.

    Mounts of bubblewrap (`scratch` None) do not depend on the folders above a path; Landlock's grants do.
    """
    for path in (*interpreter(), *system(), *profile.read, SHIM, *([scratch.parent] if scratch else [])):
        real = path.resolve()
        above = real.parents if scratch else ()
        mode = real.stat().st_mode
        if not mode & 0o004 or not all(folder.stat().st_mode & 0o001 for folder in above):
            return True
    return False


@cache
def _launcher() -> ThreadPoolExecutor:
    """The one thread that starts processes. Bubblewrap dies with the *thread* that started it (PR_SET_PDEATHSIG)."""
    return ThreadPoolExecutor(1, thread_name_prefix="agentops-sandbox")


os.register_at_fork(after_in_child=_launcher.cache_clear)
