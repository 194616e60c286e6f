"""`agentops audit …` as a user runs it: exit codes, one JSON value, readable lines, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentops.audit import AuditLog, notes, witness


@pytest.fixture
def desk(copy: Path) -> Path:
    """A project with records of two tenants and an anchor."""
    (copy / "pyproject.toml").write_text(f'[tool.agentops]\nservice = "desk"\naudit_anchors = ["file:{copy}/heads"]\n')
    with AuditLog(copy / ".agentops" / "audit", "desk", anchors=[f"file:{copy}/heads"]) as log:
        for number in range(3):
            for tenant in ("acme", "beta"):
                log.append_now({"type": "tool.intent", "tenant": tenant, "number": number, "tool": "get_order"})
    return copy


def value(ran) -> dict | list:
    return json.loads(ran.out)


def acme(desk: Path) -> Path:
    [path] = (desk / ".agentops" / "audit" / "tenants" / "acme").glob("*.log")
    return path


def test_verify_compares_with_the_anchors(agentops, desk: Path, tmp_path: Path) -> None:
    ran = agentops("audit", "verify", "--project", desk)
    assert ran.code == 0, ran.err
    assert "the log is whole" in ran.out
    assert "heads compared: 1" in ran.out
    found = value(agentops("audit", "verify", "--project", desk, "--json"))
    assert found["ok"] is True
    assert found["anchors"][0]["heads"] == 1
    key = tmp_path / "trusted.pub"
    key.write_bytes((desk / ".agentops" / "audit" / "key.pub").read_bytes())
    assert agentops("audit", "verify", "--project", desk, "--key", key).code == 0


def test_verify_fails_on_tampering_and_on_an_anchor_that_is_gone(agentops, desk: Path) -> None:
    path = acme(desk)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    ran = agentops("audit", "verify", "--project", desk)
    assert ran.code == 1
    assert "THE LOG WAS CHANGED OR DAMAGED" in ran.out
    assert "tenants/acme" in ran.out
    data[200] ^= 1
    path.write_bytes(data)
    (desk / "heads").unlink()
    ran = agentops("audit", "verify", "--project", desk, "--json")
    assert ran.code == 1
    assert value(ran)["ok"] is False
    assert "was not checked against every anchor" in ran.err
    assert "the log is whole as far as it was checked" in agentops("audit", "verify", "--project", desk).out


def test_a_rollback_of_the_whole_folder_is_caught_by_the_anchor(agentops, desk: Path) -> None:
    audit = desk / ".agentops" / "audit"
    old = {path: path.read_bytes() for path in audit.rglob("*") if path.suffix in (".log", ".checkpoint")}
    with AuditLog(audit, "desk") as log:
        log.append_now({"type": "tool.intent", "tenant": "acme", "number": 9})
    assert agentops("audit", "anchor", "--project", desk).code == 0
    for path, content in old.items():
        path.write_bytes(content)
    ran = agentops("audit", "verify", "--project", desk)
    assert ran.code == 1
    assert "the log was cut" in ran.out


def test_query_finds_one_tenants_records(agentops, desk: Path) -> None:
    found = value(agentops("audit", "query", "--project", desk, "--tenant", "beta", "--kind", "tool.intent", "--json"))
    assert [(record["tenant"], record["number"]) for record in found] == [("beta", 0), ("beta", 1), ("beta", 2)]
    assert "get_order" in agentops("audit", "query", "--project", desk).out


def test_a_record_is_proved_and_the_proof_checked_elsewhere(agentops, desk: Path, tmp_path: Path) -> None:
    name = f"tenants/acme/{acme(desk).stem}"
    proof, key = tmp_path / "proof.json", desk / ".agentops" / "audit" / "key.pub"
    ran = agentops("audit", "prove", name, 2, "--out", proof, "--project", desk)
    assert ran.code == 0, ran.err
    assert "one of the 4 signed ones" in ran.out
    checked = value(agentops("audit", "verify-export", proof, "--key", key, "--json"))
    assert checked["record"]["number"] == 1
    proof.write_text(proof.read_text().replace('"index": 2', '"index": 1'))
    assert agentops("audit", "verify-export", proof, "--key", key).code == 1
    assert value(agentops("audit", "prove", name, 2, "--project", desk))["index"] == 2
    assert agentops("audit", "prove", name, 99, "--project", desk).code == 1
    assert agentops("audit", "prove", "nonsense", 1, "--project", desk).code == 1


def test_an_export_is_one_file_that_proves_itself(agentops, desk: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "acme.jsonl", desk / ".agentops" / "audit" / "key.pub"
    ran = agentops("audit", "export", "--tenant", "acme", "--since", "24h", "--out", out, "--project", desk, "--json")
    assert ran.code == 0, ran.err
    assert value(ran)["records"] == 4
    ran = agentops("audit", "verify-export", out, "--key", key)
    assert ran.code == 0, ran.err
    assert "every record is as it was signed" in ran.out
    out.write_bytes(out.read_bytes().replace(b'"number":1', b'"number":2'))
    ran = agentops("audit", "verify-export", out, "--key", key)
    assert ran.code == 1
    assert "line" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["export", "--out", "x", "--since", "yesterday"], 2, "is not a time"),
        (["export", "--out", "heads"], 1, "exists"),
        (["export", "--out", "x", "--tenant", "nobody"], 1, "nothing was exported"),
        (["verify", "--anchor", "nonsense"], 1, "is not an anchor"),
        (["anchor", "--anchor", "ftp://x"], 1, "is not an anchor"),
        (["verify", "--key", "missing.pub"], 1, "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(agentops, desk: Path, monkeypatch, arguments: list, code: int, said: str) -> None:
    monkeypatch.chdir(desk)
    ran = agentops("audit", *arguments)
    assert ran.code == code
    assert said in ran.err


def test_anchor_publishes_what_is_not_there_yet(
    agentops, desk: Path, tmp_path: Path, serving: Callable[[witness.Witness], str]
) -> None:
    address = serving(witness.Witness(tmp_path / "w", [notes.load_public_key(desk / ".agentops" / "audit")]))
    rows = value(agentops("audit", "anchor", "--anchor", address, "--project", desk, "--json"))
    assert [(row["published"], row["kept"], row["problem"]) for row in rows] == [(0, 1, ""), (1, 0, "")]
    ran = agentops("audit", "verify", "--anchor", address, "--project", desk)
    assert ran.code == 0, ran.err
    ran = agentops("audit", "anchor", "--anchor", "http://127.0.0.1:9", "--project", desk)
    assert ran.code == 1
    assert "does not answer" in ran.out


@pytest.mark.parametrize("spec", ["nonsense", "file:relative", "http://user:secret@host"])
def test_a_configured_anchor_that_is_none_is_a_mistake(agentops, copy: Path, spec: str) -> None:
    (copy / "pyproject.toml").write_text(f'[tool.agentops]\nservice = "desk"\naudit_anchors = ["{spec}"]\n')
    ran = agentops("audit", "verify", "--project", copy)
    assert ran.code == 2
    assert "is not an anchor" in ran.err
    assert "secret" not in ran.err.replace(spec, "")


def test_doctor_shows_whether_anchors_work(agentops, desk: Path) -> None:
    def anchors() -> list[tuple[str, str]]:
        found = json.loads(agentops("doctor", "--project", desk, "--json").out)
        return [(line["status"], line["detail"]) for line in found if line["what"].startswith("audit anchor")]

    [(status, detail)] = anchors()
    assert status == "ok"
    assert f"file:{desk}/heads" in detail
    (desk / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\naudit_anchors = ["http://127.0.0.1:9"]\n')
    assert anchors()[0][0] == "info"
    agentops("audit", "anchor", "--project", desk)
    [(status, detail)] = anchors()
    assert status == "fail"
    assert "does not answer" in detail


def test_a_witness_at_an_address_that_is_not_here_says_so(agentops, desk: Path, tmp_path: Path) -> None:
    key = desk / ".agentops" / "audit" / "key.pub"
    ran = agentops("audit", "witness", "--key", key, "--home", tmp_path / "w", "--host", "192.0.2.1", "--port", 0)
    assert ran.code == 2
    assert "the address '192.0.2.1', port 0 cannot be used" in ran.err
