"""Typed facts a policy may decide on, from a call's arguments and what the gateway counted.

Invariant: a value that is ambiguous, ill-typed or out of range gives no fact but a refusal, and a missing count takes
its most restrictive value. Facts are scalars and sets of scalars only, so no argument can smuggle an entity into Cedar.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from agentops.errors import PolicyError
from agentops.policy.schema import cedar_type, is_email
from agentops.types import Json, Level, Source, ToolCall, ToolSpec

LONG = 2**63 - 1
MAX_TEXT = 65_536  # characters of one argument
MAX_ITEMS = 1_000
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_GIVEN = {"calls_used": int, "isolation": str, "money_used_cents": int, "untrusted_seen": bool}
_LEVELS = get_args(Level)
_SOURCES = get_args(Source)
_OTHER_NAMES = {"labels_seen_untrusted": "untrusted_seen"}
SOURCES = "sources"  # by argument: becomes `context.source`
APPROVED = "approved"  # bool, or the roles that approved, joined with "+": read by the policy set, not by policies


@dataclass(frozen=True, slots=True)
class Kind:
    """How one argument becomes a fact. `cedar` "": it has none."""

    cedar: str
    email: bool
    default: Json


def argument_kinds(spec: ToolSpec) -> dict[str, Kind]:
    """The arguments of a tool, worked out once for all its calls."""
    kinds: dict[str, Kind] = {}
    for name, schema in spec.parameters.get("properties", {}).items():
        kind, _ = cedar_type(schema, spec.parameters.get("$defs", {}))
        kinds[name] = Kind(kind, kind == "String" and is_email(name, schema), schema.get("default"))
    return kinds


def argument_facts(kinds: Mapping[str, Kind], arguments: Mapping[str, Json]) -> dict[str, Json]:
    """`context.args`: one fact for each argument that has a Cedar type, defaults filled in.

    Raises:
        PolicyError: an unknown argument, or a value that does not have the declared type; names the argument only.
    """
    for name in arguments:
        if name not in kinds:
            raise PolicyError(f"argument {name[:40]!r} is not one of the tool's")
    facts: dict[str, Json] = {}
    for name, kind in kinds.items():
        value = arguments.get(name, kind.default)
        if not kind.cedar or value is None:
            continue
        facts[name] = _typed(name, kind.cedar, value)
        if kind.email:
            facts[f"{name}_domain"] = email_domain(facts[name], name)
    return facts


def gateway_facts(call: ToolCall, given: Mapping[str, Json]) -> dict[str, Json]:
    """`context.g`. What is missing takes its most restrictive value: nothing left to spend, untrusted content seen.

    Raises:
        PolicyError: an unknown fact, or one of another type.
    """
    facts: dict[str, Json] = {
        "args_confidentiality": call.labels.confidentiality,
        "args_untrusted": call.labels.integrity == "untrusted",
        "calls_used": LONG,
        "isolation": "none",
        "money_used_cents": LONG,
        "untrusted_seen": True,
    }
    for key, value in given.items():
        if key in (APPROVED, SOURCES):
            continue
        name = _OTHER_NAMES.get(key, key)
        if name not in _GIVEN:
            raise PolicyError(
                f"fact {key!r} is not known: the gateway's facts are {', '.join((*_GIVEN, APPROVED, SOURCES))}"
            )
        if type(value) is not _GIVEN[name] or (_GIVEN[name] is int and not 0 <= value <= LONG):
            raise PolicyError(f"fact {key!r} must be of type {_GIVEN[name].__name__} and not negative")
        if name == "isolation" and value not in _LEVELS:
            raise PolicyError(f"fact 'isolation' must be one of {', '.join(_LEVELS)}")
        facts[name] = value
    return facts


def source_facts(kinds: Mapping[str, Kind], given: Mapping[str, Json]) -> dict[str, Json]:
    """`context.source`: where each argument of the tool comes from; what is not known comes from outside.

    Raises:
        PolicyError: a source that does not exist, or of an argument the tool does not have.
    """
    sources = given.get(SOURCES, {})
    if not isinstance(sources, Mapping) or not set(sources) <= set(kinds):
        raise PolicyError("fact 'sources' must name arguments of the tool")
    for name, source in sources.items():
        if source not in _SOURCES:
            raise PolicyError(f"the source of {name!r} must be one of {', '.join(_SOURCES)}")
    return {name: sources.get(name, "untrusted") for name in kinds}


def granted_roles(given: Mapping[str, Json]) -> frozenset[str] | None:
    """Roles that approved this call: None = all that are needed, empty = nobody.

    Raises:
        PolicyError: the fact is neither a boolean nor text.
    """
    value = given.get(APPROVED, False)
    if value is True:
        return None
    if value is False:
        return frozenset()
    if isinstance(value, str):
        return frozenset(value.split("+"))
    raise PolicyError("fact 'approved' must be true, false or the approving roles")


def email_domain(address: str, name: str = "address") -> str:
    """The domain of one plain e-mail address, in lower case.

    Only what every mail system reads alike is accepted: one `@`, ASCII, no quotes, comments, display names, address
    literals or punycode. `a@evil.test@corp.example`, or a Cyrillic letter that looks like `a`, is refused, not parsed.

    Raises:
        PolicyError: the address is ambiguous; it is not repeated in the message.
    """
    refusal = PolicyError(f"{name!r} is not one plain e-mail address (user@domain.tld, ASCII, no quotes)")
    if len(address) > 254 or not address.isascii() or address.count("@") != 1:
        raise refusal
    local, _, domain = address.partition("@")
    domain = domain.lower()
    labels = domain.split(".")
    if len(local) > 64 or not _LOCAL.fullmatch(local) or len(domain) > 253 or len(labels) < 2:
        raise refusal
    if not all(_LABEL.fullmatch(label) and not label.startswith("xn--") for label in labels):
        raise refusal
    if not re.fullmatch(r"[a-z]{2,63}", labels[-1]):
        raise refusal
    return domain


def _typed(name: str, kind: str, value: Json) -> Json:
    if kind == "Bool" and type(value) is bool:
        return value
    if kind == "Long" and type(value) is int and -LONG - 1 <= value <= LONG:
        return value
    if kind == "String" and type(value) is str and len(value) <= MAX_TEXT:
        return value
    if kind.startswith("Set<") and isinstance(value, list | tuple) and len(value) <= MAX_ITEMS:
        return [_typed(name, kind[4:-1], item) for item in value]
    raise PolicyError(f"argument {name!r} is not a {kind} within bounds")
