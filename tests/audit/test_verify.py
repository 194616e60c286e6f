"""Tampering: what an outsider with the public key catches, and what only an anchor catches."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.audit import AuditLog, Claim, frames, logfile, notes, records, verify
from agentops.audit.merkle import inclusion_proof, verify_inclusion
from agentops.errors import AuditError


def log_of(folder: Path) -> Path:
    [path] = folder.glob("*.log")
    return path


def offsets(folder: Path) -> list[int]:
    data = log_of(folder).read_bytes()
    return [offset for offset, _ in frames.leaves(data, len(data))]


def remembered(folder: Path) -> list[Claim]:
    """The heads of now, as someone elsewhere keeps them."""
    return [Claim(name, size, root, "the anchor") for name, (size, root) in verify(folder).heads.items()]


def refused(folder: Path) -> str:
    """The problem, after checking that a writer refuses the same folder and changes nothing."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = verify(folder)
    assert not report.ok
    with pytest.raises(AuditError):
        AuditLog(folder, "desk").close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    return str(report.problem)


def test_an_untouched_log_is_fine(folder: Path) -> None:
    report = verify(folder)
    assert report.ok
    assert (report.logs, report.records, report.checkpoints, report.signed_records) == (1, 13, 1, 13)
    assert report.problem is None
    assert verify(folder, notes.load_public_key(folder)).ok
    assert [record.get("number") for record in records(folder)] == [None, *range(12)]


def flips(original: bytes, bits: int = 8) -> Iterator[bytes]:
    """`original` with each bit flipped in turn, or with `bits` of every byte's eight."""
    for position in range(len(original)):
        for bit in range(bits):
            changed = bytearray(original)
            changed[position] ^= 1 << (bit + position) % 8
            yield bytes(changed)


def test_every_bit_flipped_is_caught(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"n": 1})
        log.append_now({"n": 2})
    path, public = log_of(tmp_path), notes.load_public_key(tmp_path)
    note = path.with_suffix(".checkpoint").read_bytes()
    checkpoint = notes.open_note(note, public)
    for number, changed in enumerate(flips(path.read_bytes())):
        walk = frames.walk(changed, path.stem, public, (checkpoint.size,))
        assert logfile.judge(walk, checkpoint, path.stem), number
    for changed in flips(note):
        with pytest.raises(AuditError):
            notes.open_note(changed, public)


def test_a_flip_in_any_byte_of_any_file_reaches_the_report(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"n": 1})
    for name in (log_of(tmp_path).name, next(tmp_path.glob("*.checkpoint")).name, "key.pub"):
        path = tmp_path / name
        original = path.read_bytes()
        for number, changed in enumerate(flips(original, 1)):
            path.write_bytes(changed)
            try:
                caught = not verify(tmp_path).ok
            except AuditError:
                caught = True
            assert caught, f"{name}, byte {number}"
        path.write_bytes(original)
    assert verify(tmp_path).ok


def test_every_truncation_is_caught(folder: Path) -> None:
    path = log_of(folder)
    original = path.read_bytes()
    for length in (0, 1, 11, 12, *offsets(folder)[1:], len(original) - 1):
        path.write_bytes(original[:length])
        assert not verify(folder).ok, length
    path.write_bytes(original)
    assert verify(folder).ok


def test_a_log_cut_below_its_checkpoint_refuses_writers(folder: Path) -> None:
    path = log_of(folder)
    path.write_bytes(path.read_bytes()[: offsets(folder)[-1]])
    assert "the log was cut" in refused(folder)


def test_a_removed_record_is_caught(folder: Path) -> None:
    path, at = log_of(folder), offsets(folder)
    data = path.read_bytes()
    path.write_bytes(data[: at[4]] + data[at[5] :])
    assert "does not follow" in refused(folder)


def test_swapped_records_are_caught(folder: Path) -> None:
    path, at = log_of(folder), offsets(folder)
    data = path.read_bytes()
    path.write_bytes(data[: at[4]] + data[at[5] : at[6]] + data[at[4] : at[5]] + data[at[6] :])
    assert "does not follow" in refused(folder)


def test_a_damaged_record_before_good_ones_is_no_torn_end(folder: Path) -> None:
    path, at = log_of(folder), offsets(folder)
    data = bytearray(path.read_bytes())
    data[at[3] + 60] ^= 1
    path.write_bytes(data)
    problem = refused(folder)
    assert path.name in problem
    assert f"byte {at[3]}" in problem
    assert "changed after it was written" in problem


def rewrite(folder: Path, key: Ed25519PrivateKey) -> None:
    """Replace a record and recompute everything that follows from it, as a thief of `key` would."""
    path = log_of(folder)
    data, name, public = path.read_bytes(), path.stem, notes.public_bytes(key)
    link, parts = frames.genesis(name, public), []
    for _, leaf in frames.leaves(data, len(data)):
        body = leaf[frames.BODY :].replace(b'"number":5', b'"number":6')
        part, link = frames.frame(link, body, notes.seal_secret(key))
        parts.append(part)
    path.write_bytes(b"".join(parts))
    walk = frames.walk(path.read_bytes(), name, public)
    note = notes.sign(notes.Checkpoint(name, walk.tree.size, walk.tree.root(), 0), key)
    path.with_suffix(".checkpoint").write_bytes(note)


def test_a_rewrite_with_fresh_hashes_is_caught_by_the_signature(folder: Path) -> None:
    rewrite(folder, Ed25519PrivateKey.generate())
    assert "another key" in refused(folder)


def test_a_rewrite_under_the_same_checkpoint_is_caught(folder: Path) -> None:
    checkpoint = next(folder.glob("*.checkpoint")).read_bytes()
    rewrite(folder, notes.load_or_create_key(folder))
    next(folder.glob("*.checkpoint")).write_bytes(checkpoint)
    assert "not the ones the checkpoint signed" in refused(folder)


def test_only_an_anchor_catches_a_stolen_key(folder: Path) -> None:
    anchor = remembered(folder)
    rewrite(folder, notes.load_or_create_key(folder))
    assert verify(folder).ok  # documented: nothing inside the folder can tell
    report = verify(folder, claims=anchor)
    assert not report.ok
    assert "the log was rewritten" in str(report.problem)


def test_only_an_anchor_catches_a_rollback(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    with AuditLog(folder, "desk") as log:
        log.append_now({"number": 12})
    anchor = remembered(folder)
    assert verify(old).ok
    report = verify(old, claims=anchor)
    assert not report.ok
    assert "the log was cut" in str(report.problem)
    assert verify(folder, claims=remembered(old)).ok  # an older anchor of the same history is fine


def test_a_removed_checkpoint_is_caught(folder: Path) -> None:
    next(folder.glob("*.checkpoint")).unlink()
    assert "must have one" in refused(folder)


def test_a_removed_log_is_caught_by_its_checkpoint(folder: Path) -> None:
    log_of(folder).unlink()
    report = verify(folder)
    assert not report.ok
    assert "the log was removed" in str(report.problem)


def test_a_log_removed_with_its_checkpoint_is_remembered_by_the_others(folder: Path) -> None:
    first = log_of(folder)
    with AuditLog(folder, "other") as log:
        log.append_now({"number": 99})
    first.unlink()
    first.with_suffix(".checkpoint").unlink()
    report = verify(folder)
    assert not report.ok
    assert f"{first.name} is missing" in str(report.problem)


def test_a_log_under_another_name_is_caught(folder: Path) -> None:
    path = log_of(folder)
    other = folder / f"desk-{'0' * 12}.log"
    path.rename(other)
    path.with_suffix(".checkpoint").rename(other.with_suffix(".checkpoint"))
    assert "checkpoint of another log" in str(verify(folder).problem)


def test_a_key_pair_that_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    AuditLog(tmp_path / "elsewhere", "desk").close()
    shutil.copy(tmp_path / "elsewhere" / "key.pub", folder / "key.pub")
    with pytest.raises(AuditError, match="does not belong"):
        AuditLog(folder, "desk")
    assert not verify(folder).ok


def test_a_missing_folder_and_a_missing_key_are_clear_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no audit folder"):
        verify(tmp_path / "nowhere")
    (folder / "key.pub").unlink()
    with pytest.raises(AuditError, match="kept elsewhere"):
        verify(folder)


def test_the_report_reads_as_sentences_and_as_json(folder: Path) -> None:
    report = verify(folder)
    assert report.lines() == ["records: 13, logs: 1, signed checkpoints: 1", "the log is whole"]
    assert json.loads(json.dumps(asdict(report)))["heads"][log_of(folder).stem][0] == 13
    log_of(folder).write_bytes(log_of(folder).read_bytes()[:-1])
    lines = verify(folder).lines()
    assert lines[-1] == "THE LOG WAS CHANGED OR DAMAGED"
    assert "the log was cut" in lines[1]


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    assert verify(tmp_path).ok
    assert list(records(tmp_path)) == []


def test_a_signed_note_is_what_c2sp_describes(folder: Path) -> None:
    note = next(folder.glob("*.checkpoint")).read_text()
    name, size, root, time, empty, signature, end = note.split("\n")
    assert name == log_of(folder).stem
    assert size == "13"
    assert len(root) == 44
    assert time.startswith("time ")
    assert (empty, end) == ("", "")
    assert signature.startswith("— agentops-audit ")
    vkey = (folder / "key.pub").read_text()
    assert vkey.startswith("agentops-audit+")


def test_one_record_is_proved_to_someone_who_has_only_the_checkpoint(folder: Path) -> None:
    data = log_of(folder).read_bytes()
    leaves = frames.leaf_hashes(data, len(data))
    checkpoint = notes.open_note(next(folder.glob("*.checkpoint")).read_bytes(), notes.load_public_key(folder))
    proof = inclusion_proof(leaves, 5)
    assert verify_inclusion(leaves[5], 5, checkpoint.size, proof, checkpoint.root)
    assert not verify_inclusion(leaves[6], 5, checkpoint.size, proof, checkpoint.root)


def test_verification_runs_beside_a_writer(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as log:
        for number in range(200):
            log.post({"number": number})
            if number % 20 == 0:
                report = verify(tmp_path)
                assert report.ok, report.problem


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_make_verification_crash(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "fuzz"
    if not folder.exists():
        AuditLog(folder, "desk").close()
    [path] = folder.glob("*.log")
    path.write_bytes(data)
    report = verify(folder)
    assert report.records == 0
    assert report.ok or report.problem is not None


def add(folder: Path, body: bytes) -> None:
    """Append a frame that fits, as anyone who can write the file can."""
    path = log_of(folder)
    walk = frames.walk(path.read_bytes(), path.stem, notes.load_public_key(folder))
    part, _ = frames.frame(walk.link, body, b"guessed")
    path.write_bytes(path.read_bytes() + part)


@pytest.mark.parametrize(
    "body",
    [b'{"log":5,"time_ms":1}', b'{"log":{"heads":{"a":1}},"time_ms":1}', b'{"log":' + b"[" * 90_000],
)
def test_well_framed_nonsense_after_the_checkpoint_is_reported(folder: Path, body: bytes) -> None:
    add(folder, body)
    refused(folder)


@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_frame_too_short_for_a_record_is_reported_and_cut(folder: Path, body: bytes) -> None:
    add(folder, body)
    assert not verify(folder).ok
    AuditLog(folder, "desk").close()
    assert verify(folder).ok
    assert len(list(folder.glob("*.torn-*"))) == 1


def test_a_forged_record_after_the_checkpoint_is_never_signed(folder: Path) -> None:
    add(folder, b'{"record":{"number":12,"type":"call.intent"},"time_ms":1}')
    report = verify(folder)
    assert (report.records, report.signed_records) == (14, 13)  # an outsider sees it is not signed
    with pytest.raises(AuditError, match="added by others"):
        AuditLog(folder, "desk")


def test_records_that_are_no_json_are_an_error_for_readers(folder: Path) -> None:
    add(folder, b'{"record":nonsense,"time_ms":1}')
    with pytest.raises(AuditError, match="record 13 is not readable"):
        list(records(folder))


@pytest.mark.parametrize("suffix", ["log", "checkpoint"])
@pytest.mark.parametrize("what", ["pipe", "zeros", "folder"])
def test_what_is_no_file_is_reported_and_never_waited_for(folder: Path, suffix: str, what: str) -> None:
    [path] = folder.glob(f"*.{suffix}")
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "zeros":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert not verify(folder).ok
    with pytest.raises(AuditError):
        AuditLog(folder, "desk").close()


def test_thousands_of_frame_starts_do_not_stall_verification(folder: Path) -> None:
    path = log_of(folder)
    path.write_bytes(path.read_bytes() + (frames.MAGIC + b"0000\xff\xff\x0f\x00") * 50_000)
    assert not verify(folder).ok
