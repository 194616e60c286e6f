"""Anchors: what is published there catches what nothing in the folder can."""

import datetime
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import ANY, Stubber
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentops.audit import (
    AuditLog,
    AuditReport,
    anchors,
    export,
    heads,
    notes,
    proofs,
    publishing,
    remote,
    verify,
    witness,
)
from agentops.errors import AuditError


def published(folder: Path, spec: str) -> heads.Anchor:
    place = anchors.open_anchor(spec)
    for head in heads.heads(folder, notes.load_public_key(folder)):
        publishing.publish(folder, place, head)
    return place


def against(folder: Path, place: heads.Anchor) -> AuditReport:
    return verify(folder, claims=anchors.claims(place, notes.load_public_key(folder)))


def git(*arguments: object) -> str:
    done = subprocess.run(["git", *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone with an upstream that refuses forced pushes."""
    git("init", "--quiet", "--bare", "--initial-branch=main", tmp_path / "remote.git")
    git("-C", tmp_path / "remote.git", "config", "receive.denyNonFastForwards", "true")
    git("clone", "--quiet", tmp_path / "remote.git", tmp_path / "clone")
    git("-C", tmp_path / "clone", "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--allow-empty", "-qm",
        "first")  # fmt: skip
    git("-C", tmp_path / "clone", "push", "--quiet", "--set-upstream", "origin", "main")
    return tmp_path / "clone"


@pytest.fixture(params=["file", "git", "witness"])
def spec(
    request: pytest.FixtureRequest, tmp_path: Path, tenants: Path, serving: Callable[[witness.Witness], str]
) -> str:
    """Each kind of anchor that can run here."""
    if request.param == "file":
        return f"file:{tmp_path}/heads"
    if request.param == "git":
        return f"git:{request.getfixturevalue('repository')}"
    made = witness.Witness(tmp_path / "witness", [notes.load_public_key(tenants)])
    return f"{serving(made)}#{made.verifier}"


def test_an_untouched_log_agrees_with_its_anchor(tenants: Path, spec: str) -> None:
    place = published(tenants, spec)
    assert against(tenants, place).ok
    with AuditLog(tenants, "desk") as log:
        log.append_now({"tenant": "acme", "number": 6})
    assert against(tenants, place).ok  # an older head of the same history
    published(tenants, spec)
    assert against(tenants, place).ok


def test_a_folder_put_back_to_an_earlier_state_is_caught(tenants: Path, tmp_path: Path, spec: str) -> None:
    old = tmp_path / "old"
    shutil.copytree(tenants, old)
    published(tenants, spec)
    with AuditLog(tenants, "desk") as log:
        log.append_now({"tenant": "acme", "number": 6})
    place = published(tenants, spec)
    assert verify(old).ok  # nothing in the folder can tell
    report = against(old, place)
    assert not report.ok
    assert "the log was cut" in str(report.problem)


def test_a_rewrite_with_the_stolen_key_is_caught(tenants: Path, spec: str, rewrite: Callable) -> None:
    place = published(tenants, spec)
    key = notes.load_or_create_key(tenants)
    [system] = tenants.glob("*.log")
    [acme] = (tenants / "tenants" / "acme").glob("*.log")
    rewrite(acme, f"tenants/acme/{acme.stem}", key, lambda body: body.replace(b'"number":3', b'"number":4'))
    public = notes.load_public_key(tenants)
    head = notes.open_note(acme.with_suffix(".checkpoint").read_bytes(), public)
    assert not verify(tenants).ok  # the system log still remembers: the thief rewrites it too
    line = proofs.Commitments(tenants, public).newest(f"tenants/acme/{acme.stem}")
    assert line is not None
    rewrite(system, system.stem, key, lambda body: body.replace(line.root.encode(), head.root.hex().encode()))
    assert verify(tenants).ok  # documented: nothing in the folder can tell
    report = against(tenants, place)
    assert not report.ok
    assert "the log was rewritten" in str(report.problem)


def test_a_new_key_and_a_new_history_are_caught(tenants: Path, spec: str) -> None:
    place = published(tenants, spec)
    shutil.rmtree(tenants)
    with AuditLog(tenants, "desk") as log:
        log.append_now({"tenant": "acme", "number": 0})
    assert verify(tenants).ok
    with pytest.raises(AuditError, match="the key was replaced"):
        against(tenants, place)


def test_another_statement_of_the_key_is_no_head(tenants: Path, tmp_path: Path) -> None:
    export.export(tenants, tmp_path / "out.jsonl")
    note = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])["end"]
    (tmp_path / "heads").write_text(json.dumps({"note": note}) + "\n")
    with pytest.raises(AuditError, match="keeps no head signed by this key"):
        anchors.claims(anchors.open_anchor(f"file:{tmp_path}/heads"), notes.load_public_key(tenants))


def test_an_anchor_that_does_not_answer_is_an_error(tenants: Path, tmp_path: Path) -> None:
    for spec in (f"file:{tmp_path}/nothing", f"git:{tmp_path}/nothing", "http://127.0.0.1:9"):
        with pytest.raises(AuditError, match="the anchor"):
            against(tenants, anchors.open_anchor(spec))


@pytest.mark.parametrize(
    "spec",
    ["", "file:relative", "git:x", "ftp://h/x", "s3://", "s3://b/p?days=0", "s3://b/p?days=x", "s3://b/p?other=1",
     "http://", "http://user:secret@h"],
)  # fmt: skip
def test_a_specification_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(AuditError, match="is not an anchor"):
        anchors.open_anchor(spec)


def test_a_torn_line_in_the_file_hides_no_other(tenants: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads"
    published(tenants, f"file:{path}")
    path.write_bytes(path.read_bytes() + b'{"note":"half')
    place = published(tenants, f"file:{path}")
    assert len(place.kept()) == 2
    assert against(tenants, place).ok


def test_a_head_removed_by_a_later_commit_still_counts(tenants: Path, repository: Path) -> None:
    place = published(tenants, f"git:{repository}")
    [file] = repository.glob("*.heads")
    file.write_text("")
    git("-C", repository, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qam", "clean")
    git("-C", repository, "push", "--quiet")
    assert len(place.kept()) == 1


AS = ("-c", "user.name=a", "-c", "user.email=a@b.example")


def test_a_merge_that_takes_the_side_without_a_head_hides_none(tenants: Path, repository: Path) -> None:
    before = git("-C", repository, "rev-parse", "HEAD").strip()
    place = published(tenants, f"git:{repository}")
    merge = git("-C", repository, *AS, "commit-tree", f"{before}^{{tree}}", "-p", before, "-p", "HEAD", "-m", "merge")
    git("-C", repository, "push", "--quiet", "origin", f"{merge.strip()}:main")  # not a forced one
    assert len(place.kept()) == 1


def test_attributes_that_call_the_file_binary_hide_no_head(tenants: Path, repository: Path) -> None:
    (repository / ".gitattributes").write_text("* binary\n")
    git("-C", repository, "add", ".gitattributes")
    git("-C", repository, *AS, "commit", "-qm", "attributes")
    assert len(published(tenants, f"git:{repository}").kept()) == 1


def test_the_repositorys_own_hooks_and_monitors_are_not_run(tenants: Path, repository: Path, tmp_path: Path) -> None:
    for name in ("prepare-commit-msg", "post-commit", "pre-push", "reference-transaction", "monitor"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n")
        hook.chmod(0o755)
    git("-C", repository, "config", "core.fsmonitor", repository / ".git" / "hooks" / "monitor")
    assert len(published(tenants, f"git:{repository}").kept()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_head_is_pushed_and_read_from_the_upstream(tenants: Path, repository: Path, tmp_path: Path) -> None:
    place = published(tenants, f"git:{repository}")
    assert "agentops-audit.heads" in git("-C", tmp_path / "remote.git", "ls-tree", "--name-only", "main")
    git("-C", repository, "reset", "--quiet", "--hard", "HEAD~1")  # what the machine's owner can do
    assert len(place.kept()) == 1


def test_a_witness_that_saw_a_fork_says_so_at_once(
    tenants: Path, tmp_path: Path, serving: Callable, rewrite: Callable
) -> None:
    public = notes.load_public_key(tenants)
    made = witness.Witness(tmp_path / "witness", [public])
    address = serving(made)
    published(tenants, address)
    [system] = tenants.glob("*.log")
    rewrite(
        system, system.stem, notes.load_or_create_key(tenants), lambda body: body.replace(b'"number":0', b'"number":5')
    )
    with pytest.raises(AuditError, match="rewritten"):
        published(tenants, address)
    assert publishing.status(tenants)[address].failures == 1
    assert against(tenants, anchors.open_anchor(address)).problem is not None


def test_a_witness_answer_without_its_cosignature_is_refused(tenants: Path, tmp_path: Path, serving: Callable) -> None:
    made = witness.Witness(tmp_path / "witness", [notes.load_public_key(tenants)])
    other = notes.verifier_key(notes.public_bytes(Ed25519PrivateKey.generate()), "agentops-witness", b"\x04")
    with pytest.raises(AuditError, match="did not sign"):
        published(tenants, f"{serving(made)}#{other}")


class Bucket:
    """An S3 client whose requests and answers botocore checks against its model of the API."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = boto3.client("s3", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x")
        self.stub = Stubber(self.client)
        monkeypatch.setattr(boto3, "client", lambda *_, **__: self.client)


def test_s3_objects_are_locked_and_every_version_counts(tenants: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(monkeypatch)
    [head] = heads.heads(tenants, notes.load_public_key(tenants))
    key = f"desk/{head.log}/{head.checkpoint.size:016d}-{head.checkpoint.root.hex()[:16]}.note"
    sent: dict[str, Any] = {}
    bucket.client.meta.events.register("provide-client-params.s3.PutObject", lambda params, **_: sent.update(params))
    bucket.stub.add_response(
        "put_object",
        {"ETag": '"x"'},
        {"Bucket": "worm", "Key": key, "Body": head.note, "ContentType": ANY, "ChecksumAlgorithm": "SHA256",
         "ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": ANY},
    )  # fmt: skip
    version = {"Key": key, "VersionId": "v1", "Size": len(head.note), "IsLatest": False}
    marker = {"Key": key, "VersionId": "v2", "IsLatest": True}
    asked = {"Bucket": "worm", "Prefix": "desk"}
    page = {"Versions": [version], "DeleteMarkers": [marker], "IsTruncated": True, "NextKeyMarker": key,
            "NextVersionIdMarker": "v1"}  # fmt: skip
    body = StreamingBody(io.BytesIO(head.note), len(head.note))
    bucket.stub.add_response("list_object_versions", page, asked)
    bucket.stub.add_response("get_object", {"Body": body}, {"Bucket": "worm", "Key": key, "VersionId": "v1"})
    bucket.stub.add_response(
        "list_object_versions", {"IsTruncated": False}, {**asked, "KeyMarker": key, "VersionIdMarker": "v1"}
    )
    with bucket.stub:
        place = anchors.open_anchor("s3://worm/desk?days=30")
        publishing.publish(tenants, place, head)
        assert against(tenants, place).ok
    kept = sent["ObjectLockRetainUntilDate"] - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29, hours=23) < kept <= datetime.timedelta(days=30)
    bucket.stub.assert_no_pending_responses()


def test_s3_errors_name_the_operation(tenants: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(monkeypatch)
    bucket.stub.add_client_error("put_object", "AccessDenied")
    with bucket.stub, pytest.raises(AuditError, match=r"put_object failed \(AccessDenied\)"):
        published(tenants, "s3://worm/desk")


def test_heads_are_published_by_themselves_and_at_most_once_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    with AuditLog(tmp_path / "audit", "desk", anchors=[f"file:{path}"]) as log:
        for number in range(20):
            log.append_now({"tenant": "acme", "number": number})
            log.checkpoint()
        deadline = time.monotonic() + 5
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(path.read_bytes().splitlines()) == 1
    place = anchors.open_anchor(f"file:{path}")
    assert len(place.kept()) == 2  # and the last one at closing
    assert against(tmp_path / "audit", place).ok
    state = publishing.status(tmp_path / "audit")[place.spec]
    assert (state.failures, state.error) == (0, "")
    assert state.size == notes.open_note(place.kept()[-1], notes.load_public_key(tmp_path / "audit")).size


def test_an_anchor_that_fails_blocks_no_call_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.WitnessAnchor, "_ask", lambda *_: time.sleep(0.5) or (503, b"busy"))
    spec = "http://127.0.0.1:9"
    with AuditLog(tmp_path, "desk", anchors=[spec]) as log:
        log.append_now({"tenant": "acme", "number": 0})
        log.checkpoint()
        began = time.monotonic()
        for number in range(10):
            log.append_now({"tenant": "acme", "number": number})
        assert time.monotonic() - began < 0.4
        deadline = time.monotonic() + 5
        while not publishing.status(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
    state = publishing.status(tmp_path)[spec]
    assert state.failures == 1  # not tried again at closing: a failing anchor does not slow every command
    assert "503" in state.error
    assert "was not anchored" in caplog.text
    assert verify(tmp_path).ok


def test_publishing_by_several_programs_loses_no_line(tenants: Path, tmp_path: Path) -> None:
    spec = f"file:{tmp_path}/heads"
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            for _ in range(10):
                published(tenants, spec)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(anchors.open_anchor(spec).kept()) == 40
