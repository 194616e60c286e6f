"""A project of isolated tools, good and hostile; a server that misbehaves on demand; workers on one event loop."""

import asyncio
import gzip
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentops import project
from agentops.act import Context
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.level import detect
from agentops.act.sandbox.pool import Workers
from agentops.act.sandbox.secrets import Secrets
from agentops.graph import RealClock
from agentops.redact import Redactor
from agentops.types import AgentSpec, Json, Principal, Run, Tool

VALUE = "s3cr3t-of-the-shop-0001"
RAW = "raw-s3cr3t-of-the-shop-2"
SECRETS = """
[secrets.shop]
from_env = "LAB_SHOP"
hosts = ["127.0.0.1:PORT", "api.shop.example:443"]

[secrets.raw]
from_env = "LAB_RAW"
readable = true
"""


class Pages(BaseHTTPRequestHandler):
    """Each path misbehaves in its own way."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].strip("/")
        self.server.seen.append((self.command, self.path, dict(self.headers)))  # type: ignore[attr-defined]
        body, status, headers = b"ok", 200, {}
        if name == "echo":
            body = str(dict(self.headers)).encode()
            headers = {"X-Echo": self.headers.get("Authorization", ""), "Set-Cookie": "a=b"}
        elif name.startswith("redirect"):
            status, headers = 302, {"Location": "http://169.254.169.254/latest/meta-data/"}
        elif name == "bomb":
            body, headers = gzip.compress(b"0" * 50_000_000), {"Content-Encoding": "gzip"}
        elif name == "big":
            body = b"x" * 1_100_000
        elif name == "slow":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(200):
                try:
                    self.wfile.write(b"z")
                except OSError:
                    return
                time.sleep(0.05)
            return
        elif name == "header":
            body, headers = b"", {"X-Long": "h" * 200_000}
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    made.daemon_threads = True
    made.seen = []  # type: ignore[attr-defined]
    made.port = made.server_address[1]  # type: ignore[attr-defined]
    made.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="session")
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory, server: Any) -> Path:
    """The project's folder."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("tools/lab", "policies", "data", ".agentops", "routers", "pipelines"):
        (root / folder).mkdir(parents=True)
    source = (Path(__file__).parent / "lab_pack.py.txt").read_text()
    least = "landlock" if detect() != "none" else "none"
    (root / "tools/lab/__init__.py").write_text(source.replace("PORT", str(server.port)).replace("LEAST", least))
    (root / "tools/lab/pack.toml").write_text('[pack]\nname = "lab"\n')
    (root / "tools/secrets_of_tools.txt").write_text("tools are readable")
    (root / "policies/base.cedar").write_text("// policies")
    (root / "policies/secrets.toml").write_text(SECRETS.replace("PORT", str(server.port)))
    (root / ".agentops/world.db").write_text("state")
    (root / "data/list.txt").write_text("one\ntwo\n")
    (root / "data/link.txt").symlink_to(root / "policies/secrets.toml")
    return root


class Lab:
    """Workers on the project, and what they recorded."""

    def __init__(self, root: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.root, self.loop = root, loop
        self.tools: ModuleType = project.module(root, "tools.lab")
        self.records: list[dict[str, Json]] = []
        self.environ = {"LAB_SHOP": VALUE, "LAB_RAW": RAW, "OTHER": "stays"}
        self.secrets = Secrets.load(root / "policies", self.environ)
        self.redactor = Redactor(b"k" * 32, self.secrets.values)
        self.egress = Egress()
        self.record: Callable[[dict[str, Json]], None] = self.records.append
        self.workers = self.make()

    def make(self, **given: Any) -> Workers:
        return Workers(self.root, self.redactor, self.egress, self.secrets, lambda one: self.record(one), **given)

    def context(self, tenant: str = "acme", user: str = "ann", pins: dict[str, str] | None = None) -> Context:
        clock = RealClock()
        run = Run(
            "run-1", "s-1", Principal(tenant, user), AgentSpec("desk", frozenset(), frozenset()), clock.now() + 60
        )
        return Context(run, None, clock, "c-1", "key-1", pins=pins or {})

    async def call(self, name: str, /, timeout_s: float = 20.0, context: Context | None = None, **given: Json) -> Json:
        tool: Tool = getattr(self.tools, name)
        return await self.workers.call(tool, context or self.context(), given, timeout_s)

    def go(self, name: str, /, timeout_s: float = 20.0, context: Context | None = None, **given: Json) -> Json:
        return self.loop.run_until_complete(self.call(name, timeout_s, context, **given))


@pytest.fixture(scope="session")
def _lab(lab_root: Path) -> Iterator[Lab]:
    loop = asyncio.new_event_loop()
    made = Lab(lab_root, loop)
    yield made
    made.workers.close()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()


@pytest.fixture
def lab(_lab: Lab) -> Lab:
    """The shared workers, with the records of this test alone."""
    project.mount(_lab.root)
    _lab.records.clear()
    _lab.record = _lab.records.append
    return _lab


def children(pid: int | None = None) -> set[int]:
    """All living descendants."""
    found: set[int] = set()
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    for task in tasks.iterdir() if tasks.exists() else ():
        try:
            for child in (task / "children").read_text().split():
                found |= {int(child)} | children(int(child))
        except OSError:
            continue
    return found


@pytest.fixture
def living() -> Callable[[], set[int]]:
    """All living descendants of this process."""
    return children
