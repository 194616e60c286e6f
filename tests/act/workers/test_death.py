"""When the gateway's process is killed, its tools' processes go with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentops.act.sandbox.level import missing
from agentops.types import Level

GATEWAY = """
import asyncio, sys
from pathlib import Path
from agentops import project
from agentops.act import Context
from agentops.act.sandbox import pool
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.pool import Workers
from agentops.act.sandbox.process import start
from agentops.act.sandbox.secrets import Secrets
from agentops.graph import RealClock
from agentops.redact import Redactor
from agentops.types import AgentSpec, Principal, Run

async def main():
    root, kind, level = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    pool.spawn = lambda argv, profile, *, least, **given: start(level, argv, profile, **given)
    tools = project.module(root, "tools.lab")
    clock = RealClock()
    run = Run("r", "s", Principal("acme", "ann"), AgentSpec("a", frozenset(), frozenset()), clock.now() + 100)
    context = Context(run, None, clock, "c", "k")
    workers = Workers(root, Redactor(b"k" * 32), Egress(), Secrets(), lambda record: None)
    await workers.call(tools.echo, context, {"text": "x"}, 30.0)
    calls = [workers.call(tools.misbehave, context, {"kind": kind}, 60.0)]
    running = asyncio.gather(*calls)
    await asyncio.sleep(1.0)
    print("running", flush=True)
    await running

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "level"), [("children", "bubblewrap"), ("spin", "landlock"), ("children", "landlock")]
)
def test_a_killed_gateway_leaves_no_process(lab_root: Path, living: Any, kind: str, level: Level) -> None:
    if missing(level):
        pytest.skip(missing(level))
    before = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, str(lab_root), kind, level], stdout=subprocess.PIPE)
    assert gateway.stdout is not None
    with gateway.stdout:
        assert gateway.stdout.readline() == b"running\n"
        mine = living(gateway.pid)
        assert len(mine - before) >= 3
        gateway.send_signal(signal.SIGKILL)
        gateway.wait(10)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in mine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]
