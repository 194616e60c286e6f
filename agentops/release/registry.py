"""Pointers: which artifact of each router serves, since when, trained on what, approved by whom.

Invariant: a pointer only ever names an artifact that is present and undamaged; it moves by compare-and-set, each move
is numbered, kept in an append-only history and recorded in the audit log before it happens. It moves nothing by itself.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from agentops.errors import ReleaseError
from agentops.graph import Clock, RealClock
from agentops.store.artifacts import Artifacts
from agentops.store.state import State
from agentops.types import Json, Release


class Audit(Protocol):
    """The part of the audit log used here."""

    def append_now(self, record: Mapping[str, Json]) -> int: ...


class Registry:
    """Pointers of one deployment, shared by all its replicas through `state`."""

    def __init__(self, state: State, artifacts: Artifacts, audit: Audit, clock: Clock | None = None) -> None:
        self.state = state
        self.artifacts = artifacts
        self.audit = audit
        self.clock = clock or RealClock()
        self._parsed: dict[str, tuple[int, Release]] = {}  # by version: assignment asks for every conversation

    def current(self, router: str) -> str:
        """Digest of the version that serves, "" when none was ever set."""
        return str(self.pointer(router).get("digest", ""))

    def pointer(self, router: str) -> dict[str, Any]:
        """Digest, number, since, by, approved_by, reason, release, previous. Empty when never set."""
        found = self.state.get(_pointer_key(router))
        return json.loads(found[0]) if found else {}

    def set(
        self,
        router: str,
        digest: str,
        *,
        by: str,
        reason: str,
        approved_by: str = "",
        release: str = "",
        expected: str | None = None,
    ) -> dict[str, Any]:
        """Point `router` at `digest`. Does nothing when it already does.

        Args:
            router: name of the router.
            digest: of the artifact that shall serve.
            by: who moves it.
            reason: why, one sentence.
            approved_by: who approved it, when that is another person.
            release: id of the release that decided it.
            expected: digest the pointer must have now; default: whatever it has (but nobody else may move it
            meanwhile).

        Raises:
            StoreError: the artifact is not here or damaged.
            ReleaseError: the pointer is not `expected`, or somebody else moved it at the same time.
        """
        self.artifacts.path(digest)
        found = self.state.get(_pointer_key(router))
        before = json.loads(found[0]) if found else {}
        if before.get("digest") == digest:
            return before
        if expected is not None and before.get("digest", "") != expected:
            raise ReleaseError(
                f"router {router!r} serves {before.get('digest') or 'nothing'!s}, not {expected or 'nothing'!s}: "
                "somebody moved it; look at `agentops release history`"
            )
        entry = {
            "router": router,
            "digest": digest,
            "number": int(before.get("number", 0)) + 1,
            "since": self.clock.now(),
            "by": by,
            "approved_by": approved_by,
            "reason": reason,
            "release": release,
            "previous": before.get("digest", ""),
        }
        self.audit.append_now({"type": "release.pointer", **entry})
        data = json.dumps(entry, sort_keys=True).encode()
        if not self.state.compare_and_set(_pointer_key(router), data, found[1] if found else 0):
            self.audit.append_now(
                {"type": "release.pointer.lost", "router": router, "number": entry["number"], "digest": digest}
            )
            raise ReleaseError(f"router {router!r} was moved by somebody else at the same time: look, then try again")
        self.state.append(_history_key(router), data)
        return entry

    def history(self, router: str) -> list[dict[str, Any]]:
        """Every move of the pointer, oldest first."""
        entries: dict[int, dict[str, Any]] = {}
        after = 0
        while page := self.state.read(_history_key(router), after):
            after = page[-1][0]
            for _, data in page:
                entry = json.loads(data)
                entries[entry["number"]] = entry
        pointer = self.pointer(router)
        if pointer:
            entries.setdefault(pointer["number"], pointer)  # a crash between the move and its history line
        return [entries[number] for number in sorted(entries)]

    def serving(self, router: str) -> dict[str, Any]:
        """What is serving, since when, trained on what, approved by whom: the pointer and its artifact's manifest.

        Raises:
            ReleaseError: no version was ever set.
            StoreError: the artifact is gone or damaged.
        """
        pointer = self.pointer(router)
        if not pointer:
            raise ReleaseError(f"router {router!r} has no version in service: train one, then release it")
        return {**pointer, "manifest": self.artifacts.manifest(pointer["digest"])}

    def release(self, router: str) -> Release | None:
        """The latest release of `router`, open or finished; None when there never was one."""
        found = self.state.get(release_key(router))
        if found is None:
            return None
        known = self._parsed.get(router)
        if known is None or known[0] != found[1]:
            try:
                known = self._parsed[router] = (found[1], release_from(json.loads(found[0])["release"]))
            except (ValueError, KeyError, TypeError) as error:
                raise unreadable(router, error) from None
        return known[1]


def release_from(table: Mapping[str, Any]) -> Release:
    """A Release from its JSON form."""
    fields: dict[str, Any] = {**table, "history": tuple(table.get("history", ()))}
    return Release(**fields)


def unreadable(router: str, error: Exception) -> ReleaseError:
    """What to say of a saved release that does not parse."""
    return ReleaseError(
        f"what is saved of the release of router {router!r} cannot be read ({type(error).__name__}): it was damaged or "
        f"written by another version; delete the state key {release_key(router)!r} to start anew"
    )


def release_key(router: str) -> str:
    return f"release/{router}"


def _pointer_key(router: str) -> str:
    return f"pointer/{router}"


def _history_key(router: str) -> str:
    return f"pointer/{router}/history"
