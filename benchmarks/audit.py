"""The audit log: durable appends, verification, kill -9, and a thousand random attacks with an anchor.

`python -m benchmarks.audit --json FILE [--quick]`. Records are those of a tool call's decision (about 380 bytes with
their frame). Appends: 1,024 tasks in one event loop, each waiting for its record to be flushed. Verification: the whole
folder with one process, files in the page cache; `bare` is SHA-256 over the same leaves and inner nodes and nothing
else. Attacks: `benchmarks.audit_attacks`.
"""

import argparse
import asyncio
import hashlib
import os
import random
import signal
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentops.audit import AuditLog, frames, names, records, verify
from benchmarks import audit_attacks
from benchmarks.report import main, publish

TASKS = 1024
WRITERS = 4
_ACK = struct.Struct("<Q")


def run(options: argparse.Namespace) -> bool:
    quick, details = options.quick, {}
    many, trials, attacks = (20_000, 5, 60) if quick else (400_000, 50, 1_000)
    with tempfile.TemporaryDirectory(prefix="audit-bench-") as place:
        one = Path(place) / "one"
        rates, costs = zip(*(asyncio.run(appended(one, many // 4, 1)) for _ in range(4)), strict=True)
        details |= {"appends_per_s": rates, "append_cpu_us": min(costs)}
        hundred, cost = asyncio.run(appended(Path(place) / "hundred", many // 10, 100))
        details |= {"appends_per_s_100_tenants": hundred, "append_cpu_us_100_tenants": cost}
        details["alone_ms"] = alone(Path(place) / "alone", 50 if quick else 500)
        verified, bare, size = verification(one)
        details |= {"verified_bytes_per_record": size, "bare_per_s": bare, "verified_over_bare": verified / bare}
        lost, acknowledged = killed(Path(place) / "killed", trials, random.Random(options.seed))
        details |= {"acknowledged": acknowledged, "kill_trials": trials}
        missed, kinds = audit_attacks.run(Path(place) / "attacks", attacks, random.Random(options.seed))
        details |= {"attacks": kinds}
    values = {
        "records_per_s": statistics.median(rates),
        "verified_per_s": verified,
        "acked_lost": lost,
        "tampers_missed": missed,
    }
    print({name: value for name, value in details.items() if name != "attacks"})
    return publish("audit", values, details, options)


def record(number: int, tenant: str) -> dict[str, Any]:
    """What a decision leaves."""
    return {
        "type": "tool.intent",
        "tenant": tenant,
        "subject": "5f" * 16,
        "agent": "support",
        "run": "0123456789abcdef",
        "call": f"c{number}",
        "tool": "get_order",
        "arguments": "hmac-sha256:" + "a1" * 32,
        "decision": "allow",
        "policies": ["orders.read"],
        "number": number,
    }


async def appended(folder: Path, count: int, tenants: int) -> tuple[float, float]:
    """Durable appends a second, and microseconds of processor time for one (all threads; a busy machine hides it)."""
    with AuditLog(folder, "bench") as log:

        async def work(task: int) -> None:
            for number in range(task, count, TASKS):
                await log.append(record(number, f"t{number % tenants}"))

        await asyncio.gather(*(work(task) for task in range(TASKS)))  # opens logs, warms caches
        began, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(task) for task in range(TASKS)))
        return count / (time.perf_counter() - began), (time.process_time() - used) / count * 1e6


def alone(folder: Path, count: int) -> dict[str, float]:
    """Milliseconds of one waiting caller: median and 95th percentile."""
    times = []
    with AuditLog(folder, "bench") as log:
        for number in range(count):
            began = time.perf_counter()
            log.append_now(record(number, "t0"))
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return {"p50": times[count // 2], "p95": times[count * 95 // 100]}


def verification(folder: Path) -> tuple[float, float, float]:
    """Records verified a second, the same for SHA-256 alone, bytes of a record."""
    data = [(folder / f"{name}.log").read_bytes() for name in names.log_names(folder)]
    count, took = 0, best(lambda: verify(folder).ok)
    leaves = []
    for log in data:
        hashed = [b"\x00" + leaf for _, leaf in frames.leaves(log, len(log))]
        leaves.append(hashed)
        count += len(hashed)

    def hash_only() -> bool:
        for log in leaves:
            level = [hashlib.sha256(leaf).digest() for leaf in log]
            while len(level) > 1:
                pairs = zip(level[::2], level[1::2], strict=False)
                level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in pairs]
        return True

    return count / took, count / best(hash_only), sum(map(len, data)) / count


def best(work: Callable[[], bool]) -> float:
    """Seconds of the fastest of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        if not work():
            raise AssertionError("the log does not verify")
        times.append(time.perf_counter() - began)
    return min(times)


def killed(place: Path, trials: int, rng: random.Random) -> tuple[int, int]:
    """Acknowledged records that are missing after kill -9 of four writers, and how many were acknowledged."""
    lost = acknowledged = 0
    for trial in range(trials):
        folder = place / f"audit-{trial // 10}"  # ten trials on the same logs: each recovers what the last one left
        folder.mkdir(parents=True, exist_ok=True)
        acks = folder.parent / f"acks-{trial}"
        children = []
        for writer in range(WRITERS):
            child = os.fork()
            if child == 0:
                write_for_ever(folder, acks, (trial * WRITERS + writer) << 32)
            children.append(child)
        deadline = time.monotonic() + 60
        while (not acks.exists() or acks.stat().st_size < 400 * _ACK.size) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        told = {number for (number,) in _ACK.iter_unpack(acks.read_bytes())}
        found = {entry["number"] for entry in records(folder) if "number" in entry}
        lost += len(told - found) + (not verify(folder).ok)
        acknowledged += len(told)
    return lost, acknowledged


def write_for_ever(folder: Path, acks: Path, first: int) -> None:
    """Append from 16 tasks to three tenants' logs, and note each record once it is acknowledged."""
    descriptor = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def work(log: AuditLog, task: int) -> None:
        for number in range(task, 1 << 31, 16):
            await log.append(record(first + number, f"t{number % 3}"))
            os.write(descriptor, _ACK.pack(first + number))  # the kernel has it: kill -9 does not take it back

    async def both() -> None:
        log = AuditLog(folder, "bench")
        await asyncio.gather(*(work(log, task) for task in range(16)))

    try:
        asyncio.run(both())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(run, __doc__ or "")
