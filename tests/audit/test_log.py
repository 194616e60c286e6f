"""Writing: durable when it returns, from any thread or loop, over restarts and crashes."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentops.audit import AuditLog, MemoryAudit, log, logfile, logs, records, verify
from agentops.errors import AuditError
from agentops.graph import VirtualClock


def numbers(folder: Path) -> list[int]:
    return [record["number"] for record in records(folder) if "number" in record]


@pytest.mark.anyio
async def test_concurrent_appends_get_consecutive_indices_and_share_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    flush = os.fdatasync

    def counted(descriptor: int) -> None:
        nonlocal flushes
        flushes += 1
        flush(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    with AuditLog(tmp_path, "desk") as audit:
        indices = await asyncio.gather(*(audit.append({"number": number}) for number in range(500)))
    assert sorted(indices) == list(range(min(indices), min(indices) + 500))
    assert flushes < 50
    assert sorted(numbers(tmp_path)) == list(range(500))
    assert verify(tmp_path).ok


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as audit:
        threads = [
            threading.Thread(target=lambda base=base: [audit.append_now({"number": base + n}) for n in range(20)])
            for base in range(0, 100, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers(tmp_path)) == list(range(100))


def test_an_index_is_returned_only_after_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": 0})
        gate, returned = threading.Event(), threading.Event()
        flush = os.fdatasync

        def slow(descriptor: int) -> None:
            gate.wait(5)
            flush(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow)
        thread = threading.Thread(target=lambda: (audit.append_now({"number": 1}), returned.set()))
        thread.start()
        assert not returned.wait(0.1)
        gate.set()
        assert returned.wait(5)
        thread.join()


def test_records_carry_time_and_place(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk", VirtualClock(12.5)) as audit:
        index = audit.append_now({"type": "call.outcome", "amount_cents": 4990, "text": "naïve €"})
    [record] = [record for record in records(tmp_path) if record["type"] == "call.outcome"]
    assert record == {
        "type": "call.outcome",
        "amount_cents": 4990,
        "text": "naïve €",
        "log": record["log"],
        "index": index,
        "at": 12.5,
    }


def test_a_restart_continues_the_same_log(folder: Path) -> None:
    with AuditLog(folder, "desk") as audit:
        index = audit.append_now({"number": 12})
    report = verify(folder)
    assert report.ok
    assert report.logs == 1
    assert report.records == index + 1 == report.signed_records
    assert numbers(folder) == list(range(13))


def test_two_writers_never_share_a_file(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as first, AuditLog(tmp_path, "desk") as second, AuditLog(tmp_path, "cli") as third:
        for number, audit in enumerate((first, second, third)):
            audit.append_now({"number": number})
    report = verify(tmp_path)
    assert report.ok
    assert report.logs == 3
    assert sorted(numbers(tmp_path)) == [0, 1, 2]


def test_posted_records_are_durable_before_a_later_append_returns(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, "desk")
    for number in range(50):
        audit.post({"number": number})
    audit.append_now({"number": 50})
    assert numbers(tmp_path) == list(range(51))
    audit.post({"number": 51})
    audit.close()
    assert numbers(tmp_path)[-1] == 51


def test_a_full_backlog_refuses_instead_of_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "BACKLOG", 10)
    gate = threading.Event()
    flush = os.fdatasync
    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": 0})
        monkeypatch.setattr(os, "fdatasync", lambda descriptor: (gate.wait(5), flush(descriptor)))
        audit.post({"number": 1})
        time.sleep(0.05)
        for _ in range(10):
            audit.post({"number": 2})
        with pytest.raises(AuditError, match="wait for the disk"):
            audit.post({"number": 3})
        gate.set()


def test_long_records_that_wait_together_make_no_log_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "BACKLOG_BYTES", 60 * 1024 * 1024)
    gate = threading.Event()
    flush = os.fdatasync
    record = {"number": 1, "text": "x" * (1024 * 1024 - 100)}
    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": 0})
        monkeypatch.setattr(os, "fdatasync", lambda descriptor: (gate.wait(5), flush(descriptor)))
        audit.post({"number": 1})
        time.sleep(0.05)
        for _ in range(61):
            audit.post(record)
        with pytest.raises(AuditError, match="61 audit records wait for the disk"):
            audit.post(record)
        gate.set()
    assert max(path.stat().st_size for path in tmp_path.glob("*.log")) < 24 * 1024 * 1024
    assert numbers(tmp_path) == [0] + [1] * 62


def test_logs_rotate_and_the_new_one_remembers_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "ROTATE_BYTES", 1000)
    with AuditLog(tmp_path, "desk") as audit:
        for number in range(40):
            audit.append_now({"number": number})
    report = verify(tmp_path)
    assert report.ok
    assert report.logs > 2
    assert sorted(numbers(tmp_path)) == list(range(40))
    first = min(tmp_path.glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    first.unlink()
    first.with_suffix(".checkpoint").unlink()
    report = verify(tmp_path)
    assert not report.ok
    assert "is missing" in str(report.problem)


@pytest.mark.parametrize(
    "record", [{"x": float("nan")}, {"x": object()}, {"type": "log.open"}, {"x": "y" * (1024 * 1024)}, {"x": 2**60}]
)
def test_a_record_that_cannot_be_written_says_so_and_leaves_the_log_usable(tmp_path: Path, record: dict) -> None:
    with AuditLog(tmp_path, "desk") as audit:
        with pytest.raises(AuditError):
            audit.append_now(record)
        audit.append_now({"number": 1})
    assert numbers(tmp_path) == [1]
    assert verify(tmp_path).ok


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    full = False

    def limited(descriptor: int, data: bytes) -> int:
        if full:
            if len(data) > 40:
                return write(descriptor, bytes(data)[:40])  # a short write, as a full disk gives one
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": 0})
        full = True
        with pytest.raises(AuditError, match="No space left"):
            audit.append_now({"number": 1, "text": "x" * 100})
        full = False
        audit.append_now({"number": 2})
    assert numbers(tmp_path) == [0, 2]
    assert verify(tmp_path).ok


def test_a_full_disk_collects_no_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": 0})
        audit.append_now({"number": 1})
        before = sorted(tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(AuditError, match="No space left"):
                audit.checkpoint()
        assert sorted(tmp_path.iterdir()) == before


def test_a_failed_flush_stops_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = AuditLog(tmp_path, "desk")
    audit.append_now({"number": 0})

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(AuditError, match="flushed"):
            audit.append_now({"number": 1})
    with pytest.raises(AuditError, match="restart to recover"):
        audit.append_now({"number": 2})
    audit.close()
    with AuditLog(tmp_path, "desk") as again:
        again.append_now({"number": 3})
    assert verify(tmp_path).ok


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, "desk")
    audit.close()
    audit.close()
    with pytest.raises(AuditError, match="closed"):
        audit.append_now({"number": 1})


@pytest.mark.anyio
async def test_a_cancelled_caller_hurts_nobody(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as audit:
        task = asyncio.create_task(audit.append({"number": 0}))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await audit.append({"number": 1})
    assert 1 in numbers(tmp_path)


def test_keys_are_private_and_refused_when_they_are_not(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit", "desk").close()
    assert stat.S_IMODE((tmp_path / "audit" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    (tmp_path / "audit" / "key").chmod(0o644)
    with pytest.raises(AuditError, match="chmod 600"):
        AuditLog(tmp_path / "audit", "desk")


@pytest.mark.parametrize("origin", ["", "Desk", "a/b", "../x", "a" * 64])
def test_an_origin_that_is_no_plain_name_is_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(AuditError, match="origin"):
        AuditLog(tmp_path, origin)


def test_idle_logs_are_signed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHECKPOINT_SECONDS", 0.05)
    audit = AuditLog(tmp_path, "desk")
    for number in range(3):
        audit.append_now({"number": number})
    deadline = time.monotonic() + 5
    while verify(tmp_path).signed_records < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert verify(tmp_path).signed_records == 4  # with the record of the opening
    audit.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from agentops.audit import AuditLog

async def main():
    audit = AuditLog(Path(sys.argv[1]), "desk")
    async def work(worker):
        for number in range(100_000):
            await audit.append({"number": number * 16 + worker, "text": "x" * 200})
            sys.stdout.write(f"{number * 16 + worker}\\n")
            sys.stdout.flush()
    await asyncio.gather(*(work(worker) for worker in range(16)))

asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Two writers at once, killed in the middle of their appends, then recovered: three times over the same folder."""
    acknowledged: set[int] = set()
    for trial in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        seen: list[list[str]] = [[], []]
        readers = [
            threading.Thread(target=lambda out=writer.stdout, into=into: into.extend(out))
            for writer, into in zip(writers, seen, strict=True)
        ]
        for reader in readers:
            reader.start()
        deadline = time.monotonic() + 20
        while min(map(len, seen)) < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.013 * trial)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer, reader in zip(writers, readers, strict=True):
            writer.wait(10)
            reader.join()
            assert writer.stdout is not None
            writer.stdout.close()
        acknowledged |= {int(line) for lines in seen for line in lines if line.endswith("\n")}
        assert verify(tmp_path).ok, verify(tmp_path).problem
        assert acknowledged <= set(numbers(tmp_path))
    with AuditLog(tmp_path, "desk") as audit:
        audit.append_now({"number": -1})
    assert acknowledged <= set(numbers(tmp_path))
    assert verify(tmp_path).ok


def test_a_torn_end_is_cut_kept_aside_and_recorded(folder: Path) -> None:
    [path] = folder.glob("*.log")
    whole = path.read_bytes()
    path.write_bytes(whole + b"\xa6AL\x02\x00\x00\x00\x00\x00\x01\x00\x00half a frame")
    report = verify(folder)
    assert report.ok
    assert len(report.torn) == 1
    with AuditLog(folder, "desk") as audit:
        audit.append_now({"number": 12})
    [recovered] = [record for record in records(folder) if record.get("type") == "log.recovered"]
    assert recovered["offset"] == len(whole)
    [aside] = folder.glob("*.torn-*")
    assert aside.name == recovered["file"]
    assert aside.read_bytes().endswith(b"half a frame")
    assert verify(folder).ok
    assert not verify(folder).torn
    assert numbers(folder) == list(range(13))


def test_memory_audit_demands_the_same_form() -> None:
    audit = MemoryAudit()
    assert audit.append_now({"number": 1}) == 0
    assert asyncio.run(audit.append({"number": 2})) == 1
    audit.post({"number": 3})
    assert [record["number"] for record in audit.records] == [1, 2, 3]
    with pytest.raises(AuditError):
        audit.append_now({"x": float("inf")})
    assert audit.digest("a", "t", "u") == MemoryAudit().digest("a", "t", "u")
    assert audit.digest("a", "t", "u") != audit.digest("a", "t", "v")
    assert audit.subject("t", "u") == MemoryAudit().subject("t", "u") != audit.subject("t", "v")


def test_a_fork_does_not_write_into_its_parents_log(tmp_path: Path) -> None:
    code = """
import os, sys, warnings
from pathlib import Path
from agentops.audit import AuditLog
from agentops.errors import AuditError
warnings.simplefilter("ignore")
audit = AuditLog(Path(sys.argv[1]), "desk")
audit.append_now({"number": 0})
child = os.fork()
if child == 0:
    try:
        audit.append_now({"number": 1})
    except AuditError as error:
        os._exit(7 if "another process" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
audit.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "7\n"
    assert numbers(tmp_path) == [0]
    assert json.dumps(verify(tmp_path).ok) == "true"
