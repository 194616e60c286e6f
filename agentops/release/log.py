"""The log of observations and the saved values a release's state is folded into.

Invariant: observations are only ever appended, in one order for all replicas; `fold` reads on from where the saved
value ends, so nobody's observation is lost or counted twice. Sessions appear only as salted hashes. What the figures
mean is the monitor's business.
"""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentops.release.monitor import Monitor
from agentops.release.registry import release_from, release_key, unreadable
from agentops.release.rules import Rules, rules_from
from agentops.release.sessions import Metrics
from agentops.store.state import State
from agentops.types import Assignment, Release

PAGE = 1000


@dataclass(slots=True)
class Saved:
    """A release in two keys of the shared state, each changed by compare-and-set.

    The head is small and read for every conversation: release, rules, effects that are decided but perhaps not done.
    The body is the monitor and its place in the log. The head decides: a body that a crash left behind is brought to
    the head's stage on loading.
    """

    release: Release
    rules: Rules
    effects: list[dict[str, Any]]
    resumed: int  # how often a person let it go on
    version: int = 0  # of the head
    monitor: Monitor = field(init=False)
    cursor: int = 0  # last log entry folded
    body: bytes = b""  # as loaded
    body_version: int = 0

    @classmethod
    def load(cls, state: State, router: str, body: bool = True) -> "Saved | None":
        """The saved release of `router`, None when there never was one. `body` False leaves the monitor empty."""
        found = state.get(release_key(router))
        while found is not None:
            try:
                saved = cls._of(found)
                if body:
                    saved._load_body(state)
            except (ValueError, KeyError, TypeError) as error:
                raise unreadable(router, error) from None
            again = state.get(release_key(router)) if body else found
            if again is not None and again[1] == found[1]:
                return saved  # a body is written after its head: this one cannot be ahead of the head
            found = again
        return None

    @classmethod
    def _of(cls, found: tuple[bytes, int]) -> "Saved":
        head = json.loads(found[0])
        rules = rules_from(head["rules"])
        saved = cls(release_from(head["release"]), rules, head["effects"], head["resumed"], found[1])
        saved.monitor = Monitor(rules)
        return saved

    def _load_body(self, state: State) -> None:
        found = state.get(_body_key(self.release.router))
        if found is not None:
            self.body_version = found[1]
            table = json.loads(found[0])
            if table["release"] == self.release.id:
                self.body, self.cursor = found[0], table["cursor"]
                self.monitor = Monitor.from_json(self.rules, table["monitor"])
        if self.monitor.resumed != self.resumed:
            self.monitor.forgive(self.resumed)
        if (self.monitor.stage, self.monitor.weight) != (self.release.stage, self.release.weight):
            self.monitor.begin(self.release.stage, self.release.weight)

    def write_head(self, state: State) -> bool:
        """Whether nobody else wrote first."""
        head = {
            "release": dataclasses.asdict(self.release),
            "rules": self.rules.table,
            "effects": self.effects,
            "resumed": self.resumed,
        }
        return state.compare_and_set(release_key(self.release.router), json.dumps(head).encode(), self.version)

    def write_body(self, state: State) -> bool:
        """Whether nobody else wrote first; nothing is written when nothing changed."""
        table = {"release": self.release.id, "cursor": self.cursor, "monitor": self.monitor.to_json()}
        data = json.dumps(table).encode()
        return data == self.body or state.compare_and_set(_body_key(self.release.router), data, self.body_version)


@dataclass(slots=True)
class _Seen:
    """Sessions of one release's log, with the position of their first observation; about 150 bytes each."""

    release: str
    first: dict[bytes, int] = field(default_factory=dict)
    scanned: int = 0


class ObservationLog:
    """Appends to and folds the logs of releases; one per process and thread-safe."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._seen: dict[str, _Seen] = {}  # by router
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
        key, router = _key(saved.release), saved.release.router
        with self._lock:
            seen = self._seen.get(router)
            if seen is None or seen.release != saved.release.id:
                seen = self._seen[router] = _Seen(saved.release.id)
            self._recall(key, seen, saved.cursor)
            first = seen.first
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
            seen.scanned = max(seen.scanned, saved.cursor)
        saved.monitor.settle(now)

    def _recall(self, key: str, seen: _Seen, end: int) -> None:
        """After a restart: which sessions were seen before `end`, from the log itself."""
        while seen.scanned < end:
            page = self._state.read(key, seen.scanned, min(PAGE, end - seen.scanned))
            if not page:
                return
            for position, data in page:
                for row in json.loads(data)["rows"]:
                    seen.first.setdefault(bytes.fromhex(row[0]), position)
            seen.scanned = page[-1][0]


def _token(release: Release, session: str) -> str:
    """What the log holds of a session: no personal identifier survives."""
    return hashlib.sha256(f"{release.salt}\0log\0{session}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _key(release: Release) -> str:
    return f"release/{release.router}/{release.id}/log"


def _body_key(router: str) -> str:
    return f"release/{router}/monitor"
