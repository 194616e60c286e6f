"""Keys of people: made once for all processes, gone for good when erased, and the log that used them stays whole."""

import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.audit import AuditLog, digest_value, records, subjects, verify
from agentops.audit.subjects import ERASED_WITHIN_S, SubjectKeys
from agentops.errors import StoreError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "subjects.db"


def raw(path: Path) -> bytes:
    """Every byte of the store on disk: the file, its write-ahead log, its index."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def test_a_person_has_one_subject_over_restarts_and_instances(path: Path) -> None:
    first, second = SubjectKeys(path), SubjectKeys(path)
    mara = first.subject("shop", "mara")
    assert second.subject("shop", "mara") == mara == first.subject("shop", "mara")
    assert first.find(mara.id) == mara
    first.close()
    second.close()
    assert SubjectKeys(path).subject("shop", "mara") == mara
    assert len(mara.key) == 32
    assert "key" not in repr(mara)


def test_files_are_private_and_hold_no_name(path: Path) -> None:
    keys = SubjectKeys(path)
    keys.subject("tenant-name", "mara@example.com")
    for file in path.parent.glob(f"{path.name}*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert b"mara" not in raw(path)
    assert b"tenant-name" not in raw(path)


@settings(max_examples=30, deadline=None)
@given(people=st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6, unique=True))
def test_different_people_never_share_an_id_or_a_key(tmp_path_factory: pytest.TempPathFactory, people: list) -> None:
    keys = SubjectKeys(tmp_path_factory.mktemp("keys") / "subjects.db")
    found = [keys.subject(*person) for person in people]
    assert len({one.id for one in found}) == len({one.key for one in found}) == len(people)
    keys.close()


def test_nothing_of_an_erased_person_is_left_on_disk(path: Path) -> None:
    keys = SubjectKeys(path)
    others = [keys.subject("shop", f"user-{number}") for number in range(300)]  # pages have split many times
    gone = others.pop(150)
    who = keys._who("shop", "user-150")
    before = raw(path)
    assert gone.key in before
    assert gone.id.encode() in before
    assert who in before
    assert keys.erase("shop", "user-150") == gone.id
    after = raw(path)
    for trace in (gone.key, gone.id.encode(), who):
        assert trace not in after
    assert keys.find(gone.id) is None
    assert keys.erase("shop", "user-150") == ""
    assert all(keys.find(one.id) == one for one in others)
    again = keys.subject("shop", "user-150")
    assert again.id != gone.id
    assert again.key != gone.key


def test_an_erasure_that_is_kept_from_the_file_says_so_and_is_finished_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "BUSY_S", 0.2)
    keys = SubjectKeys(path)
    mara = keys.subject("shop", "mara")
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM subjects").fetchall()  # holds the old state
    with pytest.raises(StoreError, match="still holds a copy: erase again"):
        keys.erase("shop", "mara")
    assert keys.find(mara.id) is None
    assert mara.key in raw(path)
    reader.close()
    assert keys.erase("shop", "mara") == ""
    assert mara.key not in raw(path)


def test_an_erasure_killed_half_way_is_finished_by_whoever_opens_the_file(path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from agentops.audit.subjects import SubjectKeys
keys = SubjectKeys(Path(sys.argv[1]))
print(keys.subject("shop", "mara").key.hex(), flush=True)
with keys._used() as db:
    db.execute("DELETE FROM subjects")
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    key = bytes.fromhex(done.stdout)
    assert key in raw(path)
    SubjectKeys(path).subject("shop", "otto")
    assert key not in raw(path)


def test_an_erasure_reaches_other_processes_within_the_bound(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from agentops.audit.subjects import SubjectKeys
keys = SubjectKeys(Path(sys.argv[1]))
for _ in sys.stdin:
    print(keys.subject("shop", "mara").id, flush=True)
"""
    keys = SubjectKeys(path)
    mara = keys.subject("shop", "mara")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def asked() -> str:
            other.stdin.write("\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        assert asked() == mara.id
        keys.erase("shop", "mara")
        time.sleep(ERASED_WITHIN_S + 0.05)
        fresh = asked()
        assert fresh != mara.id
        assert keys.subject("shop", "mara").id == fresh  # and both agree on the new one
        other.stdin.close()


def test_processes_that_meet_a_person_at_once_agree(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from agentops.audit.subjects import SubjectKeys
keys = SubjectKeys(Path(sys.argv[1]))
print(*[keys.subject("shop", f"user-{number}").id for number in range(40)])
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    answers = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(answers) == 1
    assert len(set(answers.pop().split())) == 40


def test_threads_share_one_store(path: Path) -> None:
    keys = SubjectKeys(path)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(keys.subject("shop", f"u{n % 5}").id for n in range(200)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800
    assert len(set(found)) == 5


def test_a_killed_process_leaves_a_store_that_opens_and_keeps_what_it_returned(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from agentops.audit.subjects import SubjectKeys
keys, number = SubjectKeys(Path(sys.argv[1])), 0
while True:
    print(number, keys.subject("shop", f"user-{number}").id, flush=True)
    number += 1
"""
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().split() for _ in range(30)]
        process.kill()
    keys = SubjectKeys(path)
    assert all(keys.subject("shop", f"user-{number}").id == id for number, id in seen)


def test_a_damaged_store_is_refused_with_what_to_do(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="check the file"):
        SubjectKeys(path).subject("shop", "mara")


def test_a_subject_seen_lately_costs_microseconds(path: Path) -> None:
    keys = SubjectKeys(path)
    keys.subject("shop", "mara")
    started = time.thread_time()
    for _ in range(10_000):
        keys.subject("shop", "mara")
    assert (time.thread_time() - started) / 10_000 < 20e-6


def test_an_erasure_that_is_cut_off_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "BUSY_S", 0.2)
    folder = tmp_path / "audit"
    with AuditLog(folder, "desk") as log:
        mara = log.subject("shop", "mara")
        reader = sqlite3.connect(folder / "subjects.db")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM subjects").fetchall()
        with pytest.raises(StoreError, match="erase again"):
            log.erase("shop", "mara")
        reader.close()
        log.erase("shop", "mara")
        log.erase("shop", "nobody")
    [erasing] = [record for record in records(folder) if record.get("type") == "subject.erasing"]
    assert erasing["subject"] == mara


def test_the_log_still_verifies_and_its_digests_mean_nothing_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with AuditLog(folder, "desk") as log:
        subject, digest = log.subject("shop", "mara"), log.digest("SO-10001", "shop", "mara")
        log.append_now({"type": "tool.intent", "subject": subject, "arguments": digest})
        key = log.subjects.subject("shop", "mara").key
        assert digest == digest_value(key, "SO-10001")  # who has the key can check a claim about the record
        assert log.digest("SO-10001", "shop", "otto") != digest
        assert log.erase("shop", "mara") == subject
        assert log.erase("shop", "mara") == ""
        assert log.digest("SO-10001", "shop", "mara") != digest
    assert verify(folder).ok
    [erased] = [record for record in records(folder) if record.get("type") == "subject.erased"]
    assert erased["subject"] == subject
    assert "mara" not in str(list(records(folder)))
    assert key not in b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
