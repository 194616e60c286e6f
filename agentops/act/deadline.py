"""Work under a deadline on an injected clock, real or virtual.

Invariant: `within` returns or raises no later than a few turns of the event loop after the deadline, also when the work
ignores its cancellation. It retries nothing.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentops.graph import Clock, RealClock

T = TypeVar("T")
_GRACE_TURNS = 4  # of the event loop: what cancelled work gets to roll back and to say how it ended


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled after `seconds` of `clock`.

    Work that returns a result while it is being cancelled did finish: the result counts.

    Raises:
        TimeoutError: the time is over.
        RuntimeError: the work cancelled itself.
        Exception: what the work raised.
    """
    task = asyncio.ensure_future(work)
    timer = None if isinstance(clock, RealClock) else asyncio.ensure_future(clock.sleep(seconds))
    try:
        if timer is None:  # the event loop's own timer: a task for it would double the cost of a quick call
            await asyncio.wait((task,), timeout=seconds)
        else:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
        late = not task.done()
    finally:
        if timer is not None:
            timer.cancel()
        if not task.done():
            task.cancel()
            for _ in range(_GRACE_TURNS):
                await asyncio.sleep(0)
                if task.done():
                    break
        if not task.done():
            task.add_done_callback(_forget)
    if not task.done() or (late and (task.cancelled() or task.exception() is not None)):
        raise TimeoutError
    if task.cancelled():
        raise RuntimeError("the work cancelled itself")
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    """Look at the error of work nobody waits for any more, so that it is not reported as lost."""
    if not task.cancelled():
        task.exception()
