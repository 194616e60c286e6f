"""A sandbox at each level that this machine gives, and a Python snippet run in it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from agentops.act.sandbox import Profile, Sandboxed, missing
from agentops.act.sandbox.process import start
from agentops.types import Level

Inside = Callable[..., tuple[int, str]]


def needs(level: Level) -> None:
    """Skip with the reason when this machine does not give a level."""
    if reason := missing(level):
        pytest.skip(f"level {level!r}: {reason}")


@pytest.fixture(params=["landlock", "bubblewrap"])
def level(request: pytest.FixtureRequest) -> Level:
    needs(request.param)
    return request.param


@pytest.fixture
def launch() -> Iterator[Callable[..., Sandboxed]]:
    """Start a snippet of Python at a level; ended with the test."""
    begun: list[Sandboxed] = []

    def launch(level: Level, code: str, profile: Profile | None = None, args: Sequence[str] = (), **more) -> Sandboxed:
        command = [sys.executable, "-I", "-S", "-c", code, *args]
        begun.append(start(level, command, profile or Profile(), **more))
        return begun[-1]

    yield launch
    for sandboxed in begun:
        sandboxed.kill()
        if sandboxed.process.stdout:
            sandboxed.process.stdout.close()


@pytest.fixture
def inside(launch: Callable[..., Sandboxed]) -> Inside:
    """Run a snippet of Python at a level to its end: its exit status and what it said, errors included."""

    def inside(
        level: Level,
        code: str,
        profile: Profile | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> tuple[int, str]:
        both = "import os; os.dup2(1, 2)\n" + code
        sandboxed = launch(level, both, profile, args, env=env, pass_fds=pass_fds, stdout=subprocess.PIPE)
        said, _ = sandboxed.process.communicate(timeout=60)
        return sandboxed.process.returncode, said.decode(errors="replace")

    return inside


def running(marker: str) -> list[int]:
    """Processes of this machine whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    return running


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Whether a condition comes true within 10 s."""

    def eventually(condition: Callable[[], bool]) -> bool:
        limit = time.monotonic() + 10
        while not condition():
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
        return True

    return eventually
