"""Effects that must not happen twice: which were begun, by idempotency key, in every process.

Invariant: of any number of calls with one key, one begins. How it ended, or that nobody knows (a crash, a time-out, a
lost connection), is in the audit log; nothing here repeats it. A mark outlives every process; a power cut may take back
the last moments, which the audit log holds.
"""

import hashlib
import math

import orjson

from agentops.audit import canonical
from agentops.graph import Clock
from agentops.store import State

_PREFIX = "effects/"


class Effects:
    """The marks, in the shared state. For tools that cannot tell a repeated call themselves."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def begin(self, tenant: str, key: str) -> bool:
        """Mark an effect as begun, before it is recorded and run: True exactly once.

        Raises:
            StoreError: the shared state cannot answer: the effect must not begin.
        """
        mark = orjson.dumps(self._clock.now())
        return self._state.compare_and_set(_name(tenant, key), mark, 0, durable=False)

    def forget(self, tenant: str, key: str) -> None:
        """It is sure that nothing happened: it may be tried again.

        Raises:
            StoreError: the shared state cannot answer: it stays marked.
        """
        found = self._state.get(_name(tenant, key))
        if found is not None:
            self._state.compare_and_set(_name(tenant, key), None, found[1], durable=False)

    def prune(self, before: float) -> int:
        """Forget effects that were begun before a time (seconds since the epoch); returns how many."""
        old = [(key, version) for key, value, version in self._state.scan(_PREFIX) if _at(value) < before]
        return sum(self._state.compare_and_set(key, None, version) for key, version in old)


def _name(tenant: str, key: str) -> str:
    return _PREFIX + hashlib.sha256(canonical([tenant, key])).hexdigest()


def _at(data: bytes) -> float:
    """When a mark was made; one that is damaged was made in the future: it is never forgotten."""
    try:
        return float(orjson.loads(data))
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return math.inf
