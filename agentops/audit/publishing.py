"""Publishes the head of this process's system log to the configured anchors by itself, at most once a minute.

Invariant: it never makes a call wait and never raises: an anchor that fails is logged, counted in `anchors.json` of the
audit folder (which `agentops doctor` and `audit verify` show) and tried again with the next head. One thread.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from agentops.audit import notes
from agentops.audit.anchors import open_anchor
from agentops.audit.heads import Anchor, Head, head_of
from agentops.errors import AgentopsError, AuditError

EVERY_SECONDS = 60.0
STATUS = "anchors.json"
_CLOSING_SECONDS = 15.0  # the longest that closing waits for anchors
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnchorStatus:
    """How publishing to one anchor went, over all processes of this folder."""

    published_at: float = 0.0  # seconds since the epoch; 0 = never
    log: str = ""
    size: int = 0
    failures: int = 0  # since the last success
    failed_at: float = 0.0
    error: str = ""


def status(folder: Path) -> dict[str, AnchorStatus]:
    """The state of each anchor that was ever published to; empty when the file is missing or unreadable."""
    try:
        table = orjson.loads((folder / STATUS).read_bytes())
        return {spec: AnchorStatus(**entry) for spec, entry in table.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def publish(folder: Path, anchor: Anchor, head: Head) -> None:
    """Publish one head and note how it went.

    Raises:
        AgentopsError: the anchor refused or did not answer.
    """
    old = status(folder).get(anchor.spec, AnchorStatus())
    try:
        anchor.publish(head)
    except AgentopsError as error:
        _note(
            folder,
            anchor.spec,
            AnchorStatus(old.published_at, old.log, old.size, old.failures + 1, time.time(), str(error)),
        )
        raise
    _note(folder, anchor.spec, AnchorStatus(time.time(), head.log, head.checkpoint.size))


class Publisher:
    """The thread that publishes; started with the first head."""

    def __init__(self, folder: Path, public: bytes, specs: Sequence[str]) -> None:
        """Check the specifications; contact nothing.

        Raises:
            AuditError: one of them is not an anchor.
        """
        self._folder = folder
        self._public = public
        self._anchors = [open_anchor(spec) for spec in specs]
        self._change = threading.Condition()
        self._name = ""  # of the system log with a head to publish
        self._closing = False
        self._next = 0.0  # monotonic
        self._thread = threading.Thread(target=self._run, name="audit-anchors", daemon=True)

    def signed(self, name: str) -> None:
        """System log `name` has a new signed head. Returns at once."""
        if not self._anchors:
            return
        with self._change:
            self._name = name
            if not self._thread.is_alive() and not self._closing:
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Publish the last head, unless anchors failed within the last minute; wait at most 15 seconds."""
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._closing and (not self._name or time.monotonic() < self._next):
                    self._change.wait(max(0.01, self._next - time.monotonic()) if self._name else None)
                name, self._name, last = self._name, "", self._closing
            if name:
                self._next = time.monotonic() + EVERY_SECONDS
                known = status(self._folder)
                for anchor in self._anchors:
                    failing = time.time() - known.get(anchor.spec, AnchorStatus()).failed_at < EVERY_SECONDS
                    if not (last and failing):
                        self._publish(anchor, name)
            if last:
                return

    def _publish(self, anchor: Anchor, name: str) -> None:
        try:
            publish(self._folder, anchor, head_of(self._folder, name, self._public))
        except AgentopsError as error:
            _LOG.warning("an audit head was not anchored: %s", error)
        except Exception as error:  # noqa: BLE001 - the thread must live; the next head is tried
            _LOG.warning("an audit head was not anchored at %s: %s", anchor.spec, type(error).__name__)


def _note(folder: Path, spec: str, entry: AnchorStatus) -> None:
    table = {known: asdict(value) for known, value in status(folder).items()}
    table[spec] = asdict(entry)
    try:
        notes.replace_durably(folder / STATUS, orjson.dumps(table, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise AuditError(f"the state of the anchors cannot be written: {error.strerror}") from None
