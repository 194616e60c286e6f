"""Start a process at an isolation level, and end it with everything it started.

Invariant: `spawn` returns a process only after its restrictions are in place; otherwise nothing of it is left running.
It does not speak with the process: that is the worker protocol's part.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from agentops.act.sandbox.profile import Profile
from agentops.types import Level

Stream = int | IO[bytes] | None


@dataclass(frozen=True, slots=True)
class Sandboxed:
    """A running isolated process. `process` is its outermost process; `process.wait()` gives 128+n after signal n."""

    level: Level
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The outermost process, as this machine counts."""
        return self.process.pid

    def kill(self) -> None:
        """End every descendant and remove the scratch folder. Idempotent; returns when they are gone."""
        raise NotImplementedError


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
    """Run `argv` isolated at the strongest level that works here.

    Raises:
        SandboxError: that level is below `least`, or the restrictions could not be put in place.
    """
    raise NotImplementedError
