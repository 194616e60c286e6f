"""Tools of a server over streamable HTTP: a real one on loopback, and hosts that attack."""

import asyncio
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer

from agentops.act.mcp import http as transport
from agentops.act.mcp.remote import Server
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.secrets import Secrets
from agentops.errors import SandboxError

READ = 'effect = "read"\nscopes = ["r"]\n'
TOKEN = "a-token-of-the-crm"


@pytest.fixture
def served() -> Iterator[tuple[str, list[str]]]:
    """A server made with the public library; the Authorization headers it has seen."""
    server = MCPServer("crm")
    seen: list[str] = []

    @server.tool()
    def search(name: str) -> str:
        """Find a customer."""
        return f"{name} is in Kiel"

    @server.tool()
    def dump() -> str:
        """Everything."""
        return "x" * 3_000_000

    app = server.streamable_http_app()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value.decode() for name, value in scope.get("headers", ()) if name == b"authorization")
        await app(scope, receive, send)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = uvicorn.Config(watched, port=port, log_level="error", lifespan="on", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            threading.Event().wait(0.02)
        yield f"http://127.0.0.1:{port}/mcp", seen
    finally:
        running.should_exit = True
        thread.join(10)


def test_a_server_over_http_is_pinned_and_called_with_its_token(
    rig: Any, served: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = served
    monkeypatch.setenv("CRM_TOKEN", TOKEN)
    host = url.split("/")[2]
    secrets = f'[secrets.crm]\nfrom_env = "CRM_TOKEN"\nhosts = ["{host}"]\n'
    (rig.root / "policies" / "secrets.toml").write_text(secrets)
    rig.declare(f"[mcp.tools.search]\n{READ}[mcp.tools.dump]\n{READ}", f'url = "{url}"\ntoken = "crm"')
    rig.pin()

    async def work(calls: Any) -> None:
        flood = await calls("dump")
        assert flood.status == "error"
        assert len(flood.error) < 200
        found = await calls("search", name="ann")
        assert (found.status, found.value) == ("ok", {"result": "ann is in Kiel"}), found.error
        assert found.labels.integrity == "untrusted"

    rig.go(work)
    assert set(seen) == {f"Bearer {TOKEN}"}


def test_a_token_goes_only_where_it_was_declared_for(rig: Any, entry: Any) -> None:
    (rig.root / "policies" / "secrets.toml").write_text(
        '[secrets.crm]\nfrom_env = "CRM_TOKEN"\nhosts = ["crm.example:443"]\n'
    )
    rig.declare(f"[mcp.tools.search]\n{READ}", 'url = "https://evil.example/mcp"\ntoken = "crm"')
    assert "does not go to" in rig.problems()[0]


class Attacker(http.server.BaseHTTPRequestHandler):
    """Answers every request in the same bad way."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.paths.append(self.path)  # pyrefly: ignore[missing-attribute]
        how, target = self.server.how  # pyrefly: ignore[missing-attribute]
        if how == "redirect":
            self.send_response(307)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = {"flood": b'{"x":"' + b"y" * 3_000_000 + b'"}', "html": b"<html>", "deep": b"[" * 100_000}[how]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Listener(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.reached.append(self.path)  # pyrefly: ignore[missing-attribute]
        self.send_response(500)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def attack() -> Iterator[Any]:
    running: list[http.server.ThreadingHTTPServer] = []

    def start(handler: Any, **given: Any) -> Any:
        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        for name, value in given.items():
            setattr(made, name, value)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        running.append(made)
        return made

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize("how", ["redirect", "redirect_within", "flood", "html", "deep"])
def test_a_host_that_redirects_floods_or_babbles_is_no_server(rig: Any, entry: Any, attack: Any, how: str) -> None:
    from agentops.act.mcp import lock

    other = attack(Listener, reached=[])
    bad = attack(Attacker, paths=[])
    target = f"http://127.0.0.1:{other.server_port}/x" if how == "redirect" else "/elsewhere"
    bad.how = ("redirect", target) if how.startswith("redirect") else (how, "")
    lock.write(rig.pack, [lock.definition(entry("look"))])
    rig.declare(f"[mcp.tools.look]\n{READ}timeout_s = 5\n", f'url = "http://127.0.0.1:{bad.server_port}/mcp"')
    assert rig.one("look").error == "look: the service behind it could not be reached; try again later"
    assert other.reached == []
    assert set(bad.paths) == {"/mcp"}


def test_a_name_that_leads_into_the_private_network_is_not_reached() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["10.0.0.7"]

    async def ask() -> None:
        server = Server("crm", None, url="https://crm.example/mcp")  # pyrefly: ignore[bad-argument-type]
        async with transport.client(server, Secrets(), Egress(resolver), 1.0) as client:
            with pytest.raises(httpx2.ConnectError, match="not public"):
                await client.post(server.url, json={})
            with pytest.raises(httpx2.UnsupportedProtocol):
                await client.post("https://other.example/mcp", json={})

    asyncio.run(ask())


def test_a_server_whose_token_has_no_value_is_not_asked(rig: Any) -> None:
    server = Server("crm", rig.pack, url="https://crm.example/mcp", token="crm")
    with pytest.raises(SandboxError, match="not declared"):
        transport.client(server, Secrets(), Egress(), 1.0)


def test_what_servers_and_callers_said_is_in_no_log(
    rig: Any, entry: Any, attack: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from agentops.act.mcp import lock

    bad = attack(Attacker, how=("html", ""), paths=[])
    lock.write(rig.pack, [lock.definition(entry("look"))])
    rig.declare(f"[mcp.tools.look]\n{READ}", f'url = "http://127.0.0.1:{bad.server_port}/mcp"')
    with caplog.at_level("DEBUG"):
        rig.one("look", text="the customer's own words")
    shown = json.dumps([record.getMessage() for record in caplog.records])
    assert "own words" not in shown
    assert "<html>" not in shown
