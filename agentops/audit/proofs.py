"""Proof of one record to someone who has only the public key: to a signed head, and to its line in a system log.

A proof is a JSON object: the leaf, its inclusion in the tree of `size` records of its log, and what vouches for that
tree: the log's own signed checkpoint, a `log.heads` line with its inclusion in a signed system log, or both.

Invariant: `verify_proof` believes nothing in a proof that the key did not sign, directly or through a tree. It reads no
folder. Proofs are made from logs as they lie there; whether these are whole is `verify`'s answer.
"""

import base64
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentops.audit import frames, logfile, merkle, names, notes
from agentops.errors import AuditError
from agentops.types import Json

FORMAT = "agentops-audit-proof/1"


@dataclass(frozen=True, slots=True)
class Line:
    """A head of a log as a signed system log remembers it."""

    size: int
    root: str  # hex
    system: str  # the system log
    index: int  # of the record in it


class Commitments:
    """What the system logs of a folder say of other logs; read once, then looked up."""

    def __init__(self, folder: Path, public: bytes) -> None:
        """Read the system logs.

        Raises:
            AuditError: one cannot be read, or its checkpoint is not signed by this key.
        """
        self.folder = folder
        self.public = public
        self._newest: dict[str, Line] = {}
        self._notes: dict[str, tuple[notes.Checkpoint, bytes]] = {}
        for system in names.system_names(folder):
            signed = logfile.read_note(folder, system, public)
            if signed is None:
                continue
            self._notes[system] = signed
            for index, envelope in frames.walk(logfile.read_log(folder, system), system, public).control:
                for log, (size, root) in heads_of(envelope).items() if index < signed[0].size else ():
                    known = self._newest.get(log)
                    if known is None or size > known.size:
                        self._newest[log] = Line(size, root, system, index)
        self._tree = functools.lru_cache(maxsize=4)(self._read)  # the logs whose lines are proved come in turn

    def newest(self, log: str) -> Line | None:
        """The largest head of `log` in a signed system log."""
        return self._newest.get(log)

    def prove(self, line: Line) -> dict[str, Json]:
        """The line's record, and its inclusion in the system log's signed head."""
        checkpoint, note = self._notes[line.system]
        leaves, rows = self._tree(line.system)
        return {
            "log": line.system,
            "index": line.index,
            "leaf": base64.b64encode(leaves[line.index]).decode(),
            "inclusion": _hex(merkle.inclusion_path(rows, line.index)),
            "checkpoint": note.decode(),
            "size": checkpoint.size,
        }

    def _read(self, system: str) -> tuple[list[bytes], list[list[bytes]]]:
        data = logfile.read_log(self.folder, system)
        leaves = [leaf for _, leaf in frames.leaves(data, len(data))][: self._notes[system][0].size]
        return leaves, merkle.levels(list(map(merkle.leaf_hash, leaves)))


@dataclass(frozen=True, slots=True)
class Target:
    """The tree that a proof or an export of a log leads to, and what vouches for it."""

    size: int
    root: bytes
    checkpoint: str | None  # the log's own note over exactly this tree
    line: Line | None  # its head in a system log


def target(commitments: Commitments, name: str, at_least: int = 1) -> Target | None:
    """The best vouched tree of a log with at least so many records; None when none is signed yet."""
    signed = logfile.read_note(commitments.folder, name, commitments.public)
    line = commitments.newest(name)
    if line is not None and line.size >= at_least:
        own = signed is not None and (signed[0].size, signed[0].root.hex()) == (line.size, line.root)
        return Target(line.size, bytes.fromhex(line.root), signed[1].decode() if signed and own else None, line)
    if signed is not None and signed[0].size >= at_least:
        return Target(signed[0].size, signed[0].root, signed[1].decode(), None)
    return None


def prove(folder: Path, name: str, index: int, public: bytes) -> dict[str, Any]:
    """A proof of record `index` of log `name`.

    Raises:
        AuditError: no such log or record, it is not signed yet, or the log is damaged before it.
    """
    if not names.NAME.fullmatch(name) or not (folder / f"{name}.log").is_file():
        raise AuditError(f"there is no log {name[:120]!r}: `agentops audit query` shows where a record is")
    commitments = Commitments(folder, public)
    found = target(commitments, name, index + 1)
    data = logfile.read_log(folder, name)
    walk = frames.walk(data, name, public, (found.size,) if found else ())
    if not 0 <= index < walk.tree.size:
        raise AuditError(f"{name}.log has {walk.tree.size} records: there is no record {index}")
    if found is None:
        raise AuditError(f"record {index} of {name}.log is not signed yet: a few seconds after it was written it is")
    if walk.roots.get(found.size) != found.root:
        raise AuditError(f"{name}.log is not what was signed: run `agentops audit verify`")
    leaves = [leaf for _, leaf in frames.leaves(data, walk.end)][: found.size]
    return {
        "format": FORMAT,
        "log": name,
        "index": index,
        "leaf": base64.b64encode(leaves[index]).decode(),
        "size": found.size,
        "root": found.root.hex(),
        "inclusion": _hex(merkle.inclusion_proof(list(map(merkle.leaf_hash, leaves)), index)),
        "checkpoint": found.checkpoint,
        "system": None if found.line is None else commitments.prove(found.line),
    }


def verify_proof(proof: Mapping[str, Any], public: bytes) -> dict[str, Json]:
    """The record that a proof proves, with `log`, `index` and `at` (seconds since the epoch).

    Raises:
        AuditError: it proves nothing: says which step does not fit.
    """
    try:
        if proof["format"] != FORMAT:
            raise AuditError(f"not a proof of format {FORMAT}")
        name, index, size, root = proof["log"], int(proof["index"]), int(proof["size"]), bytes.fromhex(proof["root"])
        leaf = base64.b64decode(proof["leaf"], validate=True)
        inclusion = [bytes.fromhex(item) for item in proof["inclusion"]]
        if not merkle.verify_inclusion(merkle.leaf_hash(leaf), index, size, inclusion, root):
            raise AuditError(f"the record is not number {index} of the tree of {size} records")
        vouched(name, size, root, proof["checkpoint"], proof["system"], public)
        return read_envelope(leaf[frames.BODY :], name, index)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise AuditError(f"not a readable proof ({type(error).__name__})") from None


def vouched(name: str, size: int, root: bytes, checkpoint: Any, system: Any, public: bytes) -> notes.Checkpoint:
    """The signed head that vouches for a tree: the system log's when there is a line, else the log's own.

    Raises:
        AuditError: something given does not fit, or nothing was given.
        KeyError, TypeError, ValueError: it has not the form of a proof.
    """
    head: notes.Checkpoint | None = None
    if checkpoint is not None:
        head = notes.open_note(checkpoint.encode(), public)
        if (head.log, head.size, head.root) != (name, size, root):
            raise AuditError(f"the signed checkpoint is not that of {name} with {size} records")
    if system is not None:
        head = notes.open_note(system["checkpoint"].encode(), public)
        leaf = base64.b64decode(system["leaf"], validate=True)
        path = [bytes.fromhex(item) for item in system["inclusion"]]
        hashed = merkle.leaf_hash(leaf)
        if head.log != system["log"] or head.log.startswith(names.TENANTS) or head.size != system["size"]:
            raise AuditError(f"the line that names {name} is not of the system log that was signed")
        if not merkle.verify_inclusion(hashed, int(system["index"]), head.size, path, head.root):
            raise AuditError(f"the line that names {name} is not in the signed system log")
        if heads_of(leaf[frames.BODY :]).get(name) != [size, root.hex()]:
            raise AuditError(f"the system log's line is not about {name} with {size} records")
    if head is None:
        raise AuditError(f"nothing signed vouches for {name}")
    return head


def read_envelope(envelope: bytes, name: str, index: int) -> dict[str, Json]:
    """A record as `records` gives it.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    table = json.loads(envelope)
    own = table["log"] if "log" in table else table["record"]
    return {**own, "log": name, "index": index, "at": int(table["time_ms"]) / 1000}


def heads_of(envelope: bytes) -> dict[str, list]:
    """The heads in a `log.heads` record: log -> [size, root in hex]; of any other record none."""
    try:
        table = json.loads(envelope)["log"]
        return dict(table["heads"]) if table["type"] == "log.heads" else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}  # another record of the log's own; an unreadable one is for `verify` to report


def _hex(hashes: list[bytes]) -> list[str]:
    return [item.hex() for item in hashes]
