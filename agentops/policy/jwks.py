"""An issuer's public keys (JWK sets, RFC 7517): from a file beside the policies, or fetched and kept for a while.

Invariant: a key serves only the algorithms its issuer allows and its own type fits, never a symmetric one. A file that
cannot be read gives no key; an address that cannot be reached leaves the keys it gave before, for at most a day. An
unknown key id causes at most one fetch in 30 s, whoever sends it. It verifies nothing.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import jwt

from agentops.errors import PolicyError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_BYTES = 64 * 1024
MAX_KEYS = 50
MAX_AGE_S = 3600.0  # after which a set is fetched again
MAX_STALE_S = 24 * 3600.0  # for which the last set counts while it cannot be fetched
RETRY_S = 30.0
FETCH_S = 5.0  # for one fetch, from name resolution to the last byte
_PUBLIC = ("kty", "crv", "n", "e", "x", "y")  # what of a key is read: never a private part
_FITS = {  # algorithm: type and curve (RFC 7518, 3.1; RFC 8037)
    **dict.fromkeys(ALGORITHMS[:6], ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
_LOG = logging.getLogger(__name__)
Keys = Mapping[tuple[str, str], jwt.PyJWK]  # by key id and algorithm


def parse_keys(data: bytes, algorithms: Sequence[str]) -> Keys:
    """The usable keys of a JWK set. Encryption keys, other types and RSA keys below 2048 bits are left out.

    Raises:
        PolicyError: not a JWK set, too large, or no key in it is usable.
    """
    if len(data) > MAX_BYTES:
        raise PolicyError(f"the key set has {len(data)} bytes: at most {MAX_BYTES}")
    try:
        given = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PolicyError('the key set is not JSON like {"keys": [...]} (RFC 7517)') from None
    if not isinstance(given, list) or len(given) > MAX_KEYS:
        raise PolicyError(f"the key set must be a list of at most {MAX_KEYS} keys")
    keys: dict[tuple[str, str], jwt.PyJWK] = {}
    for one in given:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        kid = one.get("kid", "")
        for algorithm in algorithms:
            fits = one.get("kty") == _FITS[algorithm][0] and one.get("crv", "") == _FITS[algorithm][1]
            if not fits or one.get("alg", algorithm) != algorithm or not isinstance(kid, str):
                continue
            try:
                key = jwt.PyJWK({name: one[name] for name in _PUBLIC if name in one}, algorithm)
            except (jwt.PyJWTError, ValueError, TypeError):
                continue
            if key.Algorithm.check_key_length(key.key) is None:
                keys[kid, algorithm] = key
    if not keys:
        raise PolicyError(f"the key set has no public key for {', '.join(algorithms)}")
    return keys


def read_keys(file: Path, algorithms: Sequence[str]) -> Keys:
    """The keys in a file.

    Raises:
        PolicyError: the file is missing, holds a private or symmetric key, or no usable one.
    """
    try:
        data = file.read_bytes()
    except OSError:
        raise PolicyError(f"jwks {file.name!r} is not in {file.parent.name}/: put the issuer's key set there") from None
    try:
        keys = parse_keys(data, algorithms)
    except PolicyError as error:
        raise PolicyError(f"jwks {file.name!r}: {error}") from None
    if any(isinstance(one, dict) and {"d", "k"} & set(one) for one in json.loads(data)["keys"]):
        raise PolicyError(f"jwks {file.name!r} holds a secret key: only public keys belong here, and that one is spent")
    return keys


class FileKeys:
    """Keys of a file, read again when it changes."""

    def __init__(self, file: Path, algorithms: Sequence[str]) -> None:
        self._file, self._algorithms = file, algorithms
        self._seen: tuple[int, int, int] | None = None
        self._keys: Keys = {}

    async def find(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """The key, or None."""
        try:
            status = self._file.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                self._keys, self._seen = {}, seen
                self._keys = read_keys(self._file, self._algorithms)
        except (OSError, PolicyError) as error:
            self._keys = {}
            _LOG.error("tokens cannot be verified: %s", error)
        return _chosen(self._keys, kid, algorithm)


class FetchedKeys:
    """Keys of an address, kept and fetched again."""

    def __init__(
        self,
        url: str,
        algorithms: Sequence[str],
        now: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args:
        now: seconds, monotone.
        transport: of the HTTP client; None: the network.
        """
        self._url, self._algorithms, self._now, self._transport = url, algorithms, now, transport
        self._keys: Keys = {}
        self._fetched = -MAX_STALE_S  # when the keys came
        self._tried = -RETRY_S
        self._lock = asyncio.Lock()

    async def find(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """The key, or None. One caller fetches; others wait for it, at most 5 s, only when they have no key."""
        key = self._known(kid, algorithm)
        if key is not None and (self._now() - self._fetched < MAX_AGE_S or self._lock.locked()):
            return key
        async with self._lock:
            due = key is None or self._now() - self._fetched >= MAX_AGE_S
            if due and self._now() - self._tried >= RETRY_S and self._known(kid, algorithm) is key:
                self._tried = self._now()
                await self._fetch()
        return self._known(kid, algorithm)

    def _known(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        fresh = self._now() - self._fetched < MAX_STALE_S
        return _chosen(self._keys, kid, algorithm) if fresh else None

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                data = await self._read()
            keys = parse_keys(data, self._algorithms)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, PolicyError) as error:
            _LOG.warning("keys of %s stay as they were: %s: %s", self._url, type(error).__name__, error)
            return
        self._keys, self._fetched = keys, self._now()

    async def _read(self) -> bytes:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}  # nothing that could inflate
        async with (
            httpx.AsyncClient(timeout=FETCH_S, transport=self._transport) as client,
            client.stream("GET", self._url, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise PolicyError(f"it answered {response.status_code}")
            data = b""
            async for part in response.aiter_raw():
                data += part
                if len(data) > MAX_BYTES:
                    raise PolicyError(f"the key set has more than {MAX_BYTES} bytes")
            return data


def _chosen(keys: Keys, kid: str, algorithm: str) -> jwt.PyJWK | None:
    """The key with this id; without an id, the only one there is."""
    if kid:
        return keys.get((kid, algorithm))
    fitting = [key for (_, fits), key in keys.items() if fits == algorithm]
    return fitting[0] if len(fitting) == 1 else None
