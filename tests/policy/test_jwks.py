"""Public keys of an issuer: which ones count, from a file and over HTTP."""

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from idp_world import KEYS, jwk, jwks

from agentops.errors import PolicyError
from agentops.policy import jwks as keysets
from agentops.policy.jwks import (
    ALGORITHMS,
    MAX_AGE_S,
    MAX_BYTES,
    MAX_STALE_S,
    RETRY_S,
    FetchedKeys,
    parse_keys,
    read_keys,
)

URL = "https://idp.example.com/keys"


def as_set(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_a_key_serves_the_algorithms_that_fit_it_and_are_allowed() -> None:
    found = parse_keys(jwks().encode(), ALGORITHMS)
    assert {algorithm for kid, algorithm in found if kid == "RS256"} == set(ALGORITHMS[:6])
    assert {algorithm for kid, algorithm in found if kid != "RS256"} == {"ES256", "ES384", "EdDSA"}
    assert set(parse_keys(jwks().encode(), ("ES256",))) == {("ES256", "ES256")}
    assert set(parse_keys(as_set(jwk("RS256", alg="PS256")), ALGORITHMS)) == {("RS256", "PS256")}


def test_what_is_no_usable_key_is_left_out() -> None:
    small = jwt.get_algorithm_by_name("RS256").to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    odd = [
        jwk("RS256", "encryption", use="enc"),
        {**small, "kid": "small"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "off the curve"},
        {"kty": "RSA", "kid": "empty"},
        jwk("ES256", "other", crv="P-384"),
        jwk("ES256", alg="HS256"),
        {**jwk("EdDSA"), "kid": ["a"]},
        {"kty": ["RSA"]},
        "text",
        7,
    ]
    assert set(parse_keys(as_set(*odd, jwk("ES256", "good")), ALGORITHMS)) == {("good", "ES256")}
    with pytest.raises(PolicyError, match="no public key for"):
        parse_keys(as_set(*odd), ALGORITHMS)


def test_a_fetched_private_key_is_never_held() -> None:
    private = jwt.get_algorithm_by_name("ES256").to_jwk(KEYS["ES256"], as_dict=True)
    [key] = parse_keys(as_set({**private, "kid": "a"}), ("ES256",)).values()
    assert not hasattr(key.key, "private_numbers")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": null}', b"\xff", b'{"keys": []}', as_set(*[{}] * 51), b"[" * 9999],
)
def test_what_is_no_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(PolicyError, match="key set"):
        parse_keys(data, ALGORITHMS)
    with pytest.raises(PolicyError, match="bytes"):
        parse_keys(b" " * (MAX_BYTES + 1), ALGORITHMS)


def test_a_secret_key_in_a_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "corp.json"
    with pytest.raises(PolicyError, match=r"'corp.json' is not in"):
        read_keys(file, ALGORITHMS)
    private = jwt.get_algorithm_by_name("ES256").to_jwk(KEYS["ES256"], as_dict=True)
    for secret in (private, {"kty": "oct", "k": "c2VjcmV0"}):
        file.write_bytes(as_set(jwk("ES256"), secret))
        with pytest.raises(PolicyError, match="holds a secret key") as caught:
            read_keys(file, ALGORITHMS)
        assert "c2VjcmV0" not in str(caught.value)


class Provider(httpx.AsyncBaseTransport):
    """Answers with `body`, or fails; counts."""

    def __init__(self, body: str) -> None:
        self.body, self.status, self.fails, self.fetches = body, 200, False, 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.fetches += 1
        await asyncio.sleep(0.01)
        if self.fails:
            raise httpx.ConnectError("refused")
        return httpx.Response(
            self.status, stream=httpx.ByteStream(self.body.encode()), headers={"Location": "https://evil.test/keys"}
        )


class Fetching:
    """Fetched keys of a provider, and the time they see."""

    def __init__(self, *algorithms: str) -> None:
        self.now = 0.0
        self.provider = Provider(jwks(*algorithms))
        self.keys = FetchedKeys(URL, ALGORITHMS, lambda: self.now, self.provider)

    async def has(self, kid: str) -> bool:
        return await self.keys.find(kid, kid) is not None


def story(told: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(told(), 20))


def test_a_set_is_fetched_once_and_again_when_it_is_old() -> None:
    async def told() -> None:
        it = Fetching()
        assert await it.has("ES256")
        it.now = MAX_AGE_S - 1
        assert await it.has("RS256")
        assert it.provider.fetches == 1
        it.now += 2
        it.provider.body = jwks("ES256")
        assert not await it.has("RS256")  # taken back by the issuer
        assert await it.has("ES256")
        assert it.provider.fetches == 2

    story(told)


def test_an_unknown_key_id_causes_one_fetch_in_30_seconds() -> None:
    async def told() -> None:
        it = Fetching("ES256")
        assert await it.has("ES256")
        it.provider.body = jwks("ES256", "EdDSA")
        assert not await it.has("EdDSA")  # asked 0 s ago: not yet
        assert not any(await asyncio.gather(*(it.keys.find(f"guess-{number}", "ES256") for number in range(200))))
        assert it.provider.fetches == 1
        it.now += RETRY_S
        found = await asyncio.gather(*(it.has("EdDSA") for _ in range(50)))
        assert all(found)  # those who waited for the fetch have the key too
        assert it.provider.fetches == 2

    story(told)


def test_old_keys_stay_for_a_day_when_the_issuer_cannot_be_reached() -> None:
    async def told() -> None:
        it = Fetching()
        assert await it.has("ES256")
        it.provider.fails = True
        for status, body in ((200, ""), (500, jwks()), (302, jwks()), (200, "{}"), (200, "x" * (MAX_BYTES + 1))):
            it.now += MAX_AGE_S
            it.provider.status, it.provider.body = status, body
            assert await it.has("ES256")
            it.provider.fails = False
        assert it.provider.fetches == 6
        it.now = MAX_STALE_S
        assert not await it.has("ES256")
        it.now += RETRY_S
        it.provider.status, it.provider.body = 200, jwks()
        assert await it.has("ES256")

    story(told)


def test_nobody_waits_for_a_refresh_but_the_one_who_makes_it() -> None:
    async def told() -> None:
        it = Fetching()
        assert await it.has("ES256")
        it.now = MAX_AGE_S
        refreshing = asyncio.create_task(it.has("ES256"))
        await asyncio.sleep(0)
        start = time.perf_counter()
        for _ in range(5):
            assert await it.has("ES256")
        assert time.perf_counter() - start < 0.01
        assert not refreshing.done()
        assert await refreshing

    story(told)


@pytest.fixture
def slow() -> Iterator[str]:
    """A real server that sends a byte now and then, for ever."""
    ended = threading.Event()

    class Drip(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not ended.wait(0.02):
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drip) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        ended.set()
        server.shutdown()


def test_a_server_that_never_ends_its_answer_costs_a_bounded_time(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keysets, "FETCH_S", 0.3)

    async def told() -> None:
        start = time.perf_counter()
        assert await FetchedKeys(slow, ALGORITHMS).find("ES256", "ES256") is None
        assert 0.2 < time.perf_counter() - start < 3

    story(told)
