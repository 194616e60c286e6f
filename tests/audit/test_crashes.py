"""Kill -9 before every single system call that writes: nothing acknowledged is lost, nothing looks like tampering.

A child appends to three logs that rotate, signs, anchors and erases. It dies before its n-th write, flush, rename,
link, truncation or opening, for every n, also with half of the write done. Whoever comes next must find a folder that
verifies, with the anchor too, that holds every acknowledged record, and that can be written and exported.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentops.audit import AuditLog, anchors, export, notes, records, verify

STRIDE = 17  # in the usual run; the slow one tries every call
CHILD = """
import os, signal, sys
from pathlib import Path
from agentops.audit import AuditLog, logfile

place, first, step, half = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "half"
logfile.ROTATE_BYTES = 3_000


def work(home, die_at):
    calls, write = 0, os.write

    def counted(name, real):
        def call(*given, **named):
            nonlocal calls
            calls += 1
            if calls == die_at:
                if name == "write" and half:
                    real(given[0], bytes(given[1])[: max(1, len(given[1]) // 2)])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)
        return call

    acks = os.open(home / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for name in ("write", "fsync", "fdatasync", "replace", "link", "ftruncate", "open", "unlink"):
        setattr(os, name, counted(name, getattr(os, name)))
    log = AuditLog(home / "audit", "desk", anchors=[f"file:{home}/heads"])
    for number in range(12):
        tenant = ("", "acme", "Beta.Corp")[number % 3]
        log.append_now({"type": "call", "number": number, "pad": "p" * 300, "tenant": tenant})
        write(acks, b"%d " % number)
        if number == 5:
            log.checkpoint()
    log.subject("acme", "mara")
    log.erase("acme", "mara")
    log.close()
    write(acks, b"done")


die_at = first
while True:  # a process for each death; starting an interpreter for each would take minutes
    home = place / str(die_at)
    home.mkdir()
    pid = os.fork()
    if pid == 0:
        work(home, die_at)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        break
    die_at += step
"""


def check(home: Path) -> None:
    folder, acks = home / "audit", (home / "acks").read_text().split()
    if (folder / "key.pub").exists():
        assert verify(folder).ok
        if (home / "heads").exists() and (home / "heads").read_bytes().endswith(b"\n"):
            place = anchors.open_anchor(f"file:{home}/heads")
            assert verify(folder, claims=anchors.claims(place, notes.load_public_key(folder))).ok
    with AuditLog(folder, "desk") as log:
        for tenant in ("", "acme", "Beta.Corp"):
            log.append_now({"type": "next", "tenant": tenant})
        log.subject("acme", "mara")
    assert verify(folder).ok
    kept = {record["number"] for record in records(folder) if "number" in record}
    assert {int(ack) for ack in acks if ack != "done"} <= kept
    assert export.export(folder, home / "out").records


@pytest.mark.parametrize("write", ["whole", "half"])
@pytest.mark.parametrize("step", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_9_before_any_system_call(tmp_path: Path, step: int, write: str) -> None:
    subprocess.run([sys.executable, "-c", CHILD, tmp_path, str(step), str(step), write], check=True, timeout=300)
    deaths = sorted(tmp_path.iterdir(), key=lambda home: int(home.name))
    assert len(deaths) > 100 // step
    assert (deaths[-1] / "acks").read_text().endswith("done")
    for home in deaths:
        check(home)
        shutil.rmtree(home)
