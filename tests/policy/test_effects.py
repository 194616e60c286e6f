"""An effect with one key begins once, over threads, processes and restarts; what never ended is not repeated."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from agentops.graph import RealClock, VirtualClock
from agentops.policy import Effects
from agentops.store import MemoryState, open_state


def test_what_was_begun_is_not_begun_again_unless_nothing_happened() -> None:
    effects = Effects(MemoryState(), VirtualClock(1000.0))
    assert effects.begin("acme", "k")
    assert not effects.begin("acme", "k")
    assert effects.begin("other", "k"), "another tenant's key"
    effects.forget("other", "k")
    effects.forget("other", "never begun")
    assert effects.begin("other", "k")
    assert not effects.begin("acme", "k")


def test_of_many_threads_one_begins(tmp_path: Path) -> None:
    effects = Effects(open_state(tmp_path, None), RealClock())
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(effects.begin("acme", "k"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False] * 15 + [True]


def _begin_and_die(folder: Path) -> None:
    Effects(open_state(folder, None), RealClock()).begin("acme", "k")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_began_stays_unknown(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_begin_and_die, args=(tmp_path,))
    process.start()
    process.join(30)
    effects = Effects(open_state(tmp_path, None), RealClock())
    assert not effects.begin("acme", "k")


def test_old_marks_are_forgotten_and_damaged_ones_are_not() -> None:
    clock, state = VirtualClock(1000.0), MemoryState()
    effects = Effects(state, clock)
    effects.begin("acme", "k")
    assert effects.prune(before=1000.0) == 0
    [(key, _, _)] = state.scan("effects/")
    state.put(key, b"[1]")
    assert effects.prune(before=1e12) == 0
    assert not effects.begin("acme", "k")
    state.put(key, b"1000.0")
    assert effects.prune(before=1001.0) == 1
    assert effects.begin("acme", "k")
