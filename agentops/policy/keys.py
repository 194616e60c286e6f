"""API keys: the callers named in AGENTOPS_API_KEYS, each with an id, a secret and who it stands for.

Invariant: secrets are held as keyed digests and compared in constant time; a wrong secret takes the same path as an
unknown id. What a key's roles allow is read from identities.toml at each use. It reads no token and no other header.
"""

import datetime
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentops.errors import PolicyError
from agentops.graph import Clock, RealClock
from agentops.policy.identity import principal
from agentops.policy.names import NAME, checked_names
from agentops.types import Principal

MAX_HEADER = 512  # characters
MIN_SECRET = 16
KEYS_PER_ID = 2  # the old and the new one, while a key is being replaced
FIELDS = "id:secret:tenant:user, then optionally :role+role and :YYYY-MM-DD, its last day"
_NEVER = float("inf")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class _Entry:
    who: Principal
    digests: tuple[tuple[bytes, float], ...] = ()  # of each secret, and when it ends


class ApiKeys:
    """API keys of a deployment: `id:secret:tenant:user[:role+role[:YYYY-MM-DD]]`, separated by commas."""

    def __init__(
        self, entries: Mapping[str, _Entry], pepper: bytes, policies: Path | None = None, clock: Clock = RealClock()
    ) -> None:
        """Use `parse`."""
        self._entries = dict(entries)
        self._pepper = pepper
        self._policies = policies
        self._clock = clock

    def __len__(self) -> int:
        return len(self._entries)

    @classmethod
    def parse(cls, secret: str, policies: Path | None = None, clock: Clock = RealClock()) -> "ApiKeys":
        """Keys from the text of AGENTOPS_API_KEYS.

        Args:
            secret: the entries. An id may appear twice with different secrets, while one replaces the other. A date
                is the last day (UTC) on which a secret works.
            policies: folder with identities.toml; None: principals have the roles as written and no scopes.
            clock: tells when a secret has ended.

        Raises:
            PolicyError: a malformed entry, named by its position, never by its content.
        """
        pepper = secrets.token_bytes(32)
        entries: dict[str, _Entry] = {}
        for number, entry in enumerate(filter(None, (part.strip() for part in secret.split(","))), 1):
            where = f"API key {number}"
            parts = entry.split(":")
            if len(parts) not in (4, 5, 6):
                raise PolicyError(f"{where} has {len(parts)} fields: write {FIELDS}")
            name, key, tenant, user = parts[:4]
            roles = tuple(filter(None, parts[4].split("+"))) if len(parts) > 4 else ()
            if not NAME.fullmatch(name):
                raise PolicyError(f"{where}: the id must be lower-case letters, digits, _ or -")
            if len(key) < MIN_SECRET or not key.isascii() or not key.isprintable() or " " in key:
                raise PolicyError(f"{where}: the secret needs at least {MIN_SECRET} printable ASCII characters")
            try:
                who = _principal(policies, Principal(tenant, user, roles=frozenset(roles)))
                ends = _end(parts[5]) if len(parts) == 6 else _NEVER
            except PolicyError as error:
                raise PolicyError(f"{where}: {error}") from None
            before = entries.get(name, _Entry(who))
            if before.who != who or len(before.digests) >= KEYS_PER_ID:
                raise PolicyError(f"{where}: an id may have {KEYS_PER_ID} secrets, for the same tenant, user and roles")
            entries[name] = _Entry(who, (*before.digests, (_mac(pepper, name, key), ends)))
        if not entries:
            raise PolicyError("there is no API key: set AGENTOPS_API_KEYS to id:secret:tenant:user")
        return cls(entries, pepper, policies, clock)

    def authenticate(self, header: str | None) -> Principal | None:
        """The principal of an `Authorization: Bearer id:secret` header, or None. Never raises."""
        if header is None or len(header) > MAX_HEADER:
            return None
        scheme, _, token = header.partition(" ")
        name, separator, key = token.strip().partition(":")
        entry = self._entries.get(name)
        given = _mac(self._pepper, name, key)
        # Always two comparisons, against dummies where there is no key: time says nothing about which ids exist.
        stored = (*(entry.digests if entry else ()), *((bytes(32), -_NEVER),) * KEYS_PER_ID)[:KEYS_PER_ID]
        now = self._clock.now()
        matches = [hmac.compare_digest(given, digest) & (now < ends) for digest, ends in stored]
        if entry is None or not any(matches) or not separator or scheme.lower() != "bearer":
            return None
        try:
            return _principal(self._policies, entry.who)
        except PolicyError:  # its role or tenant was taken out of identities.toml, or the file is broken
            return None


def _mac(pepper: bytes, name: str, key: str) -> bytes:
    return hmac.new(pepper, f"{name}:{key}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def _principal(policies: Path | None, who: Principal) -> Principal:
    if policies is not None:
        return principal(policies, who.tenant, who.user, who.roles)
    checked_names(who.tenant, who.user)
    return who


def _end(day: str) -> float:
    try:
        if not _DATE.fullmatch(day):
            raise ValueError(day)
        last = datetime.datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=datetime.UTC)
    except ValueError:
        raise PolicyError(f"its last day must be a date like 2027-01-31; the fields are {FIELDS}") from None
    return last.timestamp() + 86_400.0
