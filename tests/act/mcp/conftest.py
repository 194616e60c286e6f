"""A project with one MCP pack behind a real gateway; its server is a real process (or a real HTTP server)."""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agentops import project
from agentops.act import ToolGateway
from agentops.act.mcp import lock
from agentops.act.mcp.client import Servers
from agentops.act.mcp.pack import server
from agentops.act.mcp.states import States, states
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.secrets import Secrets
from agentops.audit import MemoryAudit
from agentops.cache import MemoryCache
from agentops.graph import RealClock
from agentops.policy import Approvals, Budgets, DailyLimits, Effects, Limits, PolicySet, Readings
from agentops.redact import Redactor
from agentops.store import open_state
from agentops.types import AgentSpec, Json, Principal, Run, ToolCall, ToolResult

POLICIES = """
@id("within-scopes")
permit (principal, action, resource)
when { !resource.scopes.isEmpty() && principal.scopes.containsAll(resource.scopes) };
"""
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


def offered(name: str, description: str = "Look.", schema: Json = None, **more: Json) -> Json:
    """An entry of tools/list."""
    return {"name": name, "description": description, "inputSchema": schema or TEXT, **more}


class Rig:
    """The project, its pins, and a gateway on them. Everything lives in one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.pack = root, root / "tools" / "crm"
        (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
        for folder in project.FOLDERS:
            (root / folder).mkdir()
        self.pack.mkdir()
        (root / "policies" / "desk.cedar").write_text(POLICIES)
        shutil.copy(Path(__file__).with_name("hostile_server.py"), self.pack / "server.py")
        self.state = open_state(root, None)
        self.audit = MemoryAudit()

    def declare(self, tools: str, head: str = 'command = ["python", "server.py"]') -> None:
        (self.pack / "pack.toml").write_text(f"[mcp]\n{head}\n{tools}")

    def behave(self, *tools: Json, **calls: str) -> None:
        fresh = self.pack / "behaviour.tmp"
        fresh.write_text(json.dumps({"tools": tools, "calls": calls}))
        fresh.replace(self.pack / "behaviour.json")

    def servers(self) -> Servers:
        changed = States(self.state, self.audit).changed
        return Servers(self.root, Secrets.load(self.root / "policies"), Egress(), changed)

    def pin(self) -> dict[str, lock.Definition]:
        """Pin whatever the server says now."""

        async def listed() -> list[lock.Definition]:
            servers = self.servers()
            try:
                settings, _ = project.read_toml(self.root, self.pack / "pack.toml")
                return await servers.listing(server(self.pack, settings))
            finally:
                await servers.close()

        found = {one.name: one for one in asyncio.run(listed())}
        lock.write(self.pack, found.values())
        return found

    def problems(self) -> list[str]:
        return [str(one) for one in project.inspect(self.root)[1]]

    def go(self, work: Callable[["Calls"], Coroutine[Any, Any, Any]]) -> Any:
        """Run `work` with a gateway; afterwards every server is gone."""
        loaded = project.load(self.root)

        async def whole() -> Any:
            servers = self.servers()
            try:
                return await work(Calls(self, servers, loaded.tools))
            finally:
                await servers.close()

        return asyncio.run(whole())

    def one(self, tool: str, **arguments: Json) -> ToolResult:
        """One call, with a server of its own."""
        return self.go(lambda calls: calls(tool, **arguments))

    def states(self) -> dict[str, str]:
        return dict(states(self.state, project.load(self.root).tools))


class Calls:
    """Makes calls through a gateway."""

    def __init__(self, rig: Rig, servers: Servers, tools: Any) -> None:
        clock = RealClock()
        self.agent = AgentSpec("desk", frozenset(tools), frozenset({"r", "w"}), 1000, 1_000_000)
        specs = {name: one.spec for name, one in tools.items()}
        policy = PolicySet.load(rig.root / "policies", specs, {"desk": self.agent})
        limits = Limits(DailyLimits(calls=100_000, money_cents=1_000_000))
        self.budgets = Budgets(rig.state, clock, limits)
        self.clock, self.tools, self.servers = clock, servers.bound(tools), servers
        self.gateway = ToolGateway(
            self.tools, policy, rig.audit, Approvals(rig.state, clock), self.budgets, Readings(rig.state, clock),
            Effects(rig.state, clock), MemoryCache(now=clock.now), None, clock, None, Redactor(b"k" * 32),
        )  # fmt: skip
        self.count = 0

    def run(self, tenant: str = "acme", scopes: tuple[str, ...] = ("r", "w")) -> Run:
        who = Principal(tenant, "ann", frozenset(scopes))
        return Run("run-1", f"s-{tenant}", who, self.agent, self.clock.now() + 60)

    async def __call__(self, tool: str, run: Run | None = None, **arguments: Json) -> ToolResult:
        self.count += 1
        return await self.gateway.call(run or self.run(), ToolCall(f"c-{self.count}", tool, arguments))

    async def text(self, tool: str, run: Run | None = None, **arguments: Json) -> Json:
        """The JSON in the text of an answer."""
        result = await self(tool, run, **arguments)
        assert result.status == "ok", result.error
        return json.loads(result.value["text"])


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    made = Rig(tmp_path)
    yield made
    made.state.close()


@pytest.fixture
def entry() -> Any:
    return offered
