"""Read an audit folder as an outsider: check every log against its checkpoint and the others, and list the records.

Invariant: verification needs the folder and a public key, takes no lock and changes nothing; it may run beside writers.
With the key from the folder it catches every change to what a checkpoint covers that was made without the signing key,
and every tenant's log that was removed or cut below a head in a system log. A folder put back whole to an earlier
state, or rewritten with a stolen key, is caught only by claims kept elsewhere (`anchors`); records after the last
checkpoint are told from forged ones when the log is next opened.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentops.audit import frames, logfile, names, notes
from agentops.errors import AuditError
from agentops.types import Json

Heads = Mapping[str, tuple[int, str]]  # log name -> tree size, root in hex
_CHUNK = 64 * 1024  # bytes of each log that `records` holds while it merges logs


@dataclass(frozen=True, slots=True)
class Claim:
    """What something remembers of a log: at `size` records it had this root (hex)."""

    log: str
    size: int
    root: str
    where: str  # who says so, for the reader


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
    """What `verify` found. Heads that are kept elsewhere catch a rollback later, as claims of `verify`."""

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


def verify(folder: Path, public_key: bytes | None = None, claims: Iterable[Claim] = ()) -> AuditReport:
    """Check every log in `folder`.

    Args:
        folder: what `AuditLog` wrote.
        public_key: 32 raw bytes from a trusted copy; default: the folder's own key.pub.
        claims: heads kept where the log's owner cannot write (`anchors.claims`, or an earlier report's heads).

    Raises:
        AuditError: there is no such folder, or no usable public key.
    """
    if not folder.is_dir():
        raise AuditError(f"there is no audit folder at {str(folder)!r}: it appears with the first recorded call")
    claims = list(claims)
    if not claims and not names.log_names(folder):
        return AuditReport(True, 0, 0, 0, 0, (), (), {})
    check = _Verification(folder, notes.load_public_key(folder) if public_key is None else public_key)
    for claim in claims:
        check.note(claim)
    # System logs first: what they say of the tenants' logs is then checked in the one walk over each of those.
    for name in names.system_names(folder):
        check.log(name)
    check.again()
    tenants = [name for name in names.log_names(folder) if name.startswith(names.TENANTS)]
    for name in tenants:
        check.log(name)
    check.hold()
    return check.report()


def records(folder: Path, tenant: str = "") -> Iterator[dict[str, Json]]:
    """Every record, in order of time: its own keys plus `log`, `index` and `at` (seconds since the epoch).

    Reads up to the first byte that does not fit in each log; whether anything is wrong is `verify`'s answer.

    Args:
        folder: what `AuditLog` wrote.
        tenant: only this tenant's logs; "" = all, system logs too.
    """
    chosen = names.tenant_names(folder, tenant) if tenant else names.log_names(folder)
    yield from heapq.merge(*(_log_records(folder, name) for name in chosen), key=_at)


class _Verification:
    """The running state of one `verify`."""

    def __init__(self, folder: Path, public: bytes) -> None:
        self.folder = folder
        self.public = public
        self.problems: list[AuditProblem] = []
        self.torn: list[AuditProblem] = []
        self.heads: dict[str, tuple[int, str]] = {}
        self.logs = self.records = self.checkpoints = self.signed = 0
        self._claims: dict[str, dict[tuple[int, str], str]] = {}  # log -> (size, root) -> who says so
        self._roots: dict[str, dict[int, bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._bad: set[str] = set()  # logs already reported: what follows from it would only repeat it

    def note(self, claim: Claim) -> None:
        """Remember a claim until the log was walked."""
        if names.NAME.fullmatch(claim.log):
            self._claims.setdefault(claim.log, {}).setdefault((claim.size, claim.root), claim.where)

    def log(self, name: str) -> None:
        """Walk one log and hold it against its checkpoint."""
        self.logs += 1
        try:
            # First the checkpoint, then the log: a writer may append in between, never the other way round.
            checkpoint = logfile.read_checkpoint(self.folder, name, self.public)
            data = logfile.read_log(self.folder, name)
        except AuditError as error:
            self._problem(name, 0, str(error))
            return
        signed = () if checkpoint is None else (checkpoint.size,)
        walk = self._walk(name, data, signed)
        self.records += walk.tree.size
        problem = logfile.judge(walk, checkpoint, name) or _wrong_tenant(name, walk)
        if not problem and walk.tail == "damaged":
            problem = (
                f"{name}.log, byte {walk.end}: the last record is damaged: a crash while it was written, or a change "
                "to a record that no checkpoint covers yet"
            )
        if problem:
            self._problem(name, walk.end, problem)
            return
        if walk.tail == "incomplete":
            rest = f"{name}.log, byte {walk.end}: {len(data) - walk.end} bytes of an unfinished record at the end"
            self.torn.append(AuditProblem(f"{name}.log", walk.end, rest))
        if checkpoint is not None:
            self.checkpoints += 1
            self.signed += checkpoint.size
            self.heads[name] = (checkpoint.size, checkpoint.root.hex())
        if not name.startswith(names.TENANTS):
            for _, record in walk.control:
                self._heads_of(name, record)

    def again(self) -> None:
        """Walk the system logs once more for heads that other system logs remember of them."""
        for name in list(self._sizes):
            if any(size not in self._roots[name] for size, _ in self._claims.get(name, ())):
                self._walk(name, logfile.read_log(self.folder, name))

    def hold(self) -> None:
        """Hold every log against what is remembered of it."""
        for name, claims in self._claims.items():
            if name in self._bad:
                continue
            if name not in self._sizes:
                (size, _), where = next(iter(claims.items()))
                self._problem(name, 0, f"{name}.log is missing: {where} says it had {size} records")
                continue
            for (size, root), where in claims.items():
                known, had = self._roots[name].get(size), self._sizes[name]
                if size > had:
                    cut = f"{name}.log: {had} records, but {where} says it had {size}: the log was cut"
                    self._problem(name, 0, cut)
                    break
                if known is None or known.hex() != root:
                    what = f"the first {size} records are not the ones {where} remembers: the log was rewritten"
                    self._problem(name, 0, f"{name}.log: {what}")
                    break

    def report(self) -> AuditReport:
        """What was found."""
        return AuditReport(
            ok=not self.problems,
            logs=self.logs,
            records=self.records,
            checkpoints=self.checkpoints,
            signed_records=self.signed,
            problems=tuple(self.problems),
            torn=tuple(self.torn),
            heads=self.heads,
        )

    def _walk(self, name: str, data: bytes, sizes: tuple[int, ...] = ()) -> frames.Walk:
        claimed = {size for size, _ in self._claims.get(name, ())}
        walk = frames.walk(data, name, self.public, claimed.union(sizes))
        self._sizes[name] = walk.tree.size
        self._roots[name] = walk.roots
        return walk

    def _problem(self, name: str, offset: int, message: str) -> None:
        self._bad.add(name)
        self.problems.append(AuditProblem(f"{name}.log", offset, message))

    def _heads_of(self, name: str, envelope: bytes) -> None:
        try:
            for other, (size, root) in json.loads(envelope)["log"].get("heads", {}).items():
                self.note(Claim(other, int(size), bytes.fromhex(root).hex(), f"{name}.log"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._problem(name, 0, f"{name}.log: a record of the log's own is not readable")


def _wrong_tenant(name: str, walk: frames.Walk) -> str:
    """Why a tenant's log is not that tenant's by its first record, "" when it is."""
    if not name.startswith(names.TENANTS) or not walk.tree.size:
        return ""
    try:
        index, envelope = walk.control[0]
        tenant = json.loads(envelope)["log"]["tenant"]
        if index == 0 and name.startswith(names.prefix(names.tenant_of(tenant))):
            return ""
    except (ValueError, LookupError, TypeError, AuditError, RecursionError):
        pass
    return f"{name}.log: its first record does not say that it is this tenant's"


def _log_records(folder: Path, name: str) -> Iterator[dict[str, Json]]:
    if not (folder / f"{name}.log").exists():
        return
    end = frames.walk(logfile.read_log(folder, name), name, notes.load_public_key(folder)).end
    for index, leaf in enumerate(_leaves(folder / f"{name}.log", end)):
        try:
            envelope = json.loads(leaf[frames.BODY :])
            own = envelope["log"] if "log" in envelope else envelope["record"]
            record = {**own, "log": name, "index": index, "at": int(envelope["time_ms"]) / 1000}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AuditError(f"{name}.log: record {index} is not readable: run `agentops audit verify`") from None
        yield record


def _leaves(path: Path, end: int) -> Iterator[bytes]:
    """Leaves before `end`, a piece of the file at a time: neither all bytes nor a descriptor are held for each log."""
    offset = 0
    while offset < end:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(min(_CHUNK, end - offset))
            if len(data) < frames.HEADER.size:
                return
            first = frames.HEADER.size + frames.HEADER.unpack_from(data)[2]
            if len(data) < first:
                data += file.read(first - len(data))
        at = 0
        while at + frames.HEADER.size <= len(data):
            length = frames.HEADER.unpack_from(data, at)[2]
            start = at + frames.HEADER.size
            if start + length > len(data):
                break
            yield data[start : start + length]
            at = start + length
        if at == 0:  # the file became shorter since it was walked
            return
        offset += at


def _at(record: dict[str, Json]) -> float:
    return record["at"]
