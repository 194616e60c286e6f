"""What an isolated tool can reach: only what its Isolation names, through the broker, recorded."""

import asyncio
import base64
import datetime
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentops.act.sandbox import egress as egress_module
from agentops.act.sandbox.broker import _blotted
from agentops.act.sandbox.egress import Egress, Response, checked_headers, destination
from agentops.act.sandbox.secrets import Secret
from agentops.errors import AuditError, SandboxError

VALUE, RAW = "s3cr3t-of-the-shop-0001", "raw-s3cr3t-of-the-shop-2"


def url(server: Any, path: str) -> str:
    return f"http://127.0.0.1:{server.port}/{path}"


def test_a_page_comes_back_and_is_recorded_without_its_path(lab: Any, server: Any) -> None:
    answer = lab.go("fetch", url=url(server, "ok?customer=ann"))
    assert (answer["status"], answer["body"]) == (200, "ok")
    (record,) = lab.records
    assert record["type"] == "tool.egress"
    assert (record["action"], record["host"], record["port"]) == ("fetch", "127.0.0.1", server.port)
    assert (record["status"], record["outcome"], record["received"]) == (200, "ok", 2)
    assert (record["tenant"], record["tool"], record["run"], record["call"]) == ("acme", "fetch", "run-1", "c-1")
    assert "ann" not in str(record)


def test_a_body_and_headers_go_along_and_cookies_do_not_come_back(lab: Any, server: Any) -> None:
    lab.go("fetch", url=url(server, "ok"), method="POST", body="hello", headers={"X-Order": "7"})
    method, _, headers = server.seen[-1]
    assert (method, headers["X-Order"], headers["Content-Length"]) == ("POST", "7", "5")
    assert headers["Host"] == f"127.0.0.1:{server.port}"
    assert "set-cookie" not in lab.go("fetch", url=url(server, "echo"))["headers"]


REFUSED = [
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:1/",
    "http://localhost:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://127.1:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://[::ffff:127.0.0.1]:1/",
    "http://[::1]:PORT/",
    "http://127.0.0.1:0PORT/",
    "http://api.shop.example:443@127.0.0.1:PORT/",
    "http://127.0.0.1:PORT@evil.example/",
    "http://127.0.0.1:PORT\\@evil.example/",
    "http://127.0.0.1:PORT#@evil.example/",
    "http://evil.example:PORT/",
    "http://api.shop.example.:443/",
    "https://api.shop.example.evil.example/",
    "http://127.0.0.1:PORT/\r\nX: y",
    "http://127.0.0.1:PORT/ HTTP/1.1",
    "http://127.0.0.1:PORT/\u2028",
    "http://１27.0.0.1:PORT/",
    "gopher://127.0.0.1:PORT/",
    "file:///etc/passwd",
    "//127.0.0.1:PORT/",
    "",
    "http://127.0.0.1:PORT/" + "a" * 20_000,
]


@pytest.mark.parametrize("asked", REFUSED)
def test_another_destination_or_spelling_is_refused(lab: Any, server: Any, asked: str) -> None:
    before = len(server.seen)
    allowed = "#@" in asked  # a fragment is dropped: the host before it is the declared one
    try:
        answer = lab.go("fetch", url=asked.replace("PORT", str(server.port)))
        assert allowed, answer
    except (SandboxError, ConnectionError):
        assert not allowed
        assert len(server.seen) == before
        assert lab.records[-1]["outcome"] == "denied"
        assert "meta-data" not in str(lab.records)


def test_a_redirect_is_not_followed(lab: Any, server: Any) -> None:
    before = len(server.seen)
    answer = lab.go("fetch", url=url(server, "redirect"))
    assert answer["status"] == 302
    assert len(server.seen) == before + 1
    with pytest.raises(SandboxError, match="hosts"):
        lab.go("fetch", url=answer["headers"]["location"])


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"X-A": "b\r\nEvil: c"}, "one line"),
        ({"X-A\r\nEvil": "b"}, "one line"),
        ({"X-A: b": "c"}, "one line"),
        ({"": "c"}, "one line"),
        ({"Host": "evil.example"}, "broker"),
        ({"transfer-encoding": "chunked"}, "broker"),
        ({"Content-Length": "0"}, "broker"),
        ({"X-A": "b", "x-a": "c"}, "twice"),
        ({f"X-{n}": "b" for n in range(100)}, "at most"),
        ({"X-A": "b" * 20_000}, "at most"),
    ],
)
def test_headers_that_change_the_request_are_refused(headers: dict[str, str], text: str) -> None:
    with pytest.raises(SandboxError, match=text):
        checked_headers(headers)


def test_headers_and_methods_are_checked_for_a_process_that_lies(lab: Any, server: Any) -> None:
    for given in (
        {"headers": {"X-A": 5}},
        {"method": "CONNECT"},
        {"method": "GET\r\n"},
    ):
        with pytest.raises((SandboxError, RuntimeError)):
            lab.go("fetch", url=url(server, "ok"), **given)


@pytest.mark.parametrize(("path", "text"), [("bomb", "compressed"), ("big", "more than")])
def test_answers_are_bounded(lab: Any, server: Any, path: str, text: str) -> None:
    with pytest.raises(SandboxError, match=text):
        lab.go("fetch", url=url(server, path))


def test_a_header_without_end_is_no_answer(lab: Any, server: Any) -> None:
    with pytest.raises(ConnectionError):
        lab.go("fetch", url=url(server, "header"))


def test_a_server_that_drips_is_left_in_time(lab: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "FETCH_S", 0.5)
    started = time.monotonic()
    with pytest.raises(ConnectionError):
        lab.go("fetch", url=url(server, "slow"))
    assert time.monotonic() - started < 3
    assert lab.records[-1]["outcome"] == "unreachable"


# ---------------------------------------------------------------- secrets


def test_a_secret_is_injected_where_the_tool_does_not_see_it(lab: Any, server: Any) -> None:
    answer = lab.go("fetch", url=url(server, "echo"), secret="shop")
    assert server.seen[-1][2]["Authorization"] == f"Bearer {VALUE}"
    assert VALUE not in str(answer), "a server that echoes it does not give it away"
    assert "***" in answer["body"]
    assert lab.records[-1]["secret"] == "shop"
    assert VALUE not in str(lab.records)


def test_a_secret_goes_to_its_hosts_only(lab: Any, server: Any) -> None:
    before = len(server.seen)
    for name, text in (("raw", "does not go to"), ("other", "not in the tool's"), ("", "")):
        if name:
            with pytest.raises(SandboxError, match=text):
                lab.go("fetch", url=url(server, "ok"), secret=name)
    with pytest.raises(SandboxError, match="leave it out"):
        lab.go("fetch", url=url(server, "ok"), secret="shop", headers={"authorization": "mine"})
    with pytest.raises(SandboxError, match="plain text"):
        lab.go("fetch", url="http://api.shop.example:443/", secret="shop")
    assert len(server.seen) == before


def test_a_raw_secret_needs_both_sides_and_its_worker_is_not_used_again(lab: Any) -> None:
    context = lab.context("teller")
    first = lab.go("echo", text="a", context=context)["process"]
    with pytest.raises(SandboxError, match="not readable"):
        lab.go("secret", name="shop", context=context)
    assert lab.go("echo", text="a", context=context)["process"] == first
    assert lab.go("secret", name="raw", context=context) == RAW[::-1]
    assert lab.go("echo", text="a", context=context)["process"] != first
    assert [record["outcome"] for record in lab.records if record["action"] == "secret"] == ["denied", "ok"]


@pytest.mark.parametrize("show", ["value", "refusal"])
def test_a_told_secret_does_not_come_back_as_an_answer(lab: Any, show: str) -> None:
    with pytest.raises(SandboxError, match="returned a secret") as caught:
        lab.go("secret", name="raw", show=show)
    assert RAW not in str(caught.value)


# ---------------------------------------------------------------- connections


def test_a_connection_works_and_both_ends_are_recorded(lab: Any, server: Any) -> None:
    assert lab.go("connect", host="127.0.0.1", port=server.port).endswith("ok")
    opened, closed = lab.records
    assert (opened["action"], closed["action"]) == ("connect", "disconnect")
    assert closed["sent"] == len(b"GET /ok HTTP/1.0\r\n\r\n")
    assert closed["received"] > 50


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1.", "::1", "127.1", "169.254.169.254", "a]b", "", "x\ny"])
def test_another_destination_is_not_connected(lab: Any, server: Any, host: str) -> None:
    with pytest.raises(SandboxError):
        lab.go("connect", host=host, port=server.port)
    assert [record["outcome"] for record in lab.records] == ["denied"]


@pytest.mark.parametrize("port", [0, -1, 65536, 2**40])
def test_ports_are_checked(lab: Any, port: int) -> None:
    with pytest.raises(SandboxError):
        lab.go("connect", host="127.0.0.1", port=port)


def test_a_connection_ends_with_its_call_whoever_kept_it(lab: Any, server: Any) -> None:
    context = lab.context("keeper")
    assert lab.go("connect", host="127.0.0.1", port=server.port, keep=True, context=context) == "kept"
    assert lab.records[-1]["action"] == "disconnect"
    assert lab.go("kept", context=context) in ("", "BrokenPipeError", "ConnectionResetError")


def test_a_process_that_still_waits_for_answers_serves_no_other_call(lab: Any) -> None:
    context = lab.context("hurried")
    process = lab.go("hurried", context=context)
    assert [record["outcome"] for record in lab.records] == ["cancelled"] * 3
    assert lab.go("echo", text="x", context=context)["process"] != process


def test_connections_are_closed_here_too_when_a_call_is_cut_off(lab: Any, server: Any) -> None:
    lab.go("echo", text="warm")
    before = len(os.listdir("/proc/self/fd"))
    for wait in (0.0, 0.001, 0.003, 0.01, 0.03):
        with pytest.raises(TimeoutError):
            lab.go("many", timeout_s=wait, count=64)
        lab.loop.run_until_complete(asyncio.sleep(0.1))
    lab.workers.close()
    lab.loop.run_until_complete(asyncio.sleep(0.2))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_connection_cannot_be_pointed_elsewhere(lab: Any) -> None:
    reached = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(1.0)

        def wait() -> None:
            try:
                listener.accept()[0].close()
                reached.set()
            except OSError:
                pass

        thread = threading.Thread(target=wait)
        thread.start()
        assert lab.go("reaim", port=listener.getsockname()[1]) != "connected"
        thread.join()
    assert not reached.is_set()


def test_connects_are_bounded_in_one_call(lab: Any) -> None:
    answer = lab.go("many", count=1000)
    assert answer["ok"] == 64
    assert "64 times" in answer["last"]
    assert len([record for record in lab.records if record["action"] == "connect"]) == 64


def test_what_cannot_be_recorded_is_not_done(lab: Any, server: Any) -> None:
    def fail(record: dict[str, Any]) -> None:
        raise AuditError("the log is closed")

    lab.record = fail
    with pytest.raises(SandboxError, match="recorded"):
        lab.go("connect", host="127.0.0.1", port=server.port)
    with pytest.raises(SandboxError, match="recorded"):
        lab.go("secret", name="raw")
    with pytest.raises(SandboxError, match="recorded"):
        lab.go("fetch", url=url(server, "ok"))


# ---------------------------------------------------------------- names and addresses


class Answers:
    """A resolver that changes its mind."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def addressed(egress: Egress, text: str, pins: dict[str, str] | None = None) -> str:
    return asyncio.run(egress.address(destination(text), pins or {}))


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["::1"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        ["2002:a00:1::"],
        ["fe80::1"],
        ["fd00:ec2::254"],
        ["224.0.0.1"],
        ["0.0.0.0"],
        ["93.184.216.34", "10.0.0.1"],
        ["not an address"],
        [],
    ],
)
def test_a_name_with_an_address_that_is_not_public_is_refused(answer: list[str]) -> None:
    with pytest.raises(SandboxError):
        addressed(Egress(Answers(answer)), "api.shop.example:443")


def test_a_name_is_resolved_once_and_a_pin_is_stronger() -> None:
    egress = Egress(Answers(["93.184.216.34"], ["127.0.0.1"]))
    assert addressed(egress, "api.shop.example:443") == "93.184.216.34"
    with pytest.raises(SandboxError, match="not public"):
        addressed(egress, "api.shop.example:443")
    assert addressed(egress, "api.shop.example:443", {"api.shop.example:443": "93.184.216.35"}) == "93.184.216.35"
    with pytest.raises(SandboxError, match="not public"):
        addressed(egress, "api.shop.example:443", {"api.shop.example:443": "10.0.0.1"})


def test_a_deployments_own_networks_are_reached_by_name_and_nothing_beside_them() -> None:
    private = (ipaddress.ip_network("10.20.0.0/16"),)
    assert addressed(Egress(Answers(["10.20.0.7"]), private), "db.corp.example:5432") == "10.20.0.7"
    for answer in (["10.21.0.7"], ["10.20.0.7", "169.254.169.254"], ["::ffff:10.21.0.7"]):
        with pytest.raises(SandboxError, match="private_networks"):
            addressed(Egress(Answers(answer), private), "db.corp.example:5432")


def test_a_resolver_that_hangs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "RESOLVE_S", 0.1)

    async def hang(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return []

    with pytest.raises(SandboxError, match="no address"):
        addressed(Egress(hang), "api.shop.example:443")


def test_an_address_that_was_declared_is_taken_as_it_is() -> None:
    assert addressed(Egress(Answers([])), "127.0.0.1:8080") == "127.0.0.1"
    assert addressed(Egress(Answers([])), "[::1]:8080") == "::1"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "api.shop.example",
            "api.shop.example:",
            "api.shop.example:0443",
            "api.shop.example:99999",
            "API.shop.example:443",
        ),
        *("api.shop.example.:443", "https://api.shop.example:443", "u@api.shop.example:443", "*.shop.example:443"),
        *("127.1:80", "0x7f.0.0.1:80", "[::0001]:80", "::1:80", "[::ffff:1.2.3.4]:80", "a:80/", "a:80?", "", ":80"),
    ],
)
def test_a_destination_has_one_spelling(text: str) -> None:
    with pytest.raises(SandboxError, match="not acceptable"):
        destination(text)


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, list[str | None]]]:
    """A TLS server for api.shop.example on loopback: port, certificate, and the names that clients asked for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api.shop.example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("api.shop.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    names: list[str | None] = []
    context.sni_callback = lambda _, asked, __: names.append(asked)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as end:
                    text = end.recv(65536).decode()
                    host = next(line for line in text.split("\r\n") if line.startswith("Host:"))
                    body = f"{host}".encode()
                    end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], folder / "cert.pem", names
    listener.close()


def fetched(port: int, host: str) -> Any:
    from agentops.parsers import url as parsed

    asked = parsed(f"https://{host}:{port}/x?y=1")
    return asyncio.run(Egress().fetch("GET", asked, "127.0.0.1", {}, b""))


def test_tls_is_verified_for_the_name_at_the_pinned_address(tls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port, certificate, names = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    egress_module._tls.cache_clear()
    try:
        answer = fetched(port, "api.shop.example")
        assert answer.body == f"Host: api.shop.example:{port}".encode()
        assert names[-1] == "api.shop.example"
        with pytest.raises(ConnectionError):
            fetched(port, "other.example")
    finally:
        egress_module._tls.cache_clear()


def test_an_ipv6_address_is_reached_and_named_in_brackets() -> None:
    from agentops.parsers import url as parsed

    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    heads: list[str] = []

    def serve() -> None:
        with listener, listener.accept()[0] as end:
            heads.append(end.recv(65536).decode())
            end.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    asked = parsed(f"http://[::1]:{port}/x")
    assert asyncio.run(Egress().fetch("GET", asked, "::1", {}, b"")).status == 204
    thread.join()
    assert f"host: [::1]:{port}" in heads[0].lower()


def test_an_unknown_authority_is_refused(tls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    egress_module._tls.cache_clear()
    try:
        with pytest.raises(ConnectionError):
            fetched(tls[0], "api.shop.example")
    finally:
        egress_module._tls.cache_clear()


def test_base64_credentials_are_blotted_out_too() -> None:
    encoded = base64.b64encode(b"shop:pass-word").decode()
    secret = Secret("basic", "X", frozenset(), format="Basic {}", value=encoded)
    answer = _blotted(Response(200, {"x": f"Basic {encoded}"}, f"[{encoded}]".encode()), secret)
    assert encoded not in str(answer)
