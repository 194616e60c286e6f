"""Bits, torn frames and full disks over a folder with tenants: what is caught, what is mended, what is refused."""

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.audit import AuditLog, frames, names, records, verify
from agentops.errors import AuditError


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bit_of_any_log_checkpoint_or_key(tenants: Path, data: st.DataObject) -> None:
    files = sorted([*tenants.rglob("*.log"), *tenants.rglob("*.checkpoint"), tenants / "key.pub"])
    path = data.draw(st.sampled_from(files))
    original = path.read_bytes()
    position = data.draw(st.integers(0, len(original) * 8 - 1))
    changed = bytearray(original)
    changed[position // 8] ^= 1 << position % 8
    path.write_bytes(changed)
    try:
        with contextlib.suppress(AuditError):
            assert not verify(tenants).ok
    finally:
        path.write_bytes(original)


def test_a_torn_end_of_a_tenants_log_is_recovered_and_recorded_there(tenants: Path, one: Callable) -> None:
    path = one(tenants, "tenants/acme/*.log")
    with path.open("ab") as file:
        file.write(frames.HEADER.pack(frames.MAGIC, b"xxxx", 200) + b"half a frame")
    assert verify(tenants).ok
    with AuditLog(tenants, "desk") as log:
        log.append_now({"tenant": "acme", "number": 6})
    kinds = [kind for record in records(tenants, "acme") if (kind := record.get("type", "")).startswith("log.")]
    assert kinds == ["log.open", "log.open", "log.recovered"]
    assert one(tenants, "tenants/acme/*.torn-*").read_bytes().endswith(b"half a frame")
    assert verify(tenants).ok


@pytest.mark.parametrize("kept", [0, 5, 60, 200, 330])
def test_a_crash_at_any_point_of_a_new_logs_opening_is_no_tampering(tmp_path: Path, one: Callable, kept: int) -> None:
    """Killed while the first records were written, before the first checkpoint; twice, then it goes on."""
    for number in range(3):
        with AuditLog(tmp_path, "desk") as log:
            log.append_now({"tenant": "new", "number": number})
        assert verify(tmp_path).ok, verify(tmp_path).problem
        path = one(tmp_path, "tenants/new/*.log")
        data = path.read_bytes()
        opening = next(offset for offset, leaf in frames.leaves(data, len(data)) if b'"record"' in leaf)
        path.write_bytes(data[: min(kept, opening)])
        path.with_suffix(".checkpoint").unlink()
        for system in [*tmp_path.glob("*.log"), *tmp_path.glob("*.checkpoint")]:  # nothing had been said of it yet
            system.unlink()


def test_a_torn_frame_in_the_middle_refuses_to_be_written(tenants: Path, one: Callable) -> None:
    path = one(tenants, "tenants/acme/*.log")
    data = path.read_bytes()
    offsets = [offset for offset, _ in frames.leaves(data, len(data))]
    path.write_bytes(data[: offsets[3] + 40] + data[offsets[4] :])
    with AuditLog(tenants, "desk") as log, pytest.raises(AuditError, match="Nothing was written"):
        log.append_now({"tenant": "acme", "number": 6})
    assert path.read_bytes() == data[: offsets[3] + 40] + data[offsets[4] :]


@pytest.fixture
def small(tmp_path: Path):
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(log: AuditLog) -> tuple[int, str]:
    """Write until a record is refused: its number and why."""
    for number in range(1, 500):
        try:
            log.append_now({"tenant": "acme", "number": number, "text": "x" * 5000})
        except AuditError as error:
            return number, str(error)
    raise AssertionError("the disk was never full")


def test_a_full_disk_refuses_whole_records_and_goes_on_when_there_is_room(small: Path) -> None:
    ballast = small / "ballast"
    with AuditLog(small / "audit", "desk") as log:
        log.append_now({"tenant": "acme", "number": 0})
        ballast.write_bytes(b"x" * 600_000)
        number, why = fill(log)
        assert "No space left" in why
        assert number > 5
        report = verify(small / "audit")
        assert report.ok, report.problem
        assert not report.torn  # nothing half-written
        ballast.unlink()
        with contextlib.suppress(AuditError):  # what could not be signed meanwhile is told once
            log.append_now({"tenant": "acme", "number": 1000})
        log.append_now({"tenant": "acme", "number": 1001})
    found = [record["number"] for record in records(small / "audit", "acme") if "number" in record]
    assert found[:number] == list(range(number))
    assert 1001 in found
    assert set(found[number:]) <= {1000, 1001}
    assert verify(small / "audit").ok
    assert len(names.tenant_names(small / "audit", "acme")) == 1
