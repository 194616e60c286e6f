"""Signed heads of system logs: what is published elsewhere, and what a place to publish them to must do.

Invariant: a head is exactly what the log's key signed. It names no place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentops.audit import frames, logfile, names, notes
from agentops.errors import AuditError

MAX_HEADS = 256 * 1024 * 1024  # bytes read from one place: a head a minute for a year is 150 MiB


@dataclass(frozen=True, slots=True)
class Head:
    """The signed head of the system log `log` in `folder`."""

    folder: Path
    checkpoint: notes.Checkpoint
    note: bytes

    @property
    def log(self) -> str:
        return self.checkpoint.log

    def leaf_hashes(self) -> list[bytes]:
        """Leaf hashes of what the head covers, for a consistency proof."""
        data = logfile.read_log(self.folder, self.log)
        return frames.leaf_hashes(data, len(data))[: self.checkpoint.size]


class Anchor(Protocol):
    """One place. Every method raises AuditError when the place does not answer or refuses."""

    @property
    def spec(self) -> str:
        """The specification that names it."""
        ...

    def publish(self, head: Head) -> None:
        """Have the head kept; returns when the place has it."""
        ...

    def kept(self) -> list[bytes]:
        """Signed notes that the place keeps, of whatever key."""
        ...


def heads(folder: Path, public: bytes) -> list[Head]:
    """The signed heads of all system logs in an audit folder.

    Raises:
        AuditError: a checkpoint is not signed by this key.
    """
    signed = [logfile.read_note(folder, name, public) for name in names.system_names(folder)]
    return [Head(folder, *one) for one in signed if one is not None]


def head_of(folder: Path, name: str, public: bytes) -> Head:
    """The signed head of one system log.

    Raises:
        AuditError: it has none, or one that this key did not sign.
    """
    signed = logfile.read_note(folder, name, public)
    if signed is None:
        raise AuditError(f"{name}.log has no signed head yet: a few seconds after its first record it has")
    return Head(folder, *signed)
