"""Playbooks first, a model where they hand over: which planner answers.

Invariant: the second planner is asked only when the first hands a request over that some tool could serve, and never
while it is stopped: then a person takes over. It plans nothing itself.
"""

from collections.abc import Awaitable, Callable, Mapping

from agentops.protocols import Planner
from agentops.types import OUT_OF_SCOPE, Plan, Request, Route, ToolSpec


class WithFallback:
    """A `Planner` over two.

    Args:
        first: asked always.
        second: asked for what the first hands over, unless nothing fits at all.
        stopped: whether the second must not be asked for this request now.
    """

    def __init__(
        self,
        first: Planner,
        second: Planner,
        stopped: Callable[[Request, tuple[Route, ...]], Awaitable[bool]],
    ) -> None:
        self._first, self._second, self._stopped = first, second, stopped

    async def plan(self, request: Request, routes: tuple[Route, ...], tools: Mapping[str, ToolSpec]) -> Plan:
        """As `Planner`."""
        plan = await self._first.plan(request, routes, tools)
        fits = plan.handoff and tools and any(route.label != OUT_OF_SCOPE for route in routes)
        if fits and not await self._stopped(request, routes):
            return await self._second.plan(request, routes, tools)
        return plan
