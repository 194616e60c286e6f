"""What the gateway is given beside tools and policies: doors that the conductors open and simulation leaves shut.

Invariant: each fails closed by its own contract; the gateway adds nothing to what it answers.
"""

from collections.abc import Mapping
from typing import Protocol

from agentops.act.tool import Context
from agentops.types import Decision, Json, Level, Run, Tool, ToolCall, ToolSpec


class KillSwitch(Protocol):
    """Implemented by `agentops.policy.KillSwitch`."""

    async def stopped(self, run: Run, spec: ToolSpec) -> str:
        """Why this call must not begin, as one safe sentence; "" when it may.

        Raises:
            StoreError: the switch cannot be read now, and the call must not begin.
        """
        ...


class DecisionRecords(Protocol):
    """Implemented by `agentops.policy.DecisionRecords`."""

    def post(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json], decision: Decision) -> None:
        """Keep a decision with everything it was made on. Never raises and never waits."""
        ...


class Workers(Protocol):
    """Implemented by `agentops.act.sandbox.pool.Workers`: processes that isolated tools run in."""

    @property
    def level(self) -> Level:
        """The isolation this machine achieves."""
        ...

    async def call(self, tool: Tool, context: Context, arguments: Mapping[str, Json], timeout_s: float) -> Json:
        """Run an isolated tool in a process of its own; a process that does not answer in time is killed.

        Raises:
            ToolError: the tool refuses.
            SandboxError: the isolation that the tool asks for is not to be had, or the process broke.
            TimeoutError: it took longer than `timeout_s` seconds of real time.
        """
        ...
