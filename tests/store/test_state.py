"""State: SQLite and Redis behave as one model, survive a restart, and let exactly one racer win."""

import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from agentops.errors import StoreError
from agentops.store import MemoryState, State, open_state
from agentops.store.state_sqlite import SqliteState


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[State, Callable[[], State]]]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    states: list[State] = []

    def open_again() -> State:
        states.append(open_state(tmp_path, url))
        return states[-1]

    yield open_again(), open_again
    for state in states:
        state.close()


KEYS = st.sampled_from(["a", "a/b", "a/c", "aé", "b", "release/intent", "a\x00", "a\U0010ffff", "😀"])
VALUES = st.binary(max_size=20)


class Machine(RuleBasedStateMachine):
    """The real store next to a dictionary."""

    def __init__(self, fresh: Callable[[], State]) -> None:
        super().__init__()
        self.fresh = fresh

    versions = Bundle("versions")

    @initialize()
    def start(self) -> None:
        self.state = self.fresh()
        for key, _, version in self.state.scan(""):
            assert self.state.compare_and_set(key, None, version)
        self.model: dict[str, tuple[bytes, int]] = {}
        self.base = {stream: self.length(stream) for stream in ("a", "b")}
        self.logs: dict[str, list[bytes]] = {"a": [], "b": []}
        self.highest = 0

    def length(self, stream: str) -> int:
        entries = self.state.read(stream, 0, 100_000)
        return entries[-1][0] if entries else 0

    def written(self, key: str, value: bytes) -> int:
        found = self.state.get(key)
        assert found is not None
        assert found[0] == value
        assert found[1] > self.highest, "a version must never come back"
        self.highest = found[1]
        self.model[key] = (value, found[1])
        return found[1]

    @rule(target=versions, key=KEYS, value=VALUES)
    def put(self, key: str, value: bytes) -> tuple[str, int]:
        version = self.state.put(key, value)
        assert version == self.written(key, value)
        return key, version

    @rule(target=versions, key=KEYS, value=VALUES)
    def create(self, key: str, value: bytes) -> tuple[str, int]:
        won = self.state.compare_and_set(key, value, 0)
        assert won == (key not in self.model)
        if won:
            self.written(key, value)
        return key, self.model[key][1]

    @rule(remembered=versions, value=st.none() | VALUES)
    def compare_and_set(self, remembered: tuple[str, int], value: bytes | None) -> None:
        key, version = remembered
        won = self.state.compare_and_set(key, value, version)
        assert won == (key in self.model and self.model[key][1] == version)
        if won and value is None:
            del self.model[key]
        elif won and value is not None:
            self.written(key, value)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.state.get(key) == self.model.get(key)

    @rule(prefix=KEYS | st.just(""))
    def scan(self, prefix: str) -> None:
        expected = sorted(
            ((key, *entry) for key, entry in self.model.items() if key.startswith(prefix)),
            key=lambda item: item[0].encode(),
        )
        assert self.state.scan(prefix) == expected

    @rule(stream=st.sampled_from(["a", "b"]), value=VALUES)
    def append(self, stream: str, value: bytes) -> None:
        self.logs[stream].append(value)
        assert self.state.append(stream, value) == self.base[stream] + len(self.logs[stream])

    @rule(stream=st.sampled_from(["a", "b"]), after=st.integers(0, 5), limit=st.integers(1, 4))
    def read(self, stream: str, after: int, limit: int) -> None:
        start = self.base[stream]
        expected = [(start + i, value) for i, value in enumerate(self.logs[stream], 1)][after : after + limit]
        assert self.state.read(stream, start + after, limit) == expected


def test_both_backends_behave_as_the_model(opened: tuple[State, Callable[[], State]]) -> None:
    state, _ = opened
    run_state_machine_as_test(
        lambda: Machine(lambda: state),
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_values_survive_a_restart(opened: tuple[State, Callable[[], State]]) -> None:
    state, again = opened
    version = state.put("approval/1", b"\x00\xffbytes")
    state.append("history", b"one")
    state.close()
    with pytest.raises(StoreError, match="closed"):
        state.get("approval/1")
    other = again()
    assert other.get("approval/1") == (b"\x00\xffbytes", version)
    assert other.append("history", b"two") == 2
    assert other.read("history", after=1) == [(2, b"two")]


def test_bounds_are_named(opened: tuple[State, Callable[[], State]]) -> None:
    state, _ = opened
    with pytest.raises(StoreError, match="1 to 1024 bytes"):
        state.put("", b"")
    with pytest.raises(StoreError, match="1 to 1024 bytes"):
        state.get("k" * 1025)
    with pytest.raises(StoreError, match="at most 16777216 bytes"):
        state.put("k", b"x" * (16 * 1024 * 1024 + 1))
    with pytest.raises(StoreError, match="bytes, got str"):
        state.put("k", "text")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="not valid Unicode"):
        state.get("\ud800")
    with pytest.raises(StoreError, match="limit"):
        state.read("s", after=-1)
    assert state.scan("") == []


def _race(home: Path, url: str | None, rounds: int, results: "multiprocessing.Queue[int]") -> None:
    state = open_state(home, url)
    won = 0
    for _ in range(rounds):
        while True:
            found = state.get("counter")
            value, version = found if found else (b"0", 0)
            if state.compare_and_set("counter", str(int(value) + 1).encode(), version):
                won += 1
                break
        state.append("log", b"x")
    state.close()
    results.put(won)


def test_two_processes_race_and_no_increment_is_lost(
    opened: tuple[State, Callable[[], State]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state, _ = opened
    url = request.getfixturevalue("redis_url") if request.node.callspec.params["opened"] == "redis" else None
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[int] = context.Queue()
    workers = [context.Process(target=_race, args=(tmp_path, url, 40, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60), results.get(timeout=60)] == [40, 40]
    for worker in workers:
        worker.join(10)
    found = state.get("counter")
    assert found is not None
    assert found[0] == b"80"
    assert [position for position, _ in state.read("log")] == list(range(1, 81))


def test_an_unreachable_redis_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1 does not answer") as caught:
        open_state(tmp_path, "redis://:hunter2secret@127.0.0.1:1/0")
    assert "hunter2secret" not in str(caught.value)
    with pytest.raises(StoreError, match="not usable") as caught:
        open_state(tmp_path, "http://:hunter2secret@127.0.0.1:1/0")
    assert "hunter2secret" not in str(caught.value)


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"state\.db"):
        open_state(tmp_path, None)


def test_a_locked_file_is_waited_for_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentops.store.state_sqlite.BUSY_S", 0.1)
    state = open_state(tmp_path, None)
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        state.put("k", b"v")
    other.execute("ROLLBACK")
    other.close()
    assert state.put("k", b"v") > 0
    state.close()


def test_nobody_else_reads_the_file(tmp_path: Path) -> None:
    state = open_state(tmp_path, None)
    state.put("k", b"v")
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {
        "state.db": 0,
        "state.db-wal": 0,
        "state.db-shm": 0,
    }
    state.close()


def test_a_commit_that_failed_blocks_no_later_one(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")

    def full(action: int, what: str | None, *_: Any) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT" else sqlite3.SQLITE_OK

    assert state._connection is not None
    state._connection.set_authorizer(full)
    with pytest.raises(StoreError, match="cannot be used"):
        state.put("k", b"lost")
    state._connection.set_authorizer(None)
    assert state.get("k") is None
    assert state.put("k", b"v") > 0
    assert state.get("k") == (b"v", 1)
    state.close()


def test_the_state_in_memory_behaves_like_the_durable_ones() -> None:
    run_state_machine_as_test(lambda: Machine(MemoryState), settings=settings(max_examples=60, deadline=None))
    state = MemoryState()
    state.close()
    with pytest.raises(StoreError, match="closed"):
        state.get("k")
