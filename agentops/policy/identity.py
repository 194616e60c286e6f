"""Who a caller is: roles and their scopes from `policies/identities.toml`, API keys from the environment.

Invariant: a role gives exactly the scopes the file says; an unknown role, key or malformed header gives no principal.
Secrets are held as keyed digests, compared in constant time, and a wrong secret takes the same path as an unknown id.
"""

import functools
import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentops.errors import PolicyError
from agentops.types import Principal, Problem

FILE = "identities.toml"
MAX_HEADER = 512  # characters
MIN_SECRET = 16
KEYS_PER_ID = 2  # the old and the new one, while a key is being replaced
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SCOPE = re.compile(r"[a-z][a-z0-9_-]*:[a-z][a-z0-9_-]*")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True, slots=True)
class Role:
    """Scopes of a role, and whether its people decide approvals."""

    scopes: frozenset[str]
    approver: bool = False


@dataclass(frozen=True, slots=True)
class DailyLimits:
    """What one user may use in one day (UTC), over all runs and replicas."""

    calls: int = 100_000
    money_cents: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Identities:
    """The parsed file."""

    roles: Mapping[str, Role]
    default_roles: tuple[str, ...]
    limits: DailyLimits


def identities(policies: Path) -> Identities:
    """`policies`/identities.toml, read again only when the file changes.

    Raises:
        PolicyError: with every problem of the file.
    """
    file = policies / FILE
    try:
        status = file.stat()
    except OSError:
        raise PolicyError(f"{policies.name}/{FILE} is missing: it says which scopes each role has") from None
    return _loaded(file, status.st_mtime_ns, status.st_size)


def principal(policies: Path, tenant: str, user: str, roles: Iterable[str] = ()) -> Principal:
    """A user with the scopes of their roles; without roles, with the file's default ones.

    Raises:
        PolicyError: an unknown role, or a tenant or user name that is not allowed.
    """
    known = identities(policies)
    names = tuple(roles) or known.default_roles
    for kind, value in (("tenant", tenant), ("user", user)):
        if not _TENANT.fullmatch(value):
            raise PolicyError(f"{kind} {value[:80]!r} is not allowed: letters, digits, _ . @ -, at most 64 characters")
    for name in names:
        if name not in known.roles:
            raise PolicyError(f"role {name!r} does not exist; {FILE} has: {', '.join(sorted(known.roles))}")
    scopes = frozenset().union(*(known.roles[name].scopes for name in names))
    return Principal(tenant, user, scopes, frozenset(names))


def identity_problems(policies: Path, scopes: Iterable[str] = ()) -> list[Problem]:
    """Everything wrong with identities.toml; `scopes`: those that some tool needs (empty: not compared)."""
    file = policies / FILE
    shown = f"{policies.name}/{FILE}"
    if not file.is_file():
        return [Problem(shown, 0, "is missing: it says which scopes each role has")]
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return [Problem(shown, int(at[1]) if at else 0, f"not valid TOML: {error}")]
    parsed, faults = _parse(table)
    known = frozenset(scopes)
    if known and parsed is not None:
        for name, role in parsed.roles.items():
            faults += [
                (
                    f"roles.{name}",
                    f"role {name!r} has scope {scope!r}, which no tool needs; tools need: {', '.join(sorted(known))}",
                )
                for scope in sorted(role.scopes - known)
            ]
    return [Problem(shown, _line(text, where), message) for where, message in faults]


class ApiKeys:
    """API keys of a deployment: `id:secret:tenant:user`, optionally `:role+role`, separated by commas."""

    def __init__(self, entries: Mapping[str, tuple[Principal, tuple[bytes, ...]]], pepper: bytes) -> None:
        """Use `parse`."""
        self._entries = dict(entries)
        self._pepper = pepper

    def __len__(self) -> int:
        return len(self._entries)

    @classmethod
    def parse(cls, secret: str, policies: Path | None = None) -> "ApiKeys":
        """Keys from the text of AGENTOPS_API_KEYS.

        Args:
            secret: the entries. An id may appear twice with different secrets, while one replaces the other.
            policies: folder with identities.toml; None: principals have the roles as written and no scopes.

        Raises:
            PolicyError: a malformed entry, named by its position, never by its content.
        """
        pepper = secrets.token_bytes(32)
        entries: dict[str, tuple[Principal, tuple[bytes, ...]]] = {}
        for number, entry in enumerate(filter(None, (part.strip() for part in secret.split(","))), 1):
            where = f"API key {number}"
            parts = entry.split(":")
            if len(parts) not in (4, 5):
                raise PolicyError(f"{where} has {len(parts)} fields: write id:secret:tenant:user or …:role+role")
            name, key, tenant, user = parts[:4]
            roles = tuple(filter(None, parts[4].split("+"))) if len(parts) == 5 else ()
            if not _NAME.fullmatch(name):
                raise PolicyError(f"{where}: the id must be lower-case letters, digits, _ or -")
            if len(key) < MIN_SECRET or not key.isascii() or not key.isprintable() or " " in key:
                raise PolicyError(f"{where}: the secret needs at least {MIN_SECRET} printable ASCII characters")
            try:
                who = (
                    _plain_principal(tenant, user, roles)
                    if policies is None
                    else principal(policies, tenant, user, roles)
                )
            except PolicyError as error:
                raise PolicyError(f"{where}: {error}") from None
            before = entries.get(name, (who, ()))
            if before[0] != who or len(before[1]) >= KEYS_PER_ID:
                raise PolicyError(f"{where}: an id may have {KEYS_PER_ID} secrets, for the same tenant, user and roles")
            entries[name] = (who, (*before[1], _mac(pepper, name, key)))
        if not entries:
            raise PolicyError("there is no API key: set AGENTOPS_API_KEYS to id:secret:tenant:user")
        return cls(entries, pepper)

    def authenticate(self, header: str | None) -> Principal | None:
        """The principal of an `Authorization: Bearer id:secret` header, or None. Never raises."""
        if header is None or len(header) > MAX_HEADER:
            return None
        scheme, _, token = header.partition(" ")
        name, separator, key = token.strip().partition(":")
        who, digests = self._entries.get(name, (None, ()))
        given = _mac(self._pepper, name, key)
        # Always two comparisons, against dummies where there is no key: time says nothing about which ids exist.
        stored = (*digests, *(bytes(32) for _ in range(KEYS_PER_ID - len(digests))))
        matches = [hmac.compare_digest(given, digest) for digest in stored]
        return who if any(matches) and separator and scheme.lower() == "bearer" else None


def _mac(pepper: bytes, name: str, key: str) -> bytes:
    return hmac.new(pepper, f"{name}:{key}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def _plain_principal(tenant: str, user: str, roles: tuple[str, ...]) -> Principal:
    if not _TENANT.fullmatch(tenant) or not _TENANT.fullmatch(user):
        raise PolicyError("tenant and user are letters, digits, _ . @ -, at most 64 characters")
    return Principal(tenant, user, frozenset(), frozenset(roles))


@functools.lru_cache(maxsize=64)
def _loaded(file: Path, modified_ns: int, size: int) -> Identities:
    problems = identity_problems(file.parent)
    if problems:
        raise PolicyError("\n".join(str(problem) for problem in problems))
    parsed, _ = _parse(tomllib.loads(file.read_text(encoding="utf-8")))
    if parsed is None:
        raise PolicyError(f"{FILE} is not usable")
    return parsed


def _parse(table: Mapping[str, Any]) -> tuple[Identities | None, list[tuple[str, str]]]:
    """The identities, and (where, what) of each fault."""
    faults: list[tuple[str, str]] = []
    for key in sorted(set(table) - {"roles", "defaults", "limits"}):
        faults.append((key, f"[{key}] is not known: use [roles.NAME], [defaults] and [limits]"))
    roles: dict[str, Role] = {}
    given = table.get("roles")
    for name, settings in given.items() if isinstance(given, dict) else ():
        where = f"roles.{name}"
        if not _NAME.fullmatch(name) or not isinstance(settings, dict):
            faults.append((where, f"role {name!r} is not a table with a lower-case name"))
            continue
        scopes, approver = settings.get("scopes", []), settings.get("approver", False)
        for key in sorted(set(settings) - {"scopes", "approver", "description"}):
            faults.append((where, f"role {name!r}: {key!r} is not known: use scopes, approver, description"))
        if not isinstance(scopes, list) or not all(isinstance(one, str) and _SCOPE.fullmatch(one) for one in scopes):
            faults.append((where, f"role {name!r}: scopes must be a list of texts like 'orders:read'"))
            continue
        if not isinstance(approver, bool):
            faults.append((where, f"role {name!r}: approver must be true or false"))
            continue
        roles[name] = Role(frozenset(scopes), approver)
    if not roles and not faults:
        faults.append(("roles", "has no role: add [roles.customer] with scopes"))
    defaults = table.get("defaults", {})
    names = defaults.get("roles", []) if isinstance(defaults, dict) else None
    if not isinstance(names, list) or set(defaults) - {"roles"} or not all(isinstance(name, str) for name in names):
        faults.append(("defaults", "[defaults] has one key: roles, a list of role names"))
        names = []
    faults += [("defaults", f"default role {name!r} is not defined") for name in names if name not in roles]
    limits, problem = _limits(table.get("limits", {}))
    if problem:
        faults.append(("limits", problem))
    return (None if faults else Identities(roles, tuple(names), limits)), faults


def _limits(table: Any) -> tuple[DailyLimits, str]:
    keys = {"calls_per_day": "calls", "money_cents_per_day": "money_cents"}
    fits = isinstance(table, dict) and not set(table) - set(keys)
    if not fits or not all(type(value) is int and 0 <= value < 2**53 for value in table.values()):
        return DailyLimits(), f"[limits] has whole numbers for {' and '.join(keys)}, nothing else"
    return DailyLimits(**{keys[key]: value for key, value in table.items()}), ""


def _line(text: str, where: str) -> int:
    pattern = re.compile(rf"\s*\[\s*{re.escape(where)}\s*\]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 0)
