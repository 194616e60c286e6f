"""Proofs of one record, and exports that verify without the folder: whatever is changed in them is caught."""

import base64
import copy
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.audit import AuditLog, export, frames, heads, merkle, names, notes, proofs, verify
from agentops.errors import AuditError


@pytest.fixture
def public(tenants: Path) -> bytes:
    return notes.load_public_key(tenants)


def acme(folder: Path) -> str:
    [name] = names.tenant_names(folder, "acme")
    return name


def test_every_record_of_every_log_is_proved(tenants: Path, public: bytes) -> None:
    for name in names.log_names(tenants):
        size = frames.walk((tenants / f"{name}.log").read_bytes(), name, public).tree.size
        for index in range(size):
            proof = json.loads(json.dumps(proofs.prove(tenants, name, index, public)))
            record = proofs.verify_proof(proof, public)
            assert (record["log"], record["index"]) == (name, index)
            assert (proof["system"] is not None) == name.startswith("tenants/")
            assert proof["checkpoint"] is not None


@pytest.mark.parametrize("torn", [frames.MAGIC, frames.HEADER.pack(frames.MAGIC, b"four", 500) + b"half a record"])
def test_a_record_being_written_keeps_nobody_from_proving_those_before_it(
    tenants: Path, public: bytes, tmp_path: Path, torn: bytes
) -> None:
    for path in tenants.rglob("*.log"):
        path.write_bytes(path.read_bytes() + torn)
    assert proofs.verify_proof(proofs.prove(tenants, acme(tenants), 3, public), public)["index"] == 3
    assert export.export(tenants, tmp_path / "out.jsonl").logs == 4
    for head in heads.heads(tenants, public):
        assert merkle.root(head.leaf_hashes()) == head.checkpoint.root


def test_a_proof_needs_no_folder_and_the_right_key(tenants: Path, public: bytes, tmp_path: Path) -> None:
    proof = proofs.prove(tenants, acme(tenants), 3, public)
    AuditLog(tmp_path / "other", "desk").close()
    with pytest.raises(AuditError):
        proofs.verify_proof(proof, notes.load_public_key(tmp_path / "other"))
    shutil.rmtree(tenants)
    assert proofs.verify_proof(proof, public)["number"] == 2


def parts(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths of everything in a JSON value that is not a container."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from parts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from parts(item, (*path, index))
    else:
        yield path


def changed(proof: dict, path: tuple, value: Any) -> dict:
    made = copy.deepcopy(proof)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_changed_in_a_proof_is_caught(tenants: Path, public: bytes, data: st.DataObject) -> None:
    proof = json.loads(json.dumps(proofs.prove(tenants, acme(tenants), 3, public)))
    path = data.draw(st.sampled_from(list(parts(proof))))
    value = proof
    for step in path:
        value = value[step]
    if isinstance(value, str):
        at = data.draw(st.integers(0, len(value) - 1))
        other = value[:at] + data.draw(st.sampled_from("abAB01/+=\n")) + value[at + 1 :]
    else:
        other = data.draw(st.integers(-3, 40) | st.none())
    if other == value:
        return
    try:
        record = proofs.verify_proof(changed(proof, path, other), public)
    except AuditError:
        return
    # What is left are other spellings of the same thing (hexadecimal letters, 3 and 3.0): the record is the proved one.
    assert record == proofs.verify_proof(proof, public)


@pytest.mark.parametrize("removed", ["leaf", "inclusion", "log", "format"])
def test_a_proof_without_a_part_is_refused(tenants: Path, public: bytes, removed: str) -> None:
    proof = proofs.prove(tenants, acme(tenants), 3, public)
    with pytest.raises(AuditError):
        proofs.verify_proof({key: value for key, value in proof.items() if key != removed}, public)
    with pytest.raises(AuditError, match="nothing signed vouches"):
        proofs.verify_proof({**proof, "checkpoint": None, "system": None}, public)


def test_an_inner_node_is_no_record(tenants: Path, public: bytes) -> None:
    """The parent of leaves 2 and 3 with the proof that would fit it one level up."""
    proof = proofs.prove(tenants, acme(tenants), 2, public)
    data = (tenants / f"{acme(tenants)}.log").read_bytes()
    left, right = frames.leaf_hashes(data, len(data))[2:4]
    for node in (left + right, b"\x01" + left + right):
        forged = {**proof, "leaf": base64.b64encode(node).decode(), "inclusion": proof["inclusion"][1:], "index": 1}
        with pytest.raises(AuditError):
            proofs.verify_proof(forged, public)
    assert merkle.verify_inclusion(merkle.node_hash(left, right), 0, 1, [], merkle.node_hash(left, right))  # why not


def test_what_cannot_be_proved_says_why(tenants: Path, public: bytes) -> None:
    with pytest.raises(AuditError, match="there is no log"):
        proofs.prove(tenants, "../../etc/passwd", 0, public)
    with pytest.raises(AuditError, match="no record 99"):
        proofs.prove(tenants, acme(tenants), 99, public)
    log = AuditLog(tenants, "desk")
    log.append_now({"tenant": "acme", "number": 6})
    with pytest.raises(AuditError, match="not signed yet"):
        proofs.prove(tenants, acme(tenants), 8, public)
    log.close()
    assert proofs.verify_proof(proofs.prove(tenants, acme(tenants), 8, public), public)["number"] == 6


def test_an_export_verifies_without_the_folder(tenants: Path, public: bytes, tmp_path: Path) -> None:
    done = export.export(tenants, tmp_path / "all", "")
    assert (done.logs, done.records, len(done.tenants)) == (4, verify(tenants).records, 3)
    one = export.export(tenants, tmp_path / "one", "Beta.Corp@eu")
    assert (one.logs, one.records) == (1, 7)
    assert one.without_system_line == ()
    shutil.rmtree(tenants)
    assert export.verify_export(tmp_path / "all", public) == done
    assert export.verify_export(tmp_path / "one", public) == one
    lines = [json.loads(line) for line in (tmp_path / "one").read_text().splitlines()]
    assert [line["envelope"]["record"]["number"] for line in lines if "record" in line.get("envelope", {})] == [
        *range(6)
    ]
    text = (tmp_path / "one").read_text()
    assert "acme" not in text
    assert "gamma" not in text
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_every_byte_of_an_export_is_covered(tenants: Path, public: bytes, tmp_path: Path) -> None:
    path = tmp_path / "one"
    export.export(tenants, path, "acme")
    original = path.read_bytes()
    missed = []
    for position in range(len(original)):
        data = bytearray(original)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        try:
            export.verify_export(path, public)
            missed.append(position)
        except AuditError:
            continue
    assert missed == []


def test_lines_removed_doubled_swapped_or_added_are_caught(tenants: Path, public: bytes, tmp_path: Path) -> None:
    path = tmp_path / "all"
    export.export(tenants, path)
    lines = path.read_bytes().splitlines(keepends=True)
    for at in range(len(lines)):
        edits = [lines[:at] + lines[at + 1 :], lines[: at + 1] + lines[at:], lines[:at]]
        edits += [[*lines[:at], *lines[at : at + 2][::-1], *lines[at + 2 :]]] if at + 1 < len(lines) else []
        for edited in edits:
            path.write_bytes(b"".join(edited))
            with pytest.raises(AuditError):
                export.verify_export(path, public)
    starts = [number for number, line in enumerate(lines) if line.startswith(b'{"log"')] + [len(lines) - 1]
    for first, last in itertools.pairwise(starts):  # a whole log left out
        path.write_bytes(b"".join(lines[:first] + lines[last:]))
        with pytest.raises(AuditError, match="signed at the end"):
            export.verify_export(path, public)


class Ticking:
    """A second later whenever it is asked for the time of a record."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.main = threading.get_ident()

    def now(self) -> float:
        self.at += threading.get_ident() == self.main  # the writer's own records are at the same time
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 70), data=st.data())
def test_any_stretch_of_time_can_be_exported(tmp_path_factory: Any, size: int, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("audit")
    with AuditLog(folder, "desk", Ticking()) as log:
        for number in range(size):
            log.post({"tenant": "acme", "number": number})
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first, size - 1))
    out = folder / "out"
    done = export.export(folder, out, "acme", 1001.0 + first, 1002.0 + last)
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    found = [line["envelope"]["record"]["number"] for line in lines if "record" in line.get("envelope", {})]
    assert found == list(range(first, last + 1))
    assert export.verify_export(out, notes.load_public_key(folder)) == done


def test_a_reader_learns_what_was_chosen(tenants: Path, public: bytes, tmp_path: Path) -> None:
    export.export(tenants, tmp_path / "out", "acme", since=5.0)
    read = export.verify_export(tmp_path / "out", public)
    assert (read.tenant, read.since, read.until) == ("acme", 5.0, export.FOREVER)
    lines = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    for until in ('"nan"', "1e300", "-1", "4.0"):
        lines[0] = lines[0].replace(b"1099511627776.0", until.encode())
        (tmp_path / f"changed{until}").write_bytes(b"".join(lines))
        with pytest.raises(AuditError, match="line 1"):
            export.verify_export(tmp_path / f"changed{until}", public)
        lines[0] = lines[0].replace(until.encode(), b"1099511627776.0")


def test_nothing_to_export_and_an_existing_file_are_errors(tenants: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="nothing was exported"):
        export.export(tenants, tmp_path / "out", "nobody")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(AuditError, match="exists"):
        export.export(tenants, tmp_path / "out", "acme")
    assert (tmp_path / "out").read_text() == "mine"
    assert not list(tmp_path.glob(".out*"))


def test_a_changed_log_is_not_exported(tenants: Path, tmp_path: Path, one: Callable) -> None:
    path = one(tenants, "tenants/acme/*.log")
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    with pytest.raises(AuditError, match="not what was signed"):
        export.export(tenants, tmp_path / "out", "acme")
    assert not (tmp_path / "out").exists()


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b"5", b'{"end":5}', b'{"log":{}}'])))
def test_no_file_makes_the_check_crash(tmp_path: Path, lines: list[bytes]) -> None:
    header = b'{"format":"agentops-audit-export/1","tenant":""}'
    (tmp_path / "x").write_bytes(b"\n".join([header, *lines]) + b"\n")
    with pytest.raises(AuditError):
        export.verify_export(tmp_path / "x", b"\x00" * 32)
