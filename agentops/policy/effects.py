"""Effects that must not happen twice: which were begun and which ended, by idempotency key, in every process.

Invariant: of any number of calls with one key, one begins; the others learn that it was done, or that nobody knows.
What was begun and never ended (a crash, a time-out, a lost connection) stays unknown until a person has looked: nothing
here repeats it. A mark outlives every process; a power cut may take back the last moments, which the audit log holds.
"""

import hashlib
from typing import Literal

import orjson

from agentops.audit import canonical
from agentops.errors import StoreError
from agentops.graph import Clock
from agentops.store import State

Begun = Literal["new", "unknown", "done"]
_PREFIX = "effects/"


class Effects:
    """The marks, in the shared state. For tools that cannot tell a repeated call themselves."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def begin(self, tenant: str, key: str) -> Begun:
        """Mark an effect as begun, before it is recorded and run: "new" exactly once.

        Raises:
            StoreError: the shared state cannot answer: the effect must not begin.
        """
        name = _name(tenant, key)
        if self._state.compare_and_set(name, self._mark(False), 0, durable=False):
            return "new"
        found = self._state.get(name)
        return "done" if found is not None and _done(found[0]) else "unknown"

    def end(self, tenant: str, key: str, happened: bool) -> None:
        """It ended: it `happened` and is not repeated, or it did not and may be tried again.

        Raises:
            StoreError: the shared state cannot answer: it stays unknown.
        """
        name = _name(tenant, key)
        found = self._state.get(name)
        if found is not None:
            self._state.compare_and_set(name, self._mark(True) if happened else None, found[1], durable=False)

    def prune(self, before: float) -> int:
        """Forget effects that were begun before a time (seconds since the epoch); returns how many."""
        old = [(key, version) for key, value, version in self._state.scan(_PREFIX) if _at(value) < before]
        return sum(self._state.compare_and_set(key, None, version) for key, version in old)

    def _mark(self, done: bool) -> bytes:
        return orjson.dumps([done, self._clock.now()])


def _name(tenant: str, key: str) -> str:
    return _PREFIX + hashlib.sha256(canonical([tenant, key])).hexdigest()


def _done(data: bytes) -> bool:
    return _decoded(data)[0]


def _at(data: bytes) -> float:
    return _decoded(data)[1]


def _decoded(data: bytes) -> tuple[bool, float]:
    try:
        done, at = orjson.loads(data)
        if isinstance(done, bool) and isinstance(at, int | float):
            return done, float(at)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        pass  # told below, like every other form that is not ours
    raise StoreError("the mark of an effect in the shared state is damaged: it is not repeated until it is removed")
