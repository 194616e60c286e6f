"""The witness: it signs what extends the head it knows, refuses forks and rollbacks, and forgets nothing."""

import base64
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.audit import cosign, merkle, notes, remote, witness
from agentops.errors import AuditError

KEY = Ed25519PrivateKey.generate()
PUBLIC = notes.public_bytes(KEY)
LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(20)]
FORK = [*LEAVES[:5], merkle.leaf_hash(b"other"), *LEAVES[6:]]


def note(
    size: int, leaves: list[bytes] = LEAVES, key: Ed25519PrivateKey = KEY, log: str = "desk-0123456789ab"
) -> bytes:
    return notes.sign(notes.Checkpoint(log, size, merkle.root(leaves[:size]), 1), key)


def asked(old: int, size: int, leaves: list[bytes] = LEAVES) -> bytes:
    proof = merkle.consistency_proof(leaves[:size], old) if 0 < old < size else []
    return remote.request_body(old, proof, note(size, leaves))


def refused(made: witness.Witness, body: bytes) -> tuple[int, str]:
    with pytest.raises(witness.Refusal) as refusal:
        made.add_checkpoint(body)
    return refusal.value.status, str(refusal.value)


@pytest.fixture
def made(tmp_path: Path):
    found = witness.Witness(tmp_path / "witness", [PUBLIC])
    yield found
    found.close()


def test_growth_is_signed_and_the_signature_can_be_checked(made: witness.Witness) -> None:
    size = 0
    for grown in (3, 3, 4, 8, 20):
        line = made.add_checkpoint(asked(size, grown))
        assert cosign.cosigned_at(note(grown), line, made.verifier) > 1_700_000_000
        with pytest.raises(AuditError, match="did not sign"):
            cosign.cosigned_at(note(grown - 1), line, made.verifier)
        size = grown
    [kept] = made.checkpoints()
    assert kept.encode() == note(20) + line


def test_forks_and_rollbacks_are_refused(made: witness.Witness) -> None:
    made.add_checkpoint(asked(0, 10))
    assert refused(made, asked(0, 10)) == (409, "10")
    assert refused(made, asked(0, 4)) == (409, "10")  # a rollback that says it is the first
    assert refused(made, asked(10, 4))[0] == 400  # a rollback that says what it is
    assert refused(made, remote.request_body(10, [], note(10, FORK))) == (409, "10")
    assert refused(made, asked(10, 20, FORK))[0] == 422
    assert refused(made, remote.request_body(10, [], note(20)))[0] == 422
    assert refused(made, asked(7, 20)) == (409, "10")
    made.add_checkpoint(asked(10, 20))


def test_only_known_keys_and_each_log_for_itself(made: witness.Witness) -> None:
    stranger = Ed25519PrivateKey.generate()
    assert refused(made, remote.request_body(0, [], note(3, key=stranger)))[0] == 403
    made.add_checkpoint(asked(0, 3))
    made.add_checkpoint(remote.request_body(0, [], note(2, FORK, log="desk-ffffffffffff")))
    assert len(made.checkpoints()) == 2


ALMOST = st.binary(max_size=60).map(lambda data: b"old 3\n" + data + b"\n\n" + note(5))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=400) | ALMOST)
def test_no_request_makes_it_fail_or_forget(made: witness.Witness, body: bytes) -> None:
    with pytest.raises(witness.Refusal) as refusal:
        made.add_checkpoint(body)
    assert 400 <= refusal.value.status < 500
    assert made.checkpoints() == []


def test_it_remembers_over_restarts_and_one_process_is_the_witness(tmp_path: Path) -> None:
    first = witness.Witness(tmp_path, [PUBLIC])
    first.add_checkpoint(asked(0, 10))
    verifier = first.verifier
    with pytest.raises(AuditError, match="another process"):
        witness.Witness(tmp_path, [PUBLIC])
    first.close()
    second = witness.Witness(tmp_path, [PUBLIC])
    assert second.verifier == verifier
    assert refused(second, asked(0, 4)) == (409, "10")
    second.close()


def test_a_damaged_memory_is_no_empty_memory(tmp_path: Path) -> None:
    first = witness.Witness(tmp_path, [PUBLIC])
    first.add_checkpoint(asked(0, 10))
    first.close()
    [path] = (tmp_path / "heads").glob("*.note")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(AuditError, match="damaged"):
        witness.Witness(tmp_path, [PUBLIC])
    with pytest.raises(AuditError, match="at least one log"):
        witness.Witness(tmp_path, [])


def test_over_http(made: witness.Witness, serving: Callable[[witness.Witness], str], tmp_path: Path) -> None:
    address = serving(witness.Witness(tmp_path / "served", [PUBLIC]))
    assert httpx.post(f"{address}/add-checkpoint", content=asked(0, 3)).status_code == 200
    conflict = httpx.post(f"{address}/add-checkpoint", content=asked(0, 3))
    assert (conflict.status_code, conflict.text) == (409, "3\n")
    assert conflict.headers["content-type"] == "text/x.tlog.size"
    assert httpx.post(f"{address}/add-checkpoint", content=b"x" * (witness.MAX_BODY + 1)).status_code == 413
    assert httpx.post(f"{address}/other", content=b"").status_code == 404
    assert httpx.get(f"{address}/nothing").status_code == 404
    assert len(httpx.get(f"{address}/checkpoints").json()) == 1
    name, public = notes.parse_verifier_key(httpx.get(f"{address}/key").text.strip(), cosign.ALGORITHM)
    assert name == "agentops-witness"
    assert len(public) == 32


def test_slow_clients_take_a_bounded_number_of_places_for_a_bounded_time(
    serving: Callable[[witness.Witness], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "_AT_ONCE", 4)
    monkeypatch.setattr(witness, "_WHOLE_SECONDS", 1.0)
    address = serving(witness.Witness(tmp_path / "served", [PUBLIC]))
    before = threading.active_count()
    host, port = address.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    began = time.monotonic()
    answered = []
    while 200 not in answered and time.monotonic() < began + 10:
        for connection in slow:  # never quiet for long
            with suppress(OSError):
                connection.send(b"X")
        assert threading.active_count() <= before + 2 * 5
        answered.append(httpx.get(f"{address}/key").status_code)
        time.sleep(0.1)
    for connection in slow:
        connection.close()
    assert answered[0] == 503
    assert answered[-1] == 200


def test_a_cosignature_is_what_c2sp_describes(made: witness.Witness) -> None:
    line = made.add_checkpoint(asked(0, 3)).decode()
    dash, name, encoded = line.removesuffix("\n").split(" ")
    raw = base64.b64decode(encoded)
    assert (dash, name, len(raw)) == ("—", "agentops-witness", 4 + 8 + 64)
    signed = b"cosignature/v1\ntime %d\n" % int.from_bytes(raw[4:12], "big") + note(3).split(b"\n\n")[0] + b"\n"
    _, public = notes.parse_verifier_key(made.verifier, cosign.ALGORITHM)
    cosign.Ed25519PublicKey.from_public_bytes(public).verify(raw[12:], signed)


def test_kill_9_between_answers_forgets_no_head_that_was_answered_for(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(notes.verifier_key(PUBLIC) + "\n")
    size = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "agentops.cli", "audit", "witness", "--port", "0", "--home", str(tmp_path / "w"),
             "--key", str(tmp_path / "key.pub")],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        address = process.stdout.readline().split(": ")[1].split("#")[0]
        for _ in range(3):
            answer = httpx.post(f"{address}/add-checkpoint", content=asked(size, size + 2))
            assert answer.status_code == 200, answer.text
            size += 2
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
    last = witness.Witness(tmp_path / "w", [PUBLIC])
    assert refused(last, asked(size - 2, size)) == (409, str(size))
    last.close()
