"""Bounded waiting for a Redis that may be gone.

Invariant: an operation takes at most the sum of its tries' limits, and while the breaker is open it takes nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

T = TypeVar("T")


class Unavailable(Exception):
    """Redis did not answer in time, or lately did not: go on without it."""


class Breaker:
    """Lets operations through while they succeed; after a failure only one probe each `rest_s`.

    Args:
        tries: limit of each try in seconds. The second gives a connection that went stale, or a process that was
            busy itself, a second chance before everybody goes without the cache.
        rest_s: how long nothing is tried after a failure, in seconds.
    """

    def __init__(self, tries: tuple[float, ...] = (0.05, 0.2), rest_s: float = 1.0) -> None:
        self._tries = tries
        self._rest_s = rest_s
        self._closed_at = 0.0  # nothing before this monotonic time
        self._failed = False
        self._probing = False
        self.failures = 0

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The operation's result.

        Raises:
            Unavailable: it failed, or the breaker is open.
        """
        if self._failed:
            if self._probing or time.monotonic() < self._closed_at:
                raise Unavailable
            self._probing = True
        try:
            result = await self._attempt(operation)
        except Unavailable:
            self.failures += 1
            self._failed = True
            self._closed_at = time.monotonic() + self._rest_s
            raise
        else:
            self._failed = False
            return result
        finally:
            self._probing = False

    async def _attempt(self, operation: Callable[[], Awaitable[T]]) -> T:
        problem: Exception | None = None
        for limit in self._tries:
            try:
                async with asyncio.timeout(limit):
                    return await operation()
            except (RedisError, OSError) as error:  # a TimeoutError is an OSError
                problem = error
        raise Unavailable from problem
