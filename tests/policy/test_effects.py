"""An effect with one key begins once, over threads, processes and restarts; what never ended is not repeated."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from agentops.errors import StoreError
from agentops.graph import RealClock, VirtualClock
from agentops.policy import Effects
from agentops.store import MemoryState, open_state


def test_what_was_done_is_not_done_again_and_what_was_not_may_be() -> None:
    effects = Effects(MemoryState(), VirtualClock(1000.0))
    assert effects.begin("acme", "k") == "new"
    assert effects.begin("acme", "k") == "unknown"
    effects.end("acme", "k", happened=True)
    assert effects.begin("acme", "k") == "done"
    assert effects.begin("other", "k") == "new", "another tenant's key"
    effects.end("other", "k", happened=False)
    assert effects.begin("other", "k") == "new"


def test_of_many_threads_one_begins(tmp_path: Path) -> None:
    effects = Effects(open_state(tmp_path, None), RealClock())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(effects.begin("acme", "k"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["new"] + ["unknown"] * 15


def _begin_and_die(folder: Path) -> None:
    Effects(open_state(folder, None), RealClock()).begin("acme", "k")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_began_stays_unknown(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_begin_and_die, args=(tmp_path,))
    process.start()
    process.join(30)
    effects = Effects(open_state(tmp_path, None), RealClock())
    assert effects.begin("acme", "k") == "unknown"


def test_old_marks_are_forgotten_and_damaged_ones_are_not_believed() -> None:
    clock, state = VirtualClock(1000.0), MemoryState()
    effects = Effects(state, clock)
    effects.begin("acme", "k")
    assert effects.prune(before=1000.0) == 0
    assert effects.prune(before=1001.0) == 1
    assert effects.begin("acme", "k") == "new"
    [(key, _, _)] = state.scan("effects/")
    state.put(key, b"[1]")
    with pytest.raises(StoreError, match="not repeated until it is removed"):
        effects.begin("acme", "k")
