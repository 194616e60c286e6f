"""The gateway is the only door: without it a tool has no secret and no way out, and no engine module goes around it."""

import ast
import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentops import project
from agentops.act import Context, ToolGateway, tool
from agentops.act.invoke import invoke
from agentops.act.sandbox.declarations import declaration_problems
from agentops.act.sandbox.level import detect
from agentops.errors import SandboxError
from agentops.graph import RealClock
from agentops.policy import Effects, Readings
from agentops.types import AgentSpec, Isolation, Principal, Run, Tool, ToolCall

ENGINE = Path(importlib.import_module("agentops").__file__ or "").parent

# Modules that may open connections, and why.
CONNECTING = {
    "act/sandbox/egress.py": "the broker",
    "act/lookup.py": "looks up hosts for decisions",
    "act/sandbox/wire.py": "the socket pair to a tool's process",
    "act/sandbox/pool.py": "the socket pair to a tool's process",
    "act/sandbox/broker.py": "relays connections",
    "act/sandbox/client.py": "the tool's side",
    "act/sandbox/worker.py": "the tool's side",
}
FOLDERS = ("models", "server", "store", "cache", "cli", "audit", "policy", "trace", "act/mcp")
NETWORK = {"socket", "httpx", "requests", "aiohttp", "urllib.request", "http.client", "smtplib", "ftplib", "urllib3"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(ENGINE.rglob("*.py")):
        shown = file.relative_to(ENGINE).as_posix()
        if "scaffold_files" not in shown:
            yield shown, ast.parse(file.read_text(encoding="utf-8"))


def test_only_act_calls_a_tools_function() -> None:
    calls = {
        shown
        for shown, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "function"
    }
    assert calls == {"act/invoke.py", "act/sandbox/worker.py"}


def test_only_listed_modules_can_open_connections() -> None:
    found = set()
    for shown, tree in sources():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if NETWORK & set(names):
                found.add(shown)
    strays = {shown for shown in found - set(CONNECTING) if not shown.startswith(FOLDERS)}
    assert strays <= {"parsers/address.py", "act/tool.py"}, strays  # inet_pton, and a type


def context(broker: Any = None) -> Context:
    clock = RealClock()
    run = Run("run-1", "s", Principal("acme", "ann"), AgentSpec("a", frozenset(), frozenset()), clock.now() + 60)
    return Context(run, None, clock, "c-1", "k", broker=broker)


@pytest.mark.parametrize("name", ["fetch", "connect", "secret", "read"])
def test_a_tool_called_directly_in_this_process_has_no_way_out(lab: Any, server: Any, name: str) -> None:
    given = {
        "fetch": {"url": f"http://127.0.0.1:{server.port}/ok", "secret": "shop"},
        "connect": {"host": "127.0.0.1", "port": server.port},
        "secret": {"name": "raw"},
        "read": {"path": "data/list.txt"},
    }[name]
    with pytest.raises(SandboxError, match="no broker"):
        asyncio.run(getattr(lab.tools, name).function(context(), **given))


def test_reference_tools_called_directly_find_no_broker(repo: Path) -> None:
    loaded = project.load(repo)
    try:
        for one in loaded.tools.values():
            assert one.spec.isolation is None or one.spec.isolation.least != "none"
        with pytest.raises(SandboxError, match="no broker"):
            asyncio.run(context().fetch("GET", "https://api.shop.example/"))
    finally:
        project.mount(repo)


def test_a_hand_made_context_inside_a_worker_has_no_broker_either(lab: Any) -> None:
    assert lab.go("bare") == "no broker"


def test_an_in_process_tool_that_reaches_outside_is_stopped(server: Any, desk: Any) -> None:
    @tool(effect="read", scopes={"r"}, timeout_s=5)
    async def sneaky(ctx: Context) -> str:
        """Open a connection without asking."""
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        return "out"

    outcome = asyncio.run(invoke(sneaky, context(), {}, desk.redactor))
    assert (outcome.status, outcome.value) == ("error", None)


# ---------------------------------------------------------------- through the gateway


@pytest.fixture
def governed(lab: Any, make_desk: Any, tmp_path: Path) -> Any:
    """A gateway over the lab's tools, with real policies, state and audit, and the lab's workers."""
    desk = make_desk(RealClock())
    names = ("echo", "fetch", "misbehave")
    tools = {name: getattr(lab.tools, name) for name in names}
    agent = AgentSpec("desk", frozenset(tools), frozenset({"r", "w"}), max_calls=1000)
    folder = tmp_path / "lab-policies"
    folder.mkdir()
    (folder / "desk.cedar").write_text(
        '@id("within-scopes")\npermit (principal, action, resource)\n'
        "when { !resource.scopes.isEmpty() && principal.scopes.containsAll(resource.scopes) };\n"
    )
    policy = type(desk.policy).load(folder, {name: one.spec for name, one in tools.items()}, {"desk": agent})
    lab.record = desk.audit.post
    gateway = ToolGateway(
        tools, policy, desk.audit, desk.approvals, desk.budgets, Readings(desk.state, desk.clock),
        Effects(desk.state, desk.clock), desk.cache,
        desk.world, desk.clock, None, lab.redactor, workers=lab.workers,
    )  # fmt: skip

    def call(name: str, /, seconds: float = 30.0, **given: Any) -> Any:
        run = desk.run(agent=agent, seconds=seconds)
        return lab.loop.run_until_complete(gateway.call(run, ToolCall("c-1", name, given)))

    return call, desk


def test_an_isolated_tool_answers_through_the_gateway(governed: Any, server: Any) -> None:
    call, desk = governed
    result = call("echo", text="hello")
    assert (result.status, result.value["text"]) == ("ok", "hello")
    assert desk.records("tool.decision")[-1]["isolation"] == detect()
    result = call("fetch", url=f"http://127.0.0.1:{server.port}/echo", secret="shop")
    assert result.status == "ok"
    assert "s3cr3t" not in str(result)
    kinds = [record["type"] for record in desk.audit.records]
    assert kinds[-3:] == ["tool.decision", "tool.egress", "tool.outcome"]


def test_a_blocked_tool_is_a_timeout_of_the_gateway(governed: Any) -> None:
    call, _ = governed
    call("echo", text="warm")
    result = call("misbehave", seconds=1.0, kind="sleep")
    assert result.status == "timeout"


def test_faults_and_refusals_of_the_broker_reach_nobody_in_detail(governed: Any) -> None:
    call, _ = governed
    assert call("misbehave", kind="refuse").error == "there is no such order"
    assert "internal error" in call("misbehave", kind="fault").error
    assert call("fetch", url="http://169.254.169.254/").error == "fetch: it cannot be run safely here"


# ---------------------------------------------------------------- agentops check


def test_check_finds_declarations_that_could_not_work(lab: Any, tmp_path: Path) -> None:
    def problems(isolation: Isolation | None, root: Path = lab.root) -> list[str]:
        one: Tool = lab.tools.echo
        changed = {"echo": Tool(replace(one.spec, isolation=isolation), one.function)}
        return [str(problem) for problem in declaration_problems(root, lab.root / "policies", changed)]

    assert problems(lab.tools.LAB) == []
    assert "not acceptable" in problems(Isolation(hosts=("API.shop.example:443",)))[0]
    assert "not declared" in problems(Isolation(secrets=("other",)))[0]
    assert "none of its hosts" in problems(Isolation(hosts=("a.example:443",), secrets=("shop",)))[0]
    for folder in ("policies", ".agentops", "..", "/etc", "missing", "."):
        assert "neither policies" in problems(Isolation(files=(folder,)))[0]
    reaching = problems(None)
    assert any("imports 'socket'" in text and "tools/lab/__init__.py:" in text for text in reaching)


def test_check_is_clean_for_the_reference_project(repo: Path) -> None:
    loaded = project.load(repo)
    assert list(declaration_problems(loaded.root, loaded.policies, loaded.tools)) == []
