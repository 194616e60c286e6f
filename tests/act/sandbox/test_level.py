"""The level is found by trying, and too weak a level is refused."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.act.sandbox import Profile, bubblewrap, detect, landlock, missing, shim, spawn
from agentops.act.sandbox import process as processes
from agentops.act.sandbox.process import start
from agentops.act.sandbox.profile import SHIM
from agentops.cli import doctor
from agentops.errors import SandboxError

COMMAND = [sys.executable, "-I", "-S", "-c", "print('here')"]


@pytest.fixture
def forget() -> Iterator[None]:
    """Levels are tried anew, and again after the test."""
    missing.cache_clear()
    yield
    missing.cache_clear()


@pytest.fixture
def bare(forget: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with neither bubblewrap nor Landlock; the folder is its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    return tmp_path


def test_without_any_backend_only_none_runs(bare: Path) -> None:
    assert detect() == "none"
    for least in ("landlock", "bubblewrap"):
        with pytest.raises(SandboxError, match=r"(?s)gives 'none'.*package `bubblewrap`"):
            spawn(COMMAND, Profile(), least=least)
    with spawn(COMMAND, Profile(), least="none", stdout=subprocess.PIPE) as sandboxed:
        assert (sandboxed.level, sandboxed.process.communicate()[0]) == ("none", b"here\n")


def test_the_strongest_level_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    best = detect()
    if best == "none":
        pytest.skip(f"no isolation here: {missing('landlock')}")
    with spawn(COMMAND, Profile(), least="landlock") as sandboxed:
        assert sandboxed.level == best


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "echo cannot; exit 1",
        # says that it isolates, and only runs the command
        'while [ "$1" != "--" ]; do if [ "$1" = "--info-fd" ]; then info=$2; fi; shift; done; shift\n'
        'eval "echo \'{\\"child-pid\\": $$}\' >&$info"; exec "$@"',
    ],
)
def test_a_program_called_bwrap_is_not_believed(bare: Path, script: str) -> None:
    fake = bare / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    assert missing("bubblewrap") != ""
    assert detect() == "none"


def test_a_command_that_does_not_exist_is_said(level) -> None:
    with pytest.raises(SandboxError, match=r"(?s)No such file.*'/nowhere/python'"):
        start(level, ["/nowhere/python"], Profile())
    with pytest.raises(SandboxError, match="absolute path, not 'python'"):
        start(level, ["python"], Profile())
    with pytest.raises(SandboxError, match="nowhere"):
        start(level, COMMAND, Profile(read=(Path("/nowhere"),)))


def test_orders_are_bounded(level) -> None:
    with pytest.raises(SandboxError, match="at most 65536"):
        start(level, COMMAND, Profile(), env={"LONG": "x" * 70_000})


@pytest.mark.parametrize(
    "limits", [{"memory_mb": 0}, {"processes": -1}, {"cpu_s": 0.0}, {"network": True}, {"read": (Path("here"),)}]
)
def test_profiles_that_make_no_sense_are_refused(limits: dict) -> None:
    with pytest.raises(SandboxError):
        Profile(**limits)


def test_a_refused_restriction_runs_nothing(level, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A filter that the kernel does not take: the command must not run without it."""
    monkeypatch.setattr(processes.seccomp, "build", lambda **_: b"\0" * 8)
    with pytest.raises(SandboxError, match="system call filter"):
        start(level, COMMAND, Profile(), stdout=subprocess.PIPE)


def test_the_doctor_says_level_and_package(bare: Path) -> None:
    (finding,) = (found for found in doctor.examine(bare) if found.what == "isolation")
    assert finding.status == "info"
    assert "'none'" in finding.detail
    assert "apt-get install bubblewrap" in finding.detail


def test_the_doctor_is_content_with_bubblewrap() -> None:
    if missing("bubblewrap"):
        pytest.skip(missing("bubblewrap"))
    (finding,) = (found for found in doctor.examine(None) if found.what == "isolation")
    assert finding.status == "ok"


# ------------------------------------------------------------------ the scratch folder


def test_a_hostile_folder_is_removed_whole(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "scratch"
    folder.mkdir()
    known = shim.identity(str(folder))
    at = os.open(folder, os.O_RDONLY)
    for _ in range(3000):  # deeper than a path can say, and than Python recurses
        os.mkdir("lifted-0", dir_fd=at)
        below = os.open("lifted-0", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.symlink(outside, "link", dir_fd=at)
    os.close(at)
    for name in ("lifted-1", "closed"):
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "inner" / "file").write_text("x")
        (folder / name / "link").symlink_to(outside)
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    folder.chmod(0)
    assert shim.usage(str(folder), 1 << 30) > 1 << 30  # what cannot be looked at counts as too much
    shim.remove(str(folder), known)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "kept").read_text() == "x"
    assert stat.S_IMODE(outside.stat().st_mode) != 0


@pytest.mark.parametrize("how", ["link", "another folder"])
def test_what_took_the_place_of_the_folder_is_left(how: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "scratch", tmp_path / "other"
    folder.mkdir()
    known = shim.identity(str(folder))
    folder.rename(tmp_path / "away")
    other.mkdir(mode=0o755)
    (other / "kept").write_text("x")
    if how == "link":
        folder.symlink_to(other)
    else:
        other.rename(folder)
    with pytest.raises(OSError):
        shim.remove(str(folder), known)
    assert (folder / "kept").read_text() == "x"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


MOUNTED = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[2])
import shim
libc = ctypes.CDLL(None)
root = sys.argv[1]
known = shim.identity(root + "/scratch")
os.makedirs(root + "/scratch/a/b/c")
if libc.mount((root + "/other").encode(), (root + sys.argv[3]).encode(), None, 4096, None):
    raise SystemExit("cannot mount")
try:
    shim.remove(root + "/scratch", known)
except OSError as error:
    print("refused", error)
"""


@pytest.mark.parametrize("place", ["/scratch", "/scratch/a", "/scratch/a/b", "/scratch/a/b/c"])
def test_a_mount_is_never_entered(place: str, tmp_path: Path) -> None:
    """A bind mount shows the same device, so only the mount's number tells. Tried in a mount namespace of its own."""
    other = tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    (other / "deep" / "kept").write_text("x")
    other.chmod(0o751)
    (tmp_path / "scratch").mkdir()
    unshare = shutil.which("unshare")
    if not unshare:
        pytest.skip("no unshare")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [
        unshare,
        *user,
        "--mount",
        sys.executable,
        "-I",
        "-S",
        "-c",
        MOUNTED,
        str(tmp_path),
        str(SHIM.parent),
        place,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare failed" in done.stderr or "cannot mount" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.stdout.startswith("refused"), done.stderr
    assert (other / "deep" / "kept").read_text() == "x"
    assert stat.S_IMODE(other.stat().st_mode) == 0o751


def test_usage_counts_files_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(100_000))
    (tmp_path / "link").symlink_to("/usr")
    assert 90_000 < shim.usage(str(tmp_path), 1 << 30) < 150_000
    assert shim.usage(str(tmp_path), 50_000) > 50_000
    for number in range(shim.MAX_ENTRIES):
        (tmp_path / "folder" / str(number)).touch()
    assert shim.usage(str(tmp_path), 1 << 30) > 1 << 30


def test_the_command_line_grants_no_home() -> None:
    words = bubblewrap.command(Profile(), 9)
    shown = {words[at + 1] for at, word in enumerate(words) if word.endswith("bind")}
    assert not shown & {"/", "/home", "/root", "/etc", "/var", "/run", "/tmp", str(Path.home()), str(Path.cwd())}
