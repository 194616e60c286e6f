"""Our tools for other agents over MCP: a real server on loopback, called by the public library's client."""

import asyncio
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from idp_world import jwks, mint
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import Request

from agentops import audit
from agentops import project as projects
from agentops.config import Settings
from agentops.policy import ApiKeys
from agentops.project import FOLDERS
from agentops.runtime import open_runtime
from agentops.server import create_app
from agentops.server import mcp as governed
from agentops.workspace import Workspace

KEYS = (
    "shop:secret-of-the-shop-0001:default:C-1054:customer,"
    "money:secret-of-finance-00001:default:E-1:finance,"
    "other:secret-of-another-0001:globex:C-1054:customer,"
    "rival:secret-of-another-0002:default:C-1001:customer"
)
SHOP, MONEY = "Bearer shop:secret-of-the-shop-0001", "Bearer money:secret-of-finance-00001"
OTHER, RIVAL = "Bearer other:secret-of-another-0001", "Bearer rival:secret-of-another-0002"
ISSUER = """
[issuers.corp]
issuer = "https://idp.example.com/"
audience = "agentops"
algorithms = ["RS256", "EdDSA"]
jwks = "corp.json"
tenant_claim = "org"
roles_claim = "groups"
roles = { shoppers = "customer" }

[tenants.default]
[tenants.globex]
"""
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@dataclass(frozen=True)
class Desk:
    url: str
    workspace: Workspace
    root: Path

    def post(self, body: Any = LIST, agent: str = "orders", key: str = SHOP, **headers: str) -> httpx.Response:
        given = {"Authorization": key, "Accept": "application/json, text/event-stream", "X-Agentops-Agent": agent}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**given, "Content-Type": "application/json", **headers}
        return httpx.post(f"{self.url}/mcp", content=content, headers=headers, trust_env=False)

    def ask(self, work: Callable[[Client], Awaitable[Any]], agent: str = "orders", key: str = SHOP, **more: str) -> Any:
        async def whole() -> Any:
            headers = {"Authorization": key, "X-Agentops-Agent": agent, **more}
            async with (
                httpx2.AsyncClient(headers=headers, trust_env=False) as http,
                Client(streamable_http_client(f"{self.url}/mcp", http_client=http)) as client,
            ):
                try:
                    return await work(client)
                except MCPError as refused:  # inside the library's task groups it would become a group
                    return refused

        found = asyncio.run(whole())
        if isinstance(found, MCPError):
            raise found
        return found

    def call(self, tool: str, arguments: dict[str, Any], key_named: str = "", **given: Any) -> Any:
        meta: Any = {governed.KEY: key_named} if key_named else None
        return self.ask(lambda client: client.call_tool(tool, arguments, meta=meta), **given)

    def records(self) -> list[dict[str, Any]]:
        self.workspace.audit.append_now({"type": "test.mark"})  # everything posted before is on disk now
        return [dict(record) for record in audit.records(self.workspace.home / "audit")]


@pytest.fixture(scope="module")
def desk(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    root = tmp_path_factory.mktemp("desk")
    for name in FOLDERS:
        shutil.copytree(repo / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repo / "pyproject.toml", root)
    file = root / "policies" / "identities.toml"
    file.write_text(file.read_text() + ISSUER)
    (root / "policies" / "corp.json").write_text(jwks("RS256", "EdDSA"))
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Workspace(projects.load(root, {**os.environ, "AGENTOPS_HOME": str(home)})) as workspace:
        app = create_app(workspace, ApiKeys.parse(KEYS, workspace.project.policies), open_runtime)
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="on", ws="none"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            threading.Event().wait(0.02)
            assert thread.is_alive()
        try:
            yield Desk(f"http://127.0.0.1:{port}", workspace, root)
        finally:
            server.should_exit = True
            thread.join(10)


def text(result: Any) -> str:
    return result.content[0].text


def names(desk: Desk, **given: Any) -> set[str]:
    return {tool.name for tool in desk.ask(lambda client: client.list_tools(), **given).tools}


def test_an_agent_sees_the_tools_that_its_user_and_the_ceiling_allow(desk: Desk) -> None:
    assert "create_refund" not in names(desk, agent="orders")
    billing = names(desk, agent="billing")
    assert "create_refund" in billing
    narrowed = names(desk, agent="billing", **{"X-Agentops-Scopes": "refunds:read orders:read"})
    assert "create_refund" not in narrowed
    assert narrowed < billing
    assert "create_refund" not in names(desk, agent="billing", key=MONEY), "finance decides refunds and makes none"


def test_a_call_goes_through_the_gateway_and_its_result_says_its_labels(desk: Desk) -> None:
    found = desk.call("list_orders", {"limit": 2})
    assert not found.is_error
    assert found.structured_content == json.loads(text(found))
    assert found.meta["agentops/labels"]["confidentiality"] == "personal"
    record = next(one for one in reversed(desk.records()) if one.get("tool") == "list_orders")
    assert (record["tenant"], record["type"]) == ("default", "tool.outcome")


def test_a_tool_outside_the_ceiling_is_as_if_it_did_not_exist(desk: Desk) -> None:
    refused = desk.call("create_refund", {"order_id": "SO-12878", "amount_cents": 1, "reason": "other"})
    unknown = desk.call("no_such_tool", {})
    assert refused.is_error
    assert text(refused) == text(unknown) == "there is no such tool"


def test_a_payment_waits_for_a_person_and_is_made_once(desk: Desk) -> None:
    arguments = {"order_id": "SO-12878", "amount_cents": 500, "reason": "damaged"}
    asked = desk.call("create_refund", arguments, agent="billing")
    assert asked.is_error
    id = asked.meta["agentops/approval_id"]
    assert id in text(asked)
    assert "call the tool again with the same arguments" in text(asked)
    again = desk.call("create_refund", arguments, agent="billing")
    assert again.meta["agentops/approval_id"] == id, "the same call waits for the same approval"
    rival = desk.call("create_refund", arguments, agent="billing", key=RIVAL)
    assert rival.meta.get("agentops/approval_id") != id
    mine = httpx.post(f"{desk.url}/v1/approvals/{id}", json={"approve": True}, headers={"Authorization": SHOP})
    assert mine.status_code == 403
    decided = httpx.post(f"{desk.url}/v1/approvals/{id}", json={"approve": True}, headers={"Authorization": MONEY})
    assert decided.json()["approval"]["status"] == "approved"
    done = desk.call("create_refund", arguments, agent="billing")
    assert not done.is_error, text(done)
    for _ in range(2):
        repeated = desk.call("create_refund", arguments, agent="billing")
        assert repeated.is_error
        assert "not repeated" in text(repeated)
    other = desk.call("create_refund", arguments, key_named="second-damage", agent="billing")
    assert other.meta["agentops/approval_id"] not in ("", id), "another key is another payment, and asks again"


def test_sessions_of_others_are_other_sessions(desk: Desk) -> None:
    arguments = {"order_id": "SO-12878", "amount_cents": 700, "reason": "damaged"}
    session = {"X-Agentops-Session": "shared-name"}
    first = desk.call("create_refund", arguments, agent="billing", **session)
    foreign = desk.call("create_refund", arguments, agent="billing", key=OTHER, **session)
    assert foreign.meta.get("agentops/approval_id") != first.meta["agentops/approval_id"]
    stored = desk.workspace.approvals.get(first.meta["agentops/approval_id"], "default")
    assert "shared-name" not in stored.session


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer shop:secret-of-nobody-00001"}, 401),
        ({"Authorization": f"Bearer {mint(aud='billing', org='default')}"}, 401),
        ({"Authorization": f"Bearer {mint(aud='agentops', org='default', sub='C-1054')}"}, 200),
        ({"X-Agentops-Agent": ""}, 400),
        ({"X-Agentops-Agent": "root"}, 400),
        ({"X-Agentops-Session": "a b"}, 422),
        ({"Host": "evil.test:8321"}, 421),
        ({"Host": "localhost.evil.test"}, 421),
        ({"Origin": "https://evil.test"}, 421),
        ({"Origin": "null"}, 421),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "localhost:1"}, 200),
    ],
)
def test_who_gets_in(desk: Desk, headers: dict[str, str], status: int) -> None:
    answer = desk.post(**{"agent": headers.pop("X-Agentops-Agent", "orders"), "key": SHOP, **headers})
    assert answer.status_code == status, answer.text
    assert "evil" not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}', 400),
        (b"{", 400),
        (b"x" * 1_000_001, 413),
    ],
)
def test_bodies_that_are_ambiguous_or_too_large_are_refused(desk: Desk, body: bytes, status: int) -> None:
    assert desk.post(body).status_code == status


def test_a_server_for_others_goes_by_any_name_but_serves_no_web_page() -> None:
    def came(address: str, **headers: str) -> bool:
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        return governed.rebound(Settings(host=address), Request({"type": "http", "headers": given}))

    assert not came("0.0.0.0", host="agents.example:443")
    assert came("0.0.0.0", host="agents.example:443", origin="https://agents.example")
    assert came("127.0.0.1", host="agents.example")
    assert came("127.0.0.1")
    assert not came("::1", host="[::1]:8321", origin="http://[::1]:8321")


def test_there_is_no_stream_to_hang_on(desk: Desk) -> None:
    assert httpx.get(f"{desk.url}/mcp", headers={"Authorization": SHOP}).status_code == 405


def test_an_error_inside_is_told_under_an_id_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("password=hunter2secret at /srv/app")

    monkeypatch.setattr(desk.workspace.redactor.__class__, "pseudonym", broken)
    with pytest.raises(MCPError, match=r"^internal error \([0-9a-f]{8}\)$"):
        desk.call("list_orders", {})


def test_a_key_that_is_none_is_refused(desk: Desk) -> None:
    with pytest.raises(MCPError, match="must be 1 to 128"):
        desk.call("list_orders", {}, key_named="a b")


def test_wrong_arguments_are_told_without_their_values(desk: Desk) -> None:
    found = desk.call("list_orders", {"limit": 3, "customer": "ann@example.com"})
    assert found.is_error
    assert "customer" in text(found)
    assert "ann" not in text(found)


def test_a_local_agent_is_served_over_standard_input_and_output(desk: Desk, tmp_path: Path) -> None:
    command = ["-m", "agentops.cli", "mcp", "--agent", "orders", "--as", "C-1054", "--project", str(desk.root)]
    environment = {**os.environ, "AGENTOPS_HOME": str(tmp_path / "home")}
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment)

    async def work() -> tuple[set[str], Any]:
        async with Client(parameters) as client:
            listed = await client.list_tools()
            return {tool.name for tool in listed.tools}, await client.call_tool("list_orders", {"limit": 1})

    seen, found = asyncio.run(work())
    assert seen == names(desk, agent="orders")
    assert len(found.structured_content["orders"]) == 1
