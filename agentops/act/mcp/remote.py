"""The function of a tool that another MCP server carries out, before it is bound to a connection.

Invariant: arguments are held to the pinned schema, spelled as the policies read them, and sent exactly so. Unbound, as
a project loads it, the function reaches nothing: checks and simulations never start or call a server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentops.act.mcp import schema
from agentops.act.mcp.lock import Definition
from agentops.act.tool import Context, Remote
from agentops.errors import PolicyError, SandboxError, ToolError
from agentops.policy.arguments import arguments_of, spelled
from agentops.types import Isolation, Json, ToolSpec


@dataclass(frozen=True, slots=True)
class Server:
    """A server as `[mcp]` in pack.toml declares it: a command, or a web address."""

    pack: str
    folder: Path
    command: tuple[str, ...] = ()  # as it is written; () = over HTTP
    url: str = ""
    token: str = ""  # the secret that is sent to `url`
    isolation: Isolation = field(default_factory=Isolation)  # of the command
    shared: bool = False  # one process for all tenants

    @property
    def origin(self) -> str:
        """What its digest covers beside the definition: which program or address answers."""
        return self.url or " ".join(self.command)


@dataclass(frozen=True, slots=True)
class Declared(Remote):
    """A pinned tool of a server. `Servers.bound` gives it a connection."""

    server: Server
    definition: Definition
    spec: ToolSpec

    def arguments(self, given: Mapping[str, Json]) -> dict[str, Json]:
        """The canonical arguments.

        Raises:
            ToolError: they do not fit the pinned schema, or a value is ambiguous; values are not repeated.
        """
        properties = self.spec.parameters.get("properties", {})
        defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
        complete = {**defaults, **given}
        if fault := schema.faults(self.spec.parameters, complete):
            raise ToolError(f"{self.spec.name}: {fault}")
        try:
            return spelled(arguments_of(self.spec), complete)
        except PolicyError as error:
            raise ToolError(f"{self.spec.name}: {error}") from None

    async def __call__(self, ctx: Context, **arguments: Any) -> Json:
        """Raises:
        SandboxError: always; nothing connected it.
        """
        raise SandboxError(f"{self.spec.name}: its MCP server is not connected here")
