"""Anchors that a local program can reach: a file that is only appended to, and a git repository.

Invariant: a head is published when it is on the disk (or, with an upstream, pushed); lines that a crash cut short are
skipped when reading, lines before them never. Whether the place can be rewritten is its owner's doing, not ours.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentops.audit import notes
from agentops.audit.heads import MAX_HEADS, Head
from agentops.errors import AuditError

GIT_SECONDS = 30.0
_FILE = "agentops-audit.heads"  # in a git repository
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
# What a repository's own files could have git run, or show instead of what was committed.
_PLAIN = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "log.showSignature=false", "log.follow=false")
# Both sides of every merge, as text whatever the attributes say: a merge that takes neither line hides none.
_HISTORY = ("--full-history", "-m", "--text", "--no-textconv", "--no-ext-diff", "--no-color", "--unified=0")


@dataclass(frozen=True, slots=True)
class AppendFileAnchor:
    """A file that is only ever appended to, on a mount that keeps it so: write-once storage, another host's export."""

    spec: str
    path: Path

    def publish(self, head: Head) -> None:
        """Append the note as a line of JSON and flush it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"  # a crash before the line's end
                _write(descriptor, (b"\n" if torn else b"") + _line(head.note))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            notes.sync_folder(self.path.parent)
        except OSError as error:
            raise AuditError(f"the anchor {self.spec} cannot be written: {error.strerror}") from None

    def kept(self) -> list[bytes]:
        """Every note in the file."""
        try:
            if self.path.stat().st_size > MAX_HEADS:
                raise AuditError(f"the anchor {self.spec} has more than {MAX_HEADS} bytes: start another file")
            return _parse(self.path.read_bytes().splitlines())
        except OSError as error:
            raise AuditError(f"the anchor {self.spec} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class GitAnchor:
    """A commit for each head in a git repository, pushed when the branch has an upstream.

    A repository on the same machine can be rewritten by whoever owns the machine: have it pushed to a remote that
    refuses forced pushes. Every line ever committed counts, also one that a later commit removed.
    """

    spec: str
    path: Path

    def publish(self, head: Head) -> None:
        """Append the note to a file of the repository, commit it, and push when there is an upstream."""
        with self._locked():
            try:
                with (self.path / _FILE).open("ab") as file:
                    file.write(_line(head.note))
            except OSError as error:
                raise AuditError(f"the anchor {self.spec} cannot be written: {error.strerror}") from None
            self._git("add", "--", _FILE)
            # The notes are signed: a commit needs no signature of whoever runs this, nor its hooks.
            who = ("-c", "user.name=agentops", "-c", "user.email=agentops@localhost", "-c", "commit.gpgsign=false")
            message = f"{head.log}: {head.checkpoint.size} records"
            self._git(*who, "commit", "--quiet", "--no-verify", "-m", message, "--", _FILE)
            if self._upstream():
                self._git("push", "--quiet")

    def kept(self) -> list[bytes]:
        """Notes from the history of the upstream when there is one, else of the branch."""
        branch = "HEAD"
        if self._upstream():
            self._git("fetch", "--quiet")
            branch = "@{upstream}"
        history = self._git("log", "--format=", "--patch", *_HISTORY, branch, "--", _FILE)
        return _parse(line[1:] for line in history.splitlines() if line.startswith(b"+{"))

    def _upstream(self) -> bool:
        with contextlib.suppress(AuditError):
            return bool(self._git("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}"))
        return False

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise AuditError(f"the anchor {self.spec} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # of several writers one commits at a time
            yield
        finally:
            os.close(descriptor)

    def _git(self, *arguments: str) -> bytes:
        # GIT_DIR and its like would lead to another repository, as when this runs in a hook.
        kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        environment = {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
        plain = [part for setting in _PLAIN for part in ("-c", setting)]
        try:
            done = subprocess.run(  # noqa: S603 - fixed program, no shell, arguments of our own
                ["git", "-C", str(self.path), *plain, *arguments],  # noqa: S607 - the git of PATH is the administrator's choice
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AuditError(f"the anchor {self.spec}: git {arguments[0]} failed ({type(error).__name__})") from None
        if done.returncode != 0 or len(done.stdout) > MAX_HEADS:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise AuditError(f"the anchor {self.spec}: git said {(said or ['nothing'])[-1][:200]!r}")
        return done.stdout


def _line(note: bytes) -> bytes:
    return orjson.dumps({"note": note.decode()}) + b"\n"


def _parse(lines: Iterable[bytes]) -> list[bytes]:
    """Notes of JSON lines; a line that a crash cut short is none."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found.append(orjson.loads(line)["note"].encode())
    return found


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
