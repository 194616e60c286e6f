"""Records of a tenant or a time in one file that proves itself without the folder: `verify_export` needs the key only.

The file is JSON lines. A header; for each log a line with the subtrees before the range, the tree it belongs to and
what vouches for that tree (as in `proofs`); the records of the range, each with its seal; a line with the subtrees
after it; at the end a note of the log's key over the SHA-256 of all lines before it.

Invariant: each log's range is contiguous and is hashed up to a signed root, so no record in it can be changed, removed
or added, and the last line shows that no log was left out after the export. What its maker left out shows only where
it is held against the heads of an anchor: the key's holder chooses logs and times. Both sides stream: one log (at most
16 MiB) in memory when writing, one record when reading. Records that no checkpoint covers yet are not exported.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from agentops.audit import frames, logfile, merkle, names, notes, proofs
from agentops.errors import AuditError

FORMAT = "agentops-audit-export/1"
FOREVER = 2.0**40  # seconds since the epoch
_LAST_DATE = 253_402_300_799.0  # the end of the year 9999
_SEALED = b'{"seal":"'
_ENVELOPE = b'","envelope":'
_LONGEST = 4 * 1024 * 1024  # bytes of a line; a record and a system log's record have at most 1 MiB, once in base64


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds. `heads` are the signed heads that vouch for it: log -> records, root in hex."""

    tenant: str  # "" = all, and the system logs
    since: float  # seconds since the epoch, included
    until: float  # not included
    logs: int
    records: int
    tenants: tuple[str, ...]  # folders of tenants, as in log names
    heads: dict[str, tuple[int, str]]
    without_system_line: tuple[str, ...]  # logs that no system log has named yet: their own checkpoint vouches


def export(folder: Path, out: Path, tenant: str = "", since: float = 0.0, until: float = FOREVER) -> Exported:
    """Write the signed records of a time to `out` (mode 0600, complete or not at all), then check them as a reader.

    Args:
        folder: the audit folder, with its private key: the export is signed.
        out: the file to write; must not exist.
        tenant: only this tenant's logs; "" = all tenants' and the system logs.
        since: seconds since the epoch, included.
        until: seconds since the epoch, not included.

    Raises:
        AuditError: nothing to export, `out` exists or cannot be written, or a log is not what was signed.
    """
    key = notes.load_or_create_key(folder)
    public = notes.public_bytes(key)
    commitments = proofs.Commitments(folder, public)
    chosen = names.tenant_names(folder, tenant) if tenant else names.log_names(folder)
    header = {
        "format": FORMAT,
        "tenant": tenant,
        "since": since,
        "until": until,
        "key": notes.verifier_key(public),
    }
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}")
    try:
        if out.exists():
            raise AuditError(f"{str(out)!r} exists: name a new file")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            digest = hashlib.sha256()
            lines = 0
            for line in _lines(commitments, chosen, header, since, until):
                digest.update(line)
                file.write(line)
                lines += 1
            note = notes.sign(notes.Checkpoint("export", lines, digest.digest(), 0), key)
            file.write(orjson.dumps({"end": note.decode()}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        done = verify_export(temporary, public)
        if not done.records:
            raise AuditError("no signed record is in this selection: nothing was exported")
        os.link(temporary, out)
    except OSError as error:
        raise AuditError(f"the export {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return done


def verify_export(path: Path, public: bytes) -> Exported:
    """Check every line of an export.

    Args:
        path: what `export` wrote.
        public: 32 raw bytes of the key that the reader trusts.

    Raises:
        AuditError: anything was changed, cut or added; names the line.
    """
    reader = _Reader(public)
    try:
        with path.open("rb") as file:
            for line in _read(file):
                reader.line(line)
    except OSError as error:
        raise AuditError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except AuditError as error:
        raise AuditError(f"{path.name}, line {reader.lines + 1}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"not a line of an export ({type(error).__name__})"
        raise AuditError(f"{path.name}, line {reader.lines + 1}: {what}") from None
    if not reader.ended:
        raise AuditError(f"{path.name} ends after {reader.lines} lines without its signature: it was cut")
    return Exported(
        tenant=reader.tenant,
        since=reader.since,
        until=reader.until,
        logs=reader.logs,
        records=reader.records,
        tenants=tuple(sorted(reader.tenants)),
        heads=reader.heads,
        without_system_line=tuple(reader.alone),
    )


def _lines(
    commitments: proofs.Commitments, chosen: list[str], header: dict[str, Any], since: float, until: float
) -> Iterator[bytes]:
    yield orjson.dumps(header) + b"\n"
    for name in chosen:
        found = proofs.target(commitments, name)
        if found is not None:
            yield from _log_lines(commitments, name, found, int(since * 1000), int(until * 1000))


def _log_lines(
    commitments: proofs.Commitments, name: str, found: proofs.Target, since_ms: int, until_ms: int
) -> Iterator[bytes]:
    data = logfile.read_log(commitments.folder, name)
    walk = frames.walk(data, name, commitments.public, (found.size,))
    if walk.roots.get(found.size) != found.root:
        raise AuditError(f"{name}.log is not what was signed: run `agentops audit verify`")
    leaves = [leaf for _, leaf in frames.leaves(data, walk.end)][: found.size]
    wanted = [index for index, leaf in enumerate(leaves) if since_ms <= _time_ms(leaf) < until_ms]
    if not wanted:
        return
    first, last = wanted[0], wanted[-1] + 1
    hashes = list(map(merkle.leaf_hash, leaves))
    before = merkle.Tree()
    before.extend(hashes[:first])
    about = {
        "log": name,
        "first": first,
        "count": last - first,
        "link": leaves[first][: frames.LINK].hex(),
        "left": [item.hex() for item in before.subtrees],
        "size": found.size,
        "root": found.root.hex(),
        "checkpoint": found.checkpoint,
        "system": None if found.line is None else commitments.prove(found.line),
    }
    yield orjson.dumps(about) + b"\n"
    for leaf in leaves[first:last]:
        sealed = leaf[frames.LINK : frames.BODY].hex().encode()
        yield _SEALED + sealed + _ENVELOPE + leaf[frames.BODY :] + b"}\n"
    rest = [[level, item.hex()] for level, item in merkle.rest_of_tree(hashes, last)]
    yield orjson.dumps({"rest": rest}) + b"\n"


class _Reader:
    """The running state of one `verify_export`: header, then logs, then the end."""

    def __init__(self, public: bytes) -> None:
        self.tenant = ""
        self.since = self.until = 0.0
        self.logs = self.records = 0
        self.tenants: set[str] = set()
        self.heads: dict[str, tuple[int, str]] = {}
        self.alone: list[str] = []
        self.ended = False
        self._public = public
        self._digest = hashlib.sha256()
        self.lines = 0
        self._prefix = ""
        self._log: dict[str, Any] | None = None  # the log whose range is being read
        self._left = 0  # records of it that are still to come
        self._tree = merkle.Tree()
        self._link = b""

    def line(self, line: bytes) -> None:
        if self.ended:
            raise AuditError("something was added after the end")
        if self._log is not None and self._left:
            self._record(line)
        else:
            table = orjson.loads(line)
            if not self.lines:
                self._header(table)
            elif self._log is not None:
                self._rest(table)
            elif "end" in table:
                self._end(table["end"])
                return
            else:
                self._begin(table)
        self._digest.update(line)
        self.lines += 1

    def _header(self, table: dict[str, Any]) -> None:
        if table["format"] != FORMAT:
            raise AuditError(f"not an export of format {FORMAT}")
        self.tenant, self.since, self.until = str(table["tenant"]), float(table["since"]), float(table["until"])
        last = FOREVER if self.until == FOREVER else _LAST_DATE
        if not 0 <= self.since <= self.until <= last:
            raise AuditError("not a stretch of time")
        self._prefix = names.prefix(self.tenant)

    def _begin(self, table: dict[str, Any]) -> None:
        name, first, count, size = table["log"], table["first"], table["count"], table["size"]
        fits = names.NAME.fullmatch(name) and name.startswith(self._prefix)
        if not fits or not 0 <= first < first + count <= size:
            raise AuditError("a log or a range that does not fit the header")
        root = bytes.fromhex(table["root"])
        head = proofs.vouched(name, size, root, table["checkpoint"], table["system"], self._public)
        self.heads[head.log] = (head.size, head.root.hex())
        if table["system"] is None and name.startswith(names.TENANTS):
            self.alone.append(name)
        self._tree = merkle.Tree(first, [bytes.fromhex(item) for item in table["left"]])
        self._link = bytes.fromhex(table["link"])
        if len(self._link) != frames.LINK or (not first and self._link != frames.genesis(name, self._public)):
            raise AuditError("the first record does not follow the log's beginning")
        self._log, self._left = table, count
        self.logs += 1
        if name.startswith(names.TENANTS):
            self.tenants.add(name.split("/")[1])

    def _record(self, line: bytes) -> None:
        sealed, separator, rest = line.removeprefix(_SEALED).partition(_ENVELOPE)
        if not line.startswith(_SEALED) or not separator or not rest.endswith(b"}\n") or len(sealed) != 2 * frames.SEAL:
            raise AuditError("not a record")
        leaf = self._link + bytes.fromhex(sealed.decode()) + rest[:-2]
        self._link = merkle.leaf_hash(leaf)
        self._tree.append(self._link)
        self._left -= 1
        self.records += 1

    def _rest(self, table: dict[str, Any]) -> None:
        log = self._log or {}
        for level, item in table["rest"]:
            node = bytes.fromhex(item)
            if not 0 <= level < 64 or len(node) != 32:
                raise AuditError("a subtree that is none")
            self._tree.append(node, level)
        if self._tree.size != log["size"] or self._tree.root().hex() != log["root"]:
            raise AuditError(f"the records of {log['log']} are not the ones that were signed")
        self._log = None

    def _end(self, note: str) -> None:
        signed = notes.open_note(note.encode(), self._public)
        if (signed.log, signed.size, signed.root) != ("export", self.lines, self._digest.digest()):
            raise AuditError("the lines are not the ones that were signed at the end")
        self.ended = True


def _read(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(_LONGEST):
        if not line.endswith(b"\n"):
            raise AuditError("a line without an end, or longer than any line can be")
        yield line


def _time_ms(leaf: bytes) -> int:
    return int(leaf[leaf.rindex(b":") + 1 : -1])
