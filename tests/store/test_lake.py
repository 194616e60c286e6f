"""The lake: durable segments, torn ones named, safe SQL, merging that never counts a row twice."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentops.errors import StoreError
from agentops.store import FEEDBACK_SCHEMA, SPAN_SCHEMA, Lake, segments


def span(number: int, **more: Any) -> dict[str, Any]:
    return {"trace_id": f"{number:032x}", "span_id": f"{number:016x}", "name": "chat", "start_ns": number, **more}


def count(lake: Lake) -> int:
    return lake.sql("SELECT count(*) AS n FROM spans")[0]["n"]


def test_rows_come_back_typed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(1, cached=True, input_tokens=7, attributes='{"a":1}')], "support-desk")
    assert path is not None
    assert path.parent.name == "service=support-desk"
    assert path.parent.parent.name[:5] == "date="
    lake.write("feedback", [{"trace_id": "t", "score": 1, "at": 2.5, "corrected_labels": ["a", "b"]}], "support-desk")
    row = lake.sql("SELECT * FROM spans WHERE trace_id = ?", [f"{1:032x}"])[0]
    assert row["cached"] is True
    assert row["input_tokens"] == 7
    assert row["output_tokens"] is None
    assert row["date"].isoformat() == path.parent.parent.name[5:]
    assert lake.sql("SELECT corrected_labels FROM feedback") == [{"corrected_labels": ["a", "b"]}]
    assert lake.check() == []


def test_an_empty_lake_has_typed_empty_views(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert lake.write("spans", [], "s") is None
    with lake.connect() as connection:
        for table, schema in (("spans", SPAN_SCHEMA), ("feedback", FEEDBACK_SCHEMA)):
            described = connection.execute(f"DESCRIBE {table}").fetchall()
            assert [row[0] for row in described] == [*schema.names, "date"]
    assert lake.sql("SELECT sum(input_tokens) AS n FROM spans WHERE cached") == [{"n": None}]
    assert lake.check() == []
    assert not (tmp_path / "lake").exists(), "reading creates nothing"


def test_what_does_not_fit_is_refused_by_column_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with pytest.raises(StoreError, match="no table 'other'"):
        lake.write("other", [{}], "s")
    with pytest.raises(StoreError, match=r"unknown column.* colour"):
        lake.write("spans", [span(1, colour="red")], "s")
    for column, value in (("start_ns", 2**70), ("start_ns", "x"), ("name", 5), ("name", "\ud800"), ("cached", "no")):
        with pytest.raises(StoreError, match=f"column '{column}'"):
            lake.write("spans", [span(1, **{column: value})], "s")
    assert count(lake) == 0


@pytest.mark.parametrize("service", ["../../../etc", "a/b=c", "..", ".", "", "x" * 400, "läden & söhne", "%2e%2e"])
def test_a_foreign_service_name_stays_inside_the_lake(tmp_path: Path, service: str) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(1, service=service)], service)
    assert path is not None
    assert path.parent.parent.parent == tmp_path / "lake" / "spans"
    assert lake.sql("SELECT service FROM spans") == [{"service": service}]
    assert lake.check() == []


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_torn_segment_is_named_and_the_rest_survives_moving_it_aside(tmp_path: Path, keep: int) -> None:
    lake = Lake(tmp_path / "lake")
    lake.write("spans", [span(1)], "s")
    torn = lake.write("spans", [span(2)], "s")
    assert torn is not None
    torn.write_bytes(torn.read_bytes()[:keep])
    for action in (lake.connect, lambda: count(lake), lambda: lake.compact("spans")):
        with pytest.raises(StoreError, match=torn.name) as caught:
            action()
        assert f"mv '{torn}' '{torn}.torn'" in str(caught.value)
    assert [problem.path for problem in lake.check()] == [str(torn.relative_to(tmp_path))]
    torn.rename(f"{torn}.torn")
    assert count(lake) == 1
    assert lake.check() == []


def test_every_flipped_byte_is_reported_by_check(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(i, attributes=f'{{"text":"{i * 7919}"}}') for i in range(200)], "s")
    assert path is not None
    good = path.read_bytes()
    for at in range(0, len(good), 53):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        assert [problem.path for problem in lake.check()] == [str(path.relative_to(tmp_path))], at
    path.write_bytes(good[:300] + b"\x00" * 60 + good[360:])
    with pytest.raises(StoreError, match=path.name):
        lake.sql("SELECT * FROM spans")


def test_foreign_files_are_reported_and_not_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(1)], "s")
    assert path is not None
    pq.write_table(pa.table({"x": [1]}), path.with_name("mine.parquet"))
    (tmp_path / "lake" / "spans" / "notes.txt").write_text("hello")
    assert count(lake) == 1
    assert sorted(Path(problem.path).name for problem in lake.check()) == ["mine.parquet", "notes.txt"]
    pq.write_table(pa.table({"trace_id": [1]}), path.with_name("0" * 32 + ".parquet"))
    assert any("does not match the digest" in problem.message for problem in lake.check())


def test_an_older_segment_without_a_newer_column_reads_as_null(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(1, cached=True)], "s")
    assert path is not None
    old = pq.read_table(path, partitioning=None).drop_columns(["cached", "output_tokens"])
    path.unlink()
    segments.write_segment(path.parent, old)
    lake.write("spans", [span(2, cached=True)], "s")
    assert lake.sql("SELECT cached FROM spans ORDER BY start_ns") == [{"cached": None}, {"cached": True}]
    assert lake.compact("spans") == 2
    assert lake.sql("SELECT cached FROM spans ORDER BY start_ns") == [{"cached": None}, {"cached": True}]


SECRET = pa.table({"x": ["from the process"]})

ATTACKS = [
    "SELECT * FROM SECRET",
    "SELECT * FROM '{outside}'",
    "SELECT * FROM read_text('{outside}')",
    "SELECT * FROM read_blob('{root}/../outside.txt')",
    "SELECT * FROM read_csv('{outside}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
    "SELECT * FROM read_parquet('s3://bucket/x')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{root}/spans/x.parquet''')",
    "ATTACH '{outside}.db' AS x",
    "COPY (SELECT 1) TO '{outside}.csv'",
    "COPY (SELECT 1) TO '{root}/spans/evil.parquet'",
    "EXPORT DATABASE '{root}/dump'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET VARIABLE x = 1",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE TABLE t AS SELECT 1",
    "DROP VIEW spans",
    "CREATE OR REPLACE VIEW spans AS SELECT 1",
    "INSERT INTO spans SELECT * FROM spans",
    "SELECT 1; COPY (SELECT 1) TO '{root}/x.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{root}/x.csv'",
    "EXPLAIN COPY (SELECT 1) TO '{root}/x.csv'",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('HOME')",
    "",
    "SELECT",
    "SELECT * FROM nowhere",
    "\x00",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_user_sql_cannot_leave_the_lake_or_change_it(tmp_path: Path, attack: str) -> None:
    lake = Lake(tmp_path / "lake")
    lake.write("spans", [span(1)], "s")
    outside = tmp_path / "outside.txt"
    outside.write_text("token\nsk-very-secret\n")
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(StoreError) as caught:
        lake.sql(attack.format(root=lake.root, outside=outside))
    assert "sk-very-secret" not in str(caught.value)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_hostile_query_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path / "lake")
    monkeypatch.setattr("agentops.store.lake.SQL_TIMEOUT_S", 0.3)
    with pytest.raises(StoreError, match="longer than"):
        lake.sql("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * 7 % 13 = b.range % 11")
    with pytest.raises(StoreError, match="add LIMIT"):
        lake.sql("SELECT * FROM range(11)", max_rows=10)


def _write_forever(root: Path, ready: "multiprocessing.Queue[int]") -> None:
    lake = Lake(root)
    number = 0
    while True:
        lake.write("spans", [span(number + i) for i in range(20)], "s")
        number += 20
        ready.put(number)


def test_a_killed_writer_leaves_only_whole_segments(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    acknowledged: multiprocessing.Queue[int] = context.Queue()
    lake = Lake(tmp_path / "lake")
    for delay in (0.05, 0.0):
        writer = context.Process(target=_write_forever, args=(tmp_path / "lake", acknowledged))
        writer.start()
        acknowledged.get(timeout=60)
        time.sleep(delay)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert lake.check() == []
    assert count(lake) >= 40
    assert count(lake) % 20 == 0


def test_merging_keeps_every_row_once_for_concurrent_readers(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(40):
        lake.write("spans", [span(number)], "s")
    seen: tuple[list[int], list[int]] = ([], [])
    failures: list[BaseException] = []
    stop = threading.Event()

    def read(mine: list[int]) -> None:
        reader = Lake(tmp_path / "lake")
        while not stop.is_set():
            try:
                mine.append(count(reader))
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    held = lake.connect()  # a reader that listed before the merge
    merged = [lake.compact("spans")]
    for number in range(40, 43):
        lake.write("spans", [span(number)], "s")
        merged.append(lake.compact("spans"))
    stop.set()
    for thread in threads:
        thread.join()
    assert merged == [40, 2, 2, 2]
    assert failures == []
    for mine in seen:
        assert mine
        assert mine == sorted(mine)
        assert set(mine) <= {40, 41, 42, 43}
    assert held.execute("SELECT count(*) FROM spans").fetchone() == (40,)
    assert lake.sql("SELECT count(DISTINCT span_id) AS d, count(*) AS n FROM spans") == [{"d": 43, "n": 43}]
    assert len(segments.list_segments(lake.root, "spans").replaced) == 46
    assert lake.compact("spans") == 0
    assert len(segments.list_segments(lake.root, "spans").replaced) == 46, "the grace protects running readers"
    assert lake.compact("spans", grace_s=0) == 0
    assert segments.list_segments(lake.root, "spans").replaced == ()
    assert count(lake) == 43
    assert lake.check() == []


def test_a_crash_between_deletions_brings_no_row_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(3):
        lake.write("spans", [span(number)], "s")
    lake.compact("spans")
    lake.write("spans", [span(3)], "s")
    lake.compact("spans")
    replaced = segments.list_segments(lake.root, "spans").replaced
    first_merge = next(path for path in replaced if ".merged." in path.name)
    first_merge.unlink()  # its own sources are still on disk
    assert count(lake) == 4


def test_two_compactions_at_once_do_not_count_twice(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(30):
        lake.write("spans", [span(number)], "s")
    threads = [threading.Thread(target=Lake(tmp_path / "lake").compact, args=("spans",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(lake) == 30


@pytest.mark.slow
def test_connecting_to_thousands_of_segments_is_quick(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    path = lake.write("spans", [span(1)], "s")
    assert path is not None
    for number in range(3000):
        path.with_name(f"{number:032x}.parquet").write_bytes(path.read_bytes())
    start = time.perf_counter()
    assert count(lake) == 3001
    first = time.perf_counter() - start
    start = time.perf_counter()
    lake.connect().close()
    again = time.perf_counter() - start
    assert first < 10
    assert again < 3
