"""Single flight: callers that want the same thing at the same time share one computation.

Invariant: a computation runs in a task of its own, so a caller that is cancelled never takes it away from the others;
when the last caller has gone, it is cancelled. A caller that arrives after an invalidation never joins a computation
that began before it. Nothing is kept after a computation ended.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

Tag = tuple[str, str]  # tenant, tag


class Flight:
    """One computation and the number of callers that wait for it."""

    __slots__ = ("loop", "stale", "tags", "task", "waiting")

    def __init__(self, tags: frozenset[Tag], loop: asyncio.AbstractEventLoop) -> None:
        self.tags = tags
        self.loop = loop
        self.task: asyncio.Task[Any] | None = None
        self.stale = False  # a write made the result unusable for later callers
        self.waiting = 0


class Flights:
    """The computations under way, by key and by tag."""

    def __init__(self) -> None:
        self._by_key: dict[str, Flight] = {}
        self._by_tag: dict[Tag, set[Flight]] = {}

    async def share(
        self, key: str, tags: frozenset[Tag], start: Callable[[Flight], Coroutine[Any, Any, Any]]
    ) -> tuple[Any, bool]:
        """The result of the computation under way for `key`, or of a new one.

        Returns:
            the result, the same object for every caller, and whether this caller joined another's computation.

        Raises:
            Exception: what the computation raised, to every caller.
        """
        loop = asyncio.get_running_loop()
        flight = self._by_key.get(key)
        joined = flight is not None and flight.loop is loop  # one of a loop that is gone would never end
        if flight is None or not joined:
            flight = Flight(tags, loop)
            flight.task = loop.create_task(start(flight))
            self._by_key[key] = flight
            for tag in tags:
                self._by_tag.setdefault(tag, set()).add(flight)
            flight.task.add_done_callback(lambda task, one=flight: self._landed(key, one, task))
        assert flight.task is not None
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), joined
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if flight.task.cancelled() and caller is not None and not caller.cancelling():
                raise RuntimeError("the shared computation cancelled itself") from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._detach(key, flight)
                flight.task.cancel()

    def invalidate(self, tags: Iterable[Tag]) -> None:
        """Mark the computations with one of `tags`; later callers begin their own."""
        for tag in tags:
            for flight in self._by_tag.get(tag, ()):
                flight.stale = True
        for key in [key for key, flight in self._by_key.items() if flight.stale]:
            del self._by_key[key]

    def _landed(self, key: str, flight: Flight, task: asyncio.Task[Any]) -> None:
        self._detach(key, flight)
        for tag in flight.tags:
            flights = self._by_tag.get(tag)
            if flights is not None:
                flights.discard(flight)
                if not flights:
                    del self._by_tag[tag]
        if not task.cancelled():
            task.exception()  # seen: the callers got it, and when all have gone nobody needs to

    def _detach(self, key: str, flight: Flight) -> None:
        if self._by_key.get(key) is flight:
            del self._by_key[key]
