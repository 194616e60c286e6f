"""Plan DAGs, references between their steps, critical paths and time. Pure: no I/O.

Invariant: every function takes a graph as `{node: predecessors}` and refuses a cycle or an unknown node.
The Clock is real online and virtual in simulation, so the same scheduler, deadlines and retries run in both.
"""

import asyncio
import heapq
import itertools
import re
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from agentops.types import Ref

T = TypeVar("T")


class Clock(Protocol):
    """Time as the engine sees it."""

    def now(self) -> float:
        """Seconds since the epoch, monotone within a process."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Wall time that never goes back: the epoch at start plus the monotonic counter."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset + time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """Simulated time: sleepers wake in order of their due time, and time jumps to the next one.

    The clock moves only in `drive`, once every task that can run has run: a simulated minute takes milliseconds
    and two runs with the same inputs give the same times.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(0.0, seconds), next(self._order), future))
        await future

    async def drive(self, work: Awaitable[T]) -> T:
        """Run `work` to its end, advancing time whenever everything else waits.

        Raises:
            RuntimeError: `work` waits for something that is not this clock and does not come within 64 turns
                of the event loop (simulated code must not do real I/O waits).
        """
        task = asyncio.ensure_future(work)
        # asyncio's own queue says when nothing else can run; another loop is given a fixed number of turns to settle.
        # A fixed number alone is a trap: work that needs one turn more is overtaken by its own deadline.
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        settled = 32 if ready is None else 2
        idle = 0
        while not task.done():
            await asyncio.sleep(0)
            idle = 0 if ready else idle + 1
            if idle < settled:
                continue
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)  # cancelled meanwhile
            if self._sleepers:
                due, _, future = heapq.heappop(self._sleepers)
                self._now = max(self._now, due)
                future.set_result(None)
                idle = 0
            elif idle > 64:
                task.cancel()
                raise RuntimeError("simulated work waits for something outside the virtual clock")
        return task.result()


def topological(predecessors: Mapping[str, Iterable[str]]) -> list[str]:
    """Nodes so that each comes after its predecessors; ties keep the mapping's order.

    Raises:
        ValueError: a cycle, or a predecessor that is not a node.
    """
    waiting = {node: set(before) for node, before in predecessors.items()}
    for node, before in waiting.items():
        for other in before:
            if other not in waiting:
                raise ValueError(f"step {node!r} waits for {other!r}, which is not a step")
    order: list[str] = []
    ready = [node for node, before in waiting.items() if not before]
    followers: dict[str, list[str]] = {node: [] for node in waiting}
    for node, before in waiting.items():
        for other in before:
            followers[other].append(node)
    while ready:
        node = ready.pop(0)
        order.append(node)
        for follower in followers[node]:
            waiting[follower].discard(node)
            if not waiting[follower]:
                ready.append(follower)
    if len(order) < len(waiting):
        raise ValueError(f"steps wait for each other in a circle: {', '.join(sorted(set(waiting) - set(order)))}")
    return order


def critical_path(predecessors: Mapping[str, Iterable[str]], durations: Mapping[str, float]) -> tuple[float, list[str]]:
    """Length (in the unit of `durations`) and nodes of the longest path: the least makespan with unlimited workers."""
    finish: dict[str, float] = {}
    via: dict[str, str | None] = {}
    for node in topological(predecessors):
        before = list(predecessors[node])
        last = max(before, key=finish.__getitem__, default=None)
        finish[node] = (finish[last] if last is not None else 0.0) + durations[node]
        via[node] = last
    if not finish:
        return 0.0, []
    last_node = max(finish, key=finish.__getitem__)
    length = finish[last_node]
    node: str | None = last_node
    path: list[str] = []
    while node is not None:
        path.append(node)
        node = via[node]
    return length, path[::-1]


_REFERENCE = re.compile(r"([a-z][a-z0-9_]*)((?:\.(?:[A-Za-z_][A-Za-z0-9_]*|\d+))*)")
_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def reference(text: str) -> Ref:
    """`o.items.0.sku` as a Ref.

    Raises:
        ValueError: `text` is not `name(.field|.index)*`.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a reference: write step.field or step.list.0")
    parts = tuple(int(part) if part.isdigit() else part for part in match[2].split(".")[1:])
    return Ref(match[1], parts)


def references(value: Any) -> set[str]:
    """Ids of the steps an argument value refers to, at any depth."""
    if isinstance(value, Ref):
        return {value.step}
    if isinstance(value, Mapping):
        return set().union(*(references(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(references(item) for item in value))
    return set()


def resolve(value: Any, results: Mapping[str, Any]) -> Any:
    """`value` with every Ref replaced by what it points to in `results` (step id -> result).

    Raises:
        ValueError: the step has no result, or the result has no such field; names the reference.
    """
    if isinstance(value, Ref):
        shown = ".".join([value.step, *map(str, value.path)])
        if value.step not in results:
            raise ValueError(f"{shown!r} refers to step {value.step!r}, which has no result")
        found = results[value.step]
        for part in value.path:
            try:
                found = found[part]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"{shown!r}: the result has no {part!r}") from None
        return found
    if isinstance(value, Mapping):
        return {key: resolve(item, results) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, results) for item in value]
    return value


def holes(template: str) -> list[Ref]:
    """References in the `{step.field}` holes of an answer template; `{{` and `}}` are literal braces.

    Raises:
        ValueError: a hole that is not a reference.
    """
    return [reference(match[1].strip()) for match in _HOLE.finditer(template) if match[1] is not None]


def render(template: str, results: Mapping[str, Any]) -> str:
    """`template` with its holes filled from `results`. Lists are joined with ", ".

    Raises:
        ValueError: as `resolve`.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = resolve(reference(match[1].strip()), results)
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return _HOLE.sub(fill, template)
