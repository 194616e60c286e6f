"""What stages are injected through: the shapes of a router, a planner, a gateway, an environment, a verifier, an agent.

Invariant: nothing here but signatures over the nouns of `types`; a stage that needs another takes one of these.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from agentops.types import (
    Json,
    Plan,
    Request,
    Route,
    Run,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Verdict,
)


class Router(Protocol):
    """Decides what a request is about."""

    version: str

    def route(self, texts: Sequence[str]) -> list[tuple[Route, ...]]:
        """One or more routes per text, in order of mention. Never empty: OUT_OF_SCOPE when nothing fits."""
        ...


class Planner(Protocol):
    """Turns routes into a DAG of steps."""

    async def plan(self, request: Request, routes: tuple[Route, ...], tools: Mapping[str, ToolSpec]) -> Plan: ...


class Gateway(Protocol):
    """The only door to a tool."""

    async def call(self, run: Run, call: ToolCall) -> ToolResult: ...


class Environment(Protocol):
    """A world an episode can run in and be judged in."""

    def reset(self, seed: int, task: Task) -> str:
        """A fresh world; returns the request text."""
        ...

    async def run(self, plan: str) -> Trajectory:
        """Execute a plan through the governed gateway on a virtual clock."""
        ...

    def verify(self, trajectory: Trajectory) -> Verdict: ...

    def close(self) -> None: ...


Verifier = Callable[[Task, Trajectory, Sequence[Mapping[str, Json]]], Verdict]  # task, episode, changes of the world
Agent = Callable[[Request], Awaitable[Trajectory]]
