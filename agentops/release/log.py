"""The log of observations and the one saved value a release's state is folded into.

Invariant: observations are only ever appended, in one order for all replicas; `fold` reads on from where the saved
value ends, so nobody's observation is lost or counted twice. Sessions appear only as salted hashes. What the figures
mean is the monitor's business.
"""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentops.release.monitor import Monitor
from agentops.release.registry import release_from
from agentops.release.rules import rules_from
from agentops.release.sessions import Metrics
from agentops.store.state import State
from agentops.types import Assignment, Release

PAGE = 1000


@dataclass(slots=True)
class Saved:
    """The one value in the shared state."""

    release: Release
    monitor: Monitor
    cursor: int  # last log entry folded
    effects: list[dict[str, Any]]  # decided, perhaps not yet done

    def dump(self) -> bytes:
        table = dataclasses.asdict(self.release)
        return json.dumps(
            {
                "release": table,
                "rules": self.monitor.rules.table,
                "monitor": self.monitor.to_json(),
                "cursor": self.cursor,
                "effects": self.effects,
            }
        ).encode()

    @classmethod
    def load(cls, data: bytes) -> "Saved":
        saved = json.loads(data)
        rules = rules_from(saved["rules"])
        return cls(
            release_from(saved["release"]),
            Monitor.from_json(rules, saved["monitor"]),
            saved["cursor"],
            saved["effects"],
        )


class ObservationLog:
    """Appends to and folds the logs of releases; one per process and thread-safe."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._first: dict[str, dict[bytes, int]] = {}  # release id -> session -> log position of its first observation
        self._scanned: dict[str, int] = {}
        self._lock = threading.Lock()

    def append(self, release: Release, observations: Sequence[tuple[str, Assignment, Metrics]], at: float) -> bool:
        """Write observations durably, skipping those of other releases. True: one of them ends the release at once.

        Raises:
            ReleaseError: a metric out of range; nothing is written.
        """
        rows, urgent = [], False
        for session, assignment, metrics in observations:
            metrics.checked()
            if assignment.salt != release.salt:
                continue
            candidate = assignment.version == release.candidate
            rows.append([_token(release, session), candidate, assignment.weight, *metrics.to_json()])
            urgent = urgent or (bool(metrics.hard) and (candidate or release.stage == "shadow"))
        if rows:
            self._state.append(_key(release), json.dumps({"at": at, "rows": rows}).encode())
        return urgent

    def fold(self, saved: Saved, now: float) -> None:
        """Bring `saved` up to the end of its log and settle what is due at `now`."""
        key, id = _key(saved.release), saved.release.id
        with self._lock:
            first = self._first.setdefault(id, {})
            self._recall(key, first, self._scanned.get(id, 0), saved.cursor)
            while page := self._state.read(key, saved.cursor, PAGE):
                for position, data in page:
                    entry = json.loads(data)
                    here: set[str] = set()
                    for token, candidate, weight, *values in entry["rows"]:
                        new = first.setdefault(bytes.fromhex(token), position) == position and token not in here
                        here.add(token)
                        saved.monitor.observe(token, candidate, weight, entry["at"], Metrics.from_json(values), new)
                    saved.monitor.settle(entry["at"])
                    saved.cursor = position
            self._scanned[id] = max(self._scanned.get(id, 0), saved.cursor)
        saved.monitor.settle(now)

    def _recall(self, key: str, first: dict[bytes, int], at: int, end: int) -> None:
        """After a restart: which sessions were seen before `end`, from the log itself."""
        while at < end:
            page = self._state.read(key, at, min(PAGE, end - at))
            if not page:
                return
            for position, data in page:
                for row in json.loads(data)["rows"]:
                    first.setdefault(bytes.fromhex(row[0]), position)
            at = page[-1][0]


def _token(release: Release, session: str) -> str:
    """What the log holds of a session: no personal identifier survives."""
    return hashlib.sha256(f"{release.salt}\0log\0{session}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _key(release: Release) -> str:
    return f"release/{release.router}/{release.id}/log"
