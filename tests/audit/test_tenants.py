"""One log per tenant, bound to it, and a system log that remembers all of them."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.audit import AuditLog, logfile, logs, names, notes, proofs, records, verify
from agentops.errors import AuditError

BETA = "Beta.Corp@eu"


def texts(folder: Path, tenant: str = "") -> list[int]:
    return [record["number"] for record in records(folder, tenant) if "number" in record]


def test_each_tenant_has_a_log_of_its_own_and_the_system_log_signs_their_heads(tenants: Path) -> None:
    report = verify(tenants)
    assert report.ok
    assert report.logs == 4
    assert report.signed_records == report.records
    for tenant in ("acme", BETA, "gamma"):
        [name] = names.tenant_names(tenants, tenant)
        assert {record["tenant"] for record in records(tenants, tenant)} == {tenant}  # the opening says it too
        assert texts(tenants, tenant) == list(range(6))
        line = proofs.Commitments(tenants, notes.load_public_key(tenants)).newest(name)
        assert line is not None
        assert (line.size, line.root) == report.heads[name]
    assert not any("tenant" in record for record in records(tenants) if record["type"].startswith("release."))
    assert len(texts(tenants)) == 20


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64))
def test_two_tenants_never_share_a_folder_and_none_leaves_its_place(first: str, second: str) -> None:
    folders = [names.tenant_folder(tenant) for tenant in (first, second)]
    assert (folders[0].casefold() == folders[1].casefold()) == (first == second)
    for folder in folders:
        assert names.NAME.fullmatch(f"tenants/{folder}/desk-0123456789ab")
        assert os.path.normpath(folder) == folder
        assert len(folder) <= 200


@pytest.mark.parametrize(
    "tenant", ["A", "a", "..", ".", "@", "Ä" * 64, "A" * 64, "a.b", "a=2eb", "-", "CON", "= x/../y"]
)
def test_any_tenant_name_can_be_written_and_read(tmp_path: Path, tenant: str) -> None:
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"tenant": tenant, "number": 7})
    assert verify(tmp_path).ok
    assert texts(tmp_path, tenant) == [7]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"tenants"}


@pytest.mark.parametrize("tenant", [None, 5, ["acme"]])
def test_a_tenant_that_is_no_text_is_refused(tmp_path: Path, tenant: object) -> None:
    with AuditLog(tmp_path, "desk") as log, pytest.raises(AuditError, match="must be text"):
        log.append_now({"tenant": tenant})


def test_a_removed_tenant_is_missed(tenants: Path) -> None:
    shutil.rmtree(tenants / "tenants" / "acme")
    report = verify(tenants)
    assert not report.ok
    assert "tenants/acme/desk-" in str(report.problem)
    assert "is missing" in str(report.problem)


def test_a_tenant_under_another_name_is_caught(tenants: Path) -> None:
    (tenants / "tenants" / "acme").rename(tenants / "tenants" / "zeta")
    problems = "\n".join(map(str, verify(tenants).problems))
    assert "checkpoint of another log" in problems
    assert "tenants/acme" in problems


def test_a_tenants_log_copied_over_anothers_is_caught(tenants: Path) -> None:
    [acme] = (tenants / "tenants" / "acme").glob("*.log")
    [gamma] = (tenants / "tenants" / "gamma").glob("*.log")
    shutil.copy(acme, gamma)
    shutil.copy(acme.with_suffix(".checkpoint"), gamma.with_suffix(".checkpoint"))
    assert "checkpoint of another log" in str(verify(tenants).problem)
    gamma.with_suffix(".checkpoint").unlink()
    assert "does not follow" in str(verify(tenants).problem)


def test_a_whole_tenant_made_with_the_key_for_another_name_is_caught(tenants: Path, one: Callable, rewrite: Callable):
    """Even the key's holder cannot pass one tenant's records off as another's: the first record names the tenant."""
    path = one(tenants, "tenants/acme/*.log")
    other = tenants / "tenants" / "zeta" / path.name
    other.parent.mkdir()
    shutil.copy(path, other)
    rewrite(other, f"tenants/zeta/{path.stem}", notes.load_or_create_key(tenants), lambda body: body)
    assert "does not say that it is this tenant's" in str(verify(tenants).problem)


def test_a_tenants_log_cut_together_with_its_checkpoint_is_caught_by_the_system_log(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"tenant": "acme", "number": 0})
    shutil.copytree(tmp_path / "tenants", tmp_path / "old")
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"tenant": "acme", "number": 1})
    shutil.rmtree(tmp_path / "tenants")
    (tmp_path / "old").rename(tmp_path / "tenants")
    report = verify(tmp_path)
    assert not report.ok
    assert "the log was cut" in str(report.problem)


def test_a_tenants_log_rewritten_with_the_key_is_caught_by_the_system_log(
    tenants: Path, one: Callable, rewrite: Callable
) -> None:
    path = one(tenants, "tenants/acme/*.log")
    name = f"tenants/acme/{path.stem}"
    rewrite(path, name, notes.load_or_create_key(tenants), lambda body: body.replace(b'"number":3', b'"number":4'))
    report = verify(tenants)
    assert not report.ok
    assert "the log was rewritten" in str(report.problem)


def test_a_tampered_tenant_is_refused_and_the_others_go_on(tenants: Path, one: Callable) -> None:
    path = one(tenants, "tenants/acme/*.log")
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with AuditLog(tenants, "desk") as log:
        for _ in range(2):  # the second time from memory, without reading the log again
            with pytest.raises(AuditError, match="tenants/acme"):
                log.append_now({"tenant": "acme", "number": 6})
        log.append_now({"tenant": "gamma", "number": 6})
        log.append_now({"type": "release.start", "number": 6})
        log.post({"tenant": "acme", "number": 6})
        log.append_now({"tenant": "gamma", "number": 7})  # another tenant's failure is not this one's
        with pytest.raises(AuditError, match="failed earlier"):
            log.append_now({"tenant": "acme", "number": 7})
    assert path.read_bytes() == data
    assert texts(tenants, "gamma")[-2:] == [6, 7]


def test_idle_tenants_are_closed_and_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OPEN_LOGS", 3)
    before = len(os.listdir("/proc/self/fd"))
    with AuditLog(tmp_path, "desk") as log:
        for number in range(4):
            for tenant in range(12):
                log.append_now({"tenant": f"t{tenant}", "number": number})
        assert len(os.listdir("/proc/self/fd")) - before < 3 + 8  # open logs, the system log, the subjects' database
    report = verify(tmp_path)
    assert report.ok
    assert report.logs == 13
    assert report.signed_records == report.records
    for tenant in range(12):
        assert texts(tmp_path, f"t{tenant}") == [0, 1, 2, 3]


def test_a_closed_log_that_another_process_went_on_with_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "OPEN_LOGS", 1)
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"tenant": "acme", "number": 0})
        log.append_now({"tenant": "other", "number": 0})  # acme's log is closed now
        with AuditLog(tmp_path, "desk") as second:
            second.append_now({"tenant": "acme", "number": 1})
        log.append_now({"tenant": "acme", "number": 2})
    assert texts(tmp_path, "acme") == [0, 1, 2]
    assert len(names.tenant_names(tmp_path, "acme")) == 1
    assert verify(tmp_path).ok


def test_tenants_rotate_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "ROTATE_BYTES", 1000)
    with AuditLog(tmp_path, "desk") as log:
        for number in range(30):
            log.append_now({"tenant": "acme", "number": number})
    assert sorted(texts(tmp_path, "acme")) == list(range(30))
    files = sorted((tmp_path / "tenants" / "acme").glob("*.log"))
    assert len(files) > 3
    assert verify(tmp_path).ok
    files[0].unlink()
    files[0].with_suffix(".checkpoint").unlink()
    assert "is missing" in str(verify(tmp_path).problem)


def test_a_head_that_a_crash_kept_from_the_system_log_is_written_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"number": 0})
    with monkeypatch.context() as patch:
        patch.setattr(logs.Logs, "_write_heads", lambda self: None)  # as if killed between the two
        with AuditLog(tmp_path, "desk") as log:
            log.append_now({"tenant": "acme", "number": 1})
    [name] = names.tenant_names(tmp_path, "acme")
    public = notes.load_public_key(tmp_path)
    assert proofs.Commitments(tmp_path, public).newest(name) is None
    with AuditLog(tmp_path, "desk") as log:
        log.append_now({"number": 2})
    line = proofs.Commitments(tmp_path, public).newest(name)
    assert line is not None
    assert line.size == 2


def test_hundreds_of_tenants_at_once(tmp_path: Path) -> None:
    with AuditLog(tmp_path, "desk") as log:
        threads = [
            threading.Thread(
                target=lambda base=base: [log.append_now({"tenant": f"t{base + n}", "number": n}) for n in range(40)]
            )
            for base in range(0, 280, 40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report = verify(tmp_path)
    assert report.ok
    assert report.logs == 281
    assert len(texts(tmp_path)) == 280


def test_a_line_of_one_tenant_shows_nothing_of_another(tenants: Path) -> None:
    lines = [record["heads"] for record in records(tenants) if record["type"] == "log.heads" and record["heads"]]
    assert len(lines) >= 3
    for line in lines:
        assert len({name.split("/")[1] for name in line}) == 1


def test_another_systems_log_is_remembered_at_the_opening(tenants: Path) -> None:
    with AuditLog(tenants, "other") as log:
        log.append_now({"number": 5})
    [system] = [name for name in names.system_names(tenants) if name.startswith("desk")]
    (tenants / f"{system}.log").unlink()
    (tenants / f"{system}.checkpoint").unlink()
    assert f"{system}.log is missing" in str(verify(tenants).problem)


def test_records_are_read_in_order_of_time_over_all_logs(tenants: Path) -> None:
    at = [record["at"] for record in records(tenants)]
    assert at == sorted(at)
    assert json.dumps(next(iter(records(tenants, "gamma")))["tenant"]) == '"gamma"'
