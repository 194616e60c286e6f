"""Who vouches for users and who acts for them: `[issuers]`, `[tenants]` and `[actors]` of `policies/identities.toml`.

Invariant: an issuer has exactly one set of keys, asymmetric algorithms only, and one way to a tenant; where several
issuers speak, none can name another's tenant. It verifies no token: `tokens` does, with keys from `jwks`.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentops.config import loopback
from agentops.errors import PolicyError
from agentops.policy.jwks import ALGORITHMS, read_keys
from agentops.policy.names import NAME, SCOPE, SUBJECT

MAX_LEEWAY_S = 60
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}\.json")
_TEXTS = (
    "issuer", "audience", "jwks", "jwks_url", "user_claim", "tenant", "tenant_claim", "roles_claim", "description",
)  # fmt: skip
_KEYS = (*_TEXTS, "algorithms", "roles", "leeway_s")
Faults = list[tuple[str, str]]  # the table, and what is wrong with it


@dataclass(frozen=True, slots=True)
class Issuer:
    """One identity provider and what is believed of its tokens."""

    name: str
    issuer: str  # the `iss` of its tokens, byte for byte
    audience: str
    algorithms: tuple[str, ...]
    jwks: str = ""  # file in the policies folder with its public keys (RFC 7517)
    jwks_url: str = ""  # or where they are fetched
    user_claim: str = "sub"
    tenant: str = ""  # of all its users
    tenant_claim: str = ""  # or the claim that names it
    roles_claim: str = ""  # a list of the provider's groups; none: users have the default roles
    roles: Mapping[str, str] = field(default_factory=dict)  # the provider's group -> our role
    leeway_s: int = 30  # by which clocks may differ


def parse_issuers(given: Any, roles: Container[str]) -> tuple[dict[str, Issuer], Faults]:
    """`[issuers.NAME]` by name, and every fault. `roles`: those that exist."""
    if not isinstance(given, dict):
        return {}, [("issuers", "write a table [issuers.NAME] for each identity provider")]
    issuers: dict[str, Issuer] = {}
    faults: Faults = []
    for name, settings in given.items():
        wrong = _wrong(name, settings, roles)
        if not wrong and settings["issuer"] in (known.issuer for known in issuers.values()):
            wrong = [f"{settings['issuer']!r} is the issuer of two tables: one issuer has one set of keys"]
        if wrong:
            faults += [(f"issuers.{name}", f"issuer {name!r}: {what}") for what in wrong]
            continue
        values: dict[str, Any] = {key: value for key, value in settings.items() if key != "description"}
        values["algorithms"] = tuple(values["algorithms"])
        issuers[name] = Issuer(name, **values)
    return issuers, faults


def parse_tenants(
    given: Any, issuers: Mapping[str, Issuer], declared: Container[str]
) -> tuple[dict[str, frozenset[str]], Faults]:
    """Listed tenants, each with the issuers that may name it, and every fault.

    Where several issuers speak, one that names tenants itself may name only those that list it.

    Args:
        given: the table [tenants]; None: any tenant is known.
        issuers: those without fault.
        declared: names of all of them.
    """
    tenants: dict[str, frozenset[str]] = {}
    faults: Faults = []
    for name, settings in given.items() if isinstance(given, dict) else ():
        where = f"tenants.{name}"
        listed = settings.get("issuers", []) if isinstance(settings, dict) else None
        if not SUBJECT.fullmatch(name) or listed is None or set(settings) - {"issuers", "description"}:
            faults.append((where, f"tenant {name!r} is a table with issuers and description; its name is like 'acme'"))
        elif not isinstance(listed, list) or not all(isinstance(one, str) and one in declared for one in listed):
            faults.append((where, f"tenant {name!r}: issuers must be a list of names of [issuers.NAME]"))
        else:
            tenants[name] = frozenset(listed if "issuers" in settings else issuers)
    if given is not None and (not isinstance(given, dict) or not given):
        faults.append(("tenants", "write a table [tenants.NAME] for each tenant; without any, every tenant is known"))
    for issuer in issuers.values():
        if issuer.tenant and tenants and issuer.tenant not in tenants:
            faults.append((f"issuers.{issuer.name}", f"tenant {issuer.tenant!r} is not listed in [tenants]"))
        elif issuer.tenant and tenants and issuer.name not in tenants[issuer.tenant]:
            message = f"[tenants.{issuer.tenant}] does not list {issuer.name!r} among its issuers"
            faults.append((f"issuers.{issuer.name}", message))
        open_to_all = not tenants or any(isinstance(one, dict) and "issuers" not in one for one in given.values())
        if issuer.tenant_claim and len(issuers) > 1 and open_to_all:
            message = "with several issuers, tenant_claim needs [tenants.NAME] with issuers = [...] for every tenant"
            faults.append((f"issuers.{issuer.name}", message))
    return tenants, faults


def parse_actors(given: Any) -> tuple[dict[str, frozenset[str]], Faults]:
    """Services that act for users, with the scopes each may use for them, and every fault."""
    actors: dict[str, frozenset[str]] = {}
    faults: Faults = []
    for name, settings in given.items() if isinstance(given, dict) else ():
        scopes = settings.get("scopes") if isinstance(settings, dict) else None
        known = isinstance(settings, dict) and not set(settings) - {"scopes", "description"}
        if not SUBJECT.fullmatch(name) or not known or not isinstance(scopes, list):
            faults.append((f"actors.{name}", f"actor {name!r} is a table with scopes and description"))
        elif not all(isinstance(one, str) and SCOPE.fullmatch(one) for one in scopes):
            faults.append((f"actors.{name}", f"actor {name!r}: scopes must be a list of texts like 'orders:read'"))
        else:
            actors[name] = frozenset(scopes)
    if not isinstance(given, dict):
        faults.append(("actors", "write a table [actors.NAME] for each service that acts for users"))
    return actors, faults


def issuer_faults(policies: Path, issuers: Iterable[Issuer]) -> Faults:
    """Key files that are missing or hold no usable key."""
    faults: Faults = []
    for issuer in issuers:
        if issuer.jwks:
            try:
                read_keys(policies / issuer.jwks, issuer.algorithms)
            except PolicyError as error:
                faults.append((f"issuers.{issuer.name}", str(error)))
    return faults


def _wrong(name: str, settings: Any, roles: Container[str]) -> list[str]:
    if not NAME.fullmatch(name) or not isinstance(settings, dict):
        return ["is not a table with a lower-case name"]
    wrong = [f"{key!r} is not known: use {', '.join(_KEYS)}" for key in sorted(set(settings) - set(_KEYS))]
    texts = {key: settings.get(key, "") for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str) or len(value) > 512 or (key in settings and not value):
            return [*wrong, f"{key} must be a text of 1 to 512 characters"]
    for key in ("issuer", "jwks_url"):
        if texts[key] and not _safe_url(texts[key]):
            wrong.append(f"{key} {texts[key]!r} must be an https:// address (http:// only on this machine)")
    wrong += [f"{key} is missing" for key in ("issuer", "audience") if not texts[key]]
    for one, other in (("jwks", "jwks_url"), ("tenant", "tenant_claim")):
        if bool(texts[one]) == bool(texts[other]):
            wrong.append(f"give {one} or {other}, exactly one of them")
    if texts["jwks"] and not _FILE.fullmatch(texts["jwks"]):
        wrong.append(f"jwks {texts['jwks']!r} must be the name of a .json file beside identities.toml")
    if texts["tenant"] and not SUBJECT.fullmatch(texts["tenant"]):
        wrong.append(f"tenant {texts['tenant']!r} is not allowed: letters, digits, _ . @ -, at most 64 characters")
    algorithms = settings.get("algorithms")
    if not isinstance(algorithms, list) or not algorithms or not all(one in ALGORITHMS for one in algorithms):
        shown = algorithms if isinstance(algorithms, list) else []
        refused = sorted({str(one) for one in shown if one not in ALGORITHMS})
        wrong.append(f"algorithms must be some of {', '.join(ALGORITHMS)}" + (f", not {refused}" if refused else ""))
    groups = settings.get("roles", {})
    if not isinstance(groups, dict) or bool(groups) != bool(texts["roles_claim"]):
        wrong.append("roles_claim and a table roles (their group = our role) belong together")
    else:
        wrong += [f"roles: role {role!r} is not defined" for role in map(str, groups.values()) if role not in roles]
    leeway = settings.get("leeway_s", 0)
    if type(leeway) is not int or not 0 <= leeway <= MAX_LEEWAY_S:
        wrong.append(f"leeway_s must be a whole number from 0 to {MAX_LEEWAY_S}")
    return wrong


def _safe_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        local = parts.scheme == "http" and loopback(parts.hostname or "")
        valid = bool(parts.hostname) and parts.port != 0 and not parts.username and not parts.fragment
    except ValueError:
        return False
    return valid and (parts.scheme == "https" or local) and text.isascii() and text.isprintable() and " " not in text
