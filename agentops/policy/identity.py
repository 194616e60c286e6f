"""Who may do what: roles, tenants, actors and issuers of tokens, from `policies/identities.toml`.

Invariant: a role gives exactly the scopes the file says; an unknown role, tenant or actor gives no principal, and
whatever is said about a caller beyond their roles only takes rights away. Credentials are read by `keys` and `tokens`.
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentops.errors import PolicyError
from agentops.policy.issuers import Issuer, issuer_faults, parse_actors, parse_issuers, parse_tenants
from agentops.policy.limits import Limits, parse_limits
from agentops.policy.names import NAME, SCOPE, checked_names
from agentops.types import Principal, Problem

FILE = "identities.toml"
_TABLES = ("roles", "defaults", "limits", "tenants", "actors", "issuers")
DECIDE = "approvals:decide"  # the scope every approver role has, so that it can be taken away like any other


@dataclass(frozen=True, slots=True)
class Role:
    """Scopes of a role, and whether its people decide approvals."""

    scopes: frozenset[str]
    approver: bool = False


@dataclass(frozen=True, slots=True)
class Identities:
    """The parsed file."""

    roles: Mapping[str, Role]
    default_roles: tuple[str, ...]
    limits: Limits
    tenants: Mapping[str, frozenset[str]] = field(default_factory=dict)  # and the issuers that may name it; empty: any
    actors: Mapping[str, frozenset[str]] = field(default_factory=dict)  # services, and what they may use for a user
    issuers: Mapping[str, Issuer] = field(default_factory=dict)  # by the `iss` of their tokens


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
        PolicyError: an unknown role, a tenant that is not listed, or a tenant or user name that is not allowed.
    """
    known = identities(policies)
    names = tuple(roles) or known.default_roles
    checked_names(tenant, user)
    if known.tenants and tenant not in known.tenants:
        raise PolicyError(f"tenant {tenant!r} is not in {FILE}: add [tenants.{tenant}], or remove all [tenants]")
    for name in names:
        if name not in known.roles:
            raise PolicyError(f"role {name!r} does not exist; {FILE} has: {', '.join(sorted(known.roles))}")
    scopes = frozenset().union(*(known.roles[name].scopes for name in names))
    decides = any(known.roles[name].approver for name in names)
    return Principal(tenant, user, scopes | {DECIDE} if decides else scopes, frozenset(names))


def narrowed(who: Principal, scopes: Iterable[str]) -> Principal:
    """`who` with only those of their scopes that are in `scopes` too. Roles stay: they may carry prohibitions."""
    return replace(who, scopes=who.scopes.intersection(scopes))


def delegated(known: Identities, who: Principal, actors: Iterable[str]) -> Principal:
    """`who` as `actors`, outermost first, act for them: with the scopes that each of these may use.

    Prior actors narrow too, although RFC 8693, 4.1 calls them informational: that only ever takes rights away.

    Raises:
        PolicyError: an actor that [actors] does not list.
    """
    for actor in actors:
        if actor not in known.actors:
            raise PolicyError(
                f"actor {actor[:80]!r} is not in {FILE}: add [actors.NAME] with what it may use for users"
            )
        who = replace(narrowed(who, known.actors[actor]), actors=(*who.actors, actor))
    return who


def renewed(policies: Path, who: Principal) -> Principal:
    """`who` with no more rights than their roles and actors have now: for what has waited since they asked.

    Raises:
        PolicyError: the tenant, a role or an actor does not exist any more.
    """
    known = identities(policies)
    now = principal(policies, who.tenant, who.user, who.roles)
    if known.actors:
        now = delegated(known, now, who.actors)
    return narrowed(who, now.scopes)


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
    faults += issuer_faults(policies, parsed.issuers.values() if parsed else ())
    known = frozenset(scopes)
    if known and parsed is not None:
        holders = {f"roles.{name}": role.scopes for name, role in parsed.roles.items()}
        holders |= {f"actors.{name}": allowed - {DECIDE} for name, allowed in parsed.actors.items()}
        for where, held in holders.items():
            kind, _, name = where.partition(".")
            faults += [
                (
                    where,
                    f"{kind[:-1]} {name!r} has scope {scope!r}, which no tool needs; "
                    f"tools need: {', '.join(sorted(known))}",
                )
                for scope in sorted(held - known)
            ]
    return [Problem(shown, _line(text, where), message) for where, message in faults]


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
    for key in sorted(set(table) - set(_TABLES)):
        faults.append((key, f"[{key}] is not known: use {', '.join(f'[{name}]' for name in _TABLES)}"))
    roles: dict[str, Role] = {}
    given = table.get("roles")
    for name, settings in given.items() if isinstance(given, dict) else ():
        where = f"roles.{name}"
        if not NAME.fullmatch(name) or not isinstance(settings, dict):
            faults.append((where, f"role {name!r} is not a table with a lower-case name"))
            continue
        scopes, approver = settings.get("scopes", []), settings.get("approver", False)
        for key in sorted(set(settings) - {"scopes", "approver", "description"}):
            faults.append((where, f"role {name!r}: {key!r} is not known: use scopes, approver, description"))
        if not isinstance(scopes, list) or not all(isinstance(one, str) and SCOPE.fullmatch(one) for one in scopes):
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
    limits, problems = parse_limits(table.get("limits", {}))
    faults += problems
    declared = table.get("issuers", {})
    issuers, problems = parse_issuers(declared, roles)
    faults += problems
    tenants, problems = parse_tenants(table.get("tenants"), issuers, declared if isinstance(declared, dict) else ())
    faults += problems
    actors, problems = parse_actors(table.get("actors", {}))
    faults += problems
    if faults:
        return None, faults
    by_url = {issuer.issuer: issuer for issuer in issuers.values()}
    return Identities(roles, tuple(names), limits, tenants, actors, by_url), []


def _line(text: str, where: str) -> int:
    name = r"\s*\.\s*".join(f"[\"']?{re.escape(part)}[\"']?" for part in where.split(".", 1))
    pattern = re.compile(rf"\s*\[\s*{name}\s*\]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 0)
