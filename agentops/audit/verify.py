"""Read an audit folder as an outsider: check every log against its checkpoint and the others, and list the records.

Invariant: verification needs the folder and a public key, takes no lock and changes nothing; it may run beside writers.
With the key from the folder it catches every change to what a checkpoint covers that was made without the signing key.
A tail cut together with its checkpoint, or a rewrite with a stolen key, is caught only by `heads` kept elsewhere (or
named by another log); records after the last checkpoint are told from forged ones when the log is next opened.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentops.audit import frames, logfile, notes
from agentops.errors import AuditError
from agentops.types import Json

Heads = Mapping[str, tuple[int, str]]  # log name -> tree size, root in hex


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """One thing that does not fit: the file, the byte where the good part ends (0: the whole file), what it means."""

    file: str
    offset: int
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What `verify` found. Keep `heads` elsewhere: a later `verify(…, anchors=heads)` catches a rollback."""

    ok: bool
    logs: int
    records: int
    checkpoints: int
    signed_records: int  # covered by a checkpoint; the few after it are protected by the chain alone
    problems: tuple[AuditProblem, ...]
    torn: tuple[AuditProblem, ...]  # ends cut off by a crash (or being written now); nothing acknowledged was in them
    heads: Heads

    @property
    def problem(self) -> AuditProblem | None:
        """The first problem."""
        return self.problems[0] if self.problems else None

    def lines(self) -> list[str]:
        """The report as sentences: counts, then every problem, then ends that a crash cut off."""
        rest = self.records - self.signed_records
        counts = f"records: {self.records}, logs: {self.logs}, signed checkpoints: {self.checkpoints}"
        lines = [f"{counts}, not signed yet: {rest}" if rest else counts]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"unfinished: {problem}" for problem in self.torn]
        return [*lines, "the log is whole" if self.ok else "THE LOG WAS CHANGED OR DAMAGED"]


def verify(folder: Path, public_key: bytes | None = None, anchors: Heads | None = None) -> AuditReport:
    """Check every log in `folder`.

    Args:
        folder: what `AuditLog` wrote.
        public_key: 32 raw bytes from a trusted copy; default: the folder's own key.pub.
        anchors: heads of an earlier report, kept where the log's owner cannot write.

    Raises:
        AuditError: there is no such folder, or no usable public key.
    """
    if not folder.is_dir():
        raise AuditError(f"there is no audit folder at {str(folder)!r}: it appears with the first recorded call")
    names = logfile.log_names(folder)
    if not names and not anchors:
        return AuditReport(True, 0, 0, 0, 0, (), (), {})
    public = notes.load_public_key(folder) if public_key is None else public_key
    check = _Verification(folder, public)
    for name in names:
        check.log(name)
    claims = [(name, size, root, "the anchor") for name, (size, root) in (anchors or {}).items()]
    for name, size, root, where in [*claims, *check.claims]:
        check.claim(name, size, root, where)
    return AuditReport(
        ok=not check.problems,
        logs=len(names),
        records=check.records,
        checkpoints=check.checkpoints,
        signed_records=check.signed,
        problems=tuple(check.problems),
        torn=tuple(check.torn),
        heads=check.heads,
    )


def records(folder: Path) -> Iterator[dict[str, Json]]:
    """Every record of every log, in order of time: its own keys plus `log`, `index` and `at` (seconds since the epoch).

    Reads up to the first byte that does not fit in each log; whether anything is wrong is `verify`'s answer.
    """
    yield from heapq.merge(*(_log_records(folder, name) for name in logfile.log_names(folder)), key=_at)


class _Verification:
    """The running state of one `verify`."""

    def __init__(self, folder: Path, public: bytes) -> None:
        self.folder = folder
        self.public = public
        self.problems: list[AuditProblem] = []
        self.torn: list[AuditProblem] = []
        self.claims: list[tuple[str, int, str, str]] = []
        self.heads: dict[str, tuple[int, str]] = {}
        self.records = self.checkpoints = self.signed = 0
        self._roots: dict[str, dict[int, bytes]] = {}
        self._sizes: dict[str, int] = {}

    def log(self, name: str) -> None:
        """Walk one log and hold it against its checkpoint."""
        try:
            # First the checkpoint, then the log: a writer may append in between, never the other way round.
            checkpoint = logfile.read_checkpoint(self.folder, name, self.public)
        except AuditError as error:
            self.problems.append(AuditProblem(f"{name}.checkpoint", 0, str(error)))
            return
        path = self.folder / f"{name}.log"
        try:
            data = _read(path)
        except AuditError as error:
            self.problems.append(AuditProblem(path.name, 0, str(error)))
            return
        walk = frames.walk(data, name, self.public, () if checkpoint is None else (checkpoint.size,))
        self.records += walk.tree.size
        self._sizes[name] = walk.tree.size
        self._roots[name] = {**walk.roots, walk.tree.size: walk.tree.root()}
        problem = logfile.judge(walk, checkpoint, path)
        if not problem and walk.tail == "damaged":
            problem = (
                f"{path.name}, byte {walk.end}: the last record is damaged: a crash while it was written, or a change "
                "to a record that no checkpoint covers yet"
            )
        if problem:
            self.problems.append(AuditProblem(path.name, walk.end, problem))
            return
        if walk.tail == "incomplete":
            rest = f"{path.name}, byte {walk.end}: {len(data) - walk.end} bytes of an unfinished record at the end"
            self.torn.append(AuditProblem(path.name, walk.end, rest))
        if checkpoint is not None:
            self.checkpoints += 1
            self.signed += checkpoint.size
            self.heads[name] = (checkpoint.size, checkpoint.root.hex())
        for record in walk.control:
            self._heads_of(name, record)

    def claim(self, name: str, size: int, root: str, where: str) -> None:
        """Hold a log against a head that something else remembers of it."""
        if any(problem.file in (f"{name}.log", f"{name}.checkpoint") for problem in self.problems):
            return  # already reported; what follows from it would only repeat it
        path = self.folder / f"{name}.log"
        if not path.exists():
            self.problems.append(
                AuditProblem(path.name, 0, f"{path.name} is missing: {where} says it had {size} records")
            )
            return
        roots = self._roots.setdefault(name, {})
        if size not in roots and size <= self._sizes.get(name, size):
            walk = frames.walk(_read(path), name, self.public, (size,))
            self._sizes[name] = walk.tree.size
            roots.update(walk.roots)
        if size > self._sizes.get(name, 0):
            message = (
                f"{path.name}: {self._sizes.get(name, 0)} records, but {where} says it had {size}: the log was cut"
            )
            self.problems.append(AuditProblem(path.name, 0, message))
        elif roots[size].hex() != root:
            message = f"{path.name}: the first {size} records are not the ones {where} remembers: the log was rewritten"
            self.problems.append(AuditProblem(path.name, 0, message))

    def _heads_of(self, name: str, envelope: bytes) -> None:
        try:
            heads = json.loads(envelope)["log"].get("heads", {})
            claims = [
                (other, int(size), bytes.fromhex(root).hex(), f"{name}.log") for other, (size, root) in heads.items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.problems.append(
                AuditProblem(f"{name}.log", 0, f"{name}.log: a record of the log's own is not readable")
            )
            return
        self.claims += [claim for claim in claims if logfile.NAME.fullmatch(claim[0])]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > frames.MAX_LOG:
            raise AuditError(f"{path.name} is larger than any log can be ({frames.MAX_LOG} bytes)")
        return path.read_bytes()
    except FileNotFoundError:
        raise AuditError(f"{path.name} is missing, but its signed checkpoint is there: the log was removed") from None
    except OSError as error:
        raise AuditError(f"{path.name} cannot be read: {error.strerror}") from None


def _log_records(folder: Path, name: str) -> Iterator[dict[str, Json]]:
    path = folder / f"{name}.log"
    if not path.exists():
        return
    data = _read(path)
    public = notes.load_public_key(folder)
    for index, (_, leaf) in enumerate(frames.leaves(data, frames.walk(data, name, public).end)):
        try:
            envelope = json.loads(leaf[frames.BODY :])
            own = envelope["log"] if "log" in envelope else envelope["record"]
            record = {**own, "log": name, "index": index, "at": int(envelope["at_ms"]) / 1000}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AuditError(f"{path.name}: record {index} is not readable: run `agentops audit verify`") from None
        yield record


def _at(record: dict[str, Json]) -> float:
    return record["at"]
