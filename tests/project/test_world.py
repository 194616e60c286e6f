"""The seeded world: the same every time, private when forked, honest about what changed, cheap to copy."""

import asyncio
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

import pytest

from agentops.errors import StoreError, ToolError
from agentops.graph import RealClock, VirtualClock


def test_equal_seeds_give_equal_bytes_in_another_process(part, repo) -> None:
    script = (
        "import hashlib, sys; from pathlib import Path; from agentops import project;"
        "w = project.module(Path(sys.argv[1]), 'tools.world');"
        "print(hashlib.sha256(w.snapshot(3)).hexdigest())"
    )
    command = [sys.executable, "-c", script, str(repo)]
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "PYTHONPATH": str(repo)}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    import hashlib

    assert shown.stdout.strip() == hashlib.sha256(part("tools.world").snapshot(3)).hexdigest()
    assert part("tools.world").snapshot(3) != part("tools.world").snapshot(4)


def test_the_world_has_the_size_it_promises(fork) -> None:
    with fork().read() as db:
        count = lambda table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: E731
        assert (count("customers"), count("orders"), count("products")) == (60, 400, 80)
        assert count("articles") >= 60
        assert count("refunds") >= 40
        assert count("documents") >= 700
        statuses = {row[0] for row in db.execute("SELECT DISTINCT status FROM orders")}
        assert statuses == {"processing", "packed", "shipped", "delivered", "cancelled"}
        domains = {row[0].split("@")[1] for row in db.execute("SELECT email FROM customers")}
        assert all(domain.split(".")[-2] == "example" for domain in domains), "invented people, example domains"
        paid = "SELECT count(*) FROM orders o WHERE paid_cents < (SELECT coalesce(sum(amount_cents), 0) FROM refunds r"
        assert db.execute(f"{paid} WHERE r.order_id = o.order_id AND status != 'rejected')").fetchone()[0] == 0


def test_a_fork_is_private_and_takes_at_most_five_milliseconds(fork, part, world_file) -> None:
    world = part("tools.world")
    one, other = fork(), fork()
    with one.read() as db:
        db.execute("UPDATE stock SET available = 0")
    assert world.changes(one) != []
    assert world.changes(other) == []
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        fork()
        taken.append(time.perf_counter() - began)
    assert statistics.median(taken) < 0.005


@pytest.mark.anyio
async def test_a_fork_starts_from_the_seeded_state_whatever_customers_did(
    desk, fork, part, world_file, tmp_path
) -> None:
    world = part("tools.world")
    path = tmp_path / "live.db"
    shutil.copy(world_file, path)
    live = world.connect(path, VirtualClock(), latency=False)
    async with live.write() as db:
        db.execute("UPDATE orders SET status = 'cancelled'")
    assert len(world.changes(live, path)) > 300
    assert world.changes(world.fork(path, VirtualClock(), 0), path) == []
    live.close()


def test_changes_are_canonical_and_complete(fork, part) -> None:
    first, second = fork(), fork()
    statements = [
        "UPDATE stock SET available = available + 1 WHERE sku = 'SKU-1001'",
        "DELETE FROM refunds WHERE refund_id = 'RF-70001'",
        "INSERT INTO outbox VALUES ('ML-1', 'DOC-300001', 'a@example.com', '2026-06-15')",
    ]
    for world, order in ((first, statements), (second, statements[::-1])):
        with world.read() as db:
            for statement in order:
                db.execute(statement)
    found = part("tools.world").changes(first)
    assert found == part("tools.world").changes(second)
    operations = {one["table"]: one["op"] for one in found}
    assert operations == {"stock": "update", "outbox": "insert", "refunds": "delete"}
    assert {"table": "outbox", "key": "DOC-300001", "op": "insert", "columns": {"email": "a@example.com"}} in found


@pytest.mark.anyio
async def test_a_write_happens_as_a_whole_or_not_at_all(fork, part) -> None:
    world = fork()

    def half(db: sqlite3.Connection) -> None:
        db.execute("UPDATE stock SET available = 0")
        raise ToolError("no")

    with pytest.raises(ToolError, match="no"):
        await world.once("key", "C-1001", "reserve_item", {}, half)
    assert part("tools.world").changes(world) == []


@pytest.mark.anyio
async def test_two_connections_write_one_file_without_losing_anything(part, tmp_path) -> None:
    world = part("tools.world")
    path = tmp_path / "world.db"
    world.create(path)
    connections = [world.connect(path, RealClock(), latency=False) for _ in range(2)]

    async def add(which: int) -> None:
        for _ in range(50):
            async with connections[which].write() as db:
                db.execute("UPDATE stock SET reserved = reserved + 1 WHERE sku = 'SKU-1001'")
            await asyncio.sleep(0)

    with connections[0].read() as db:
        before = db.execute("SELECT reserved FROM stock WHERE sku = 'SKU-1001'").fetchone()[0]
    await asyncio.gather(add(0), add(1))
    with connections[1].read() as db:
        assert db.execute("SELECT reserved FROM stock WHERE sku = 'SKU-1001'").fetchone()[0] == before + 100
    for connection in connections:
        connection.close()


def test_latencies_repeat_with_the_seed_and_have_their_median(part) -> None:
    world = part("tools.world")
    draws = [world.sample_s(seed, "track_shipment", "call", 1) for seed in range(800)]
    assert draws == [world.sample_s(seed, "track_shipment", "call", 1) for seed in range(800)]
    median, _ = world.latencies()["track_shipment"]
    assert statistics.median(draws) * 1000 == pytest.approx(median, rel=0.15)
    assert max(draws) * 1000 > 3 * median, "a long tail"
    assert world.sample_s(1, "track_shipment", "call", 1) != world.sample_s(1, "track_shipment", "call", 2)


@pytest.mark.anyio
async def test_a_tool_takes_its_latency_on_the_clock_it_is_given(desk, fork) -> None:
    slow, again = fork(seed=5), fork(seed=5)
    for world in (slow, again):
        await desk("C-1001", world=world).call("search_articles", query="return policy")
    assert slow.clock.now() == again.clock.now() > 0.01


def test_a_world_is_created_once_and_never_written_over(part, tmp_path) -> None:
    world = part("tools.world")
    path = tmp_path / "deep" / "world.db"
    world.create(path, 5)
    before = path.read_bytes()
    world.create(path, 5)
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match="holds the world of seed 5, not 6"):
        world.create(path, 6)
    assert list(path.parent.iterdir()) == [path], "no temporary file stays"


def test_what_is_not_a_world_is_refused_by_name(part, tmp_path) -> None:
    world = part("tools.world")
    with pytest.raises(StoreError, match="create it first"):
        world.connect(tmp_path / "missing.db", VirtualClock())
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"not a database at all")
    with pytest.raises(StoreError, match=r"torn\.db"):
        world.fork(torn, VirtualClock(), 0)
    old = tmp_path / "old.db"
    old.write_bytes(world.snapshot(1))
    connection = sqlite3.connect(old)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="schema version 99"):
        world.connect(old, VirtualClock())
