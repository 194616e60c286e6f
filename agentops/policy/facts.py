"""Facts beside a call's arguments: what the gateway counted and saw, where arguments come from, who approved.

Invariant: a fact that is ill-typed, unknown or out of range is a refusal, and a missing one takes its most restrictive
value. Facts of the arguments themselves are made in `arguments`.
"""

from collections.abc import Mapping
from typing import get_args

from agentops.errors import PolicyError
from agentops.policy.arguments import LONG, Argument
from agentops.types import Json, Level, Source, ToolCall

_GIVEN = {
    "calls_used": int,
    "isolation": str,
    "money_used_cents": int,
    "seen_confidentiality": str,
    "untrusted_seen": bool,
}
_CHOICES = {"isolation": get_args(Level), "seen_confidentiality": ("public", "internal", "personal", "secret")}
_SOURCES = get_args(Source)
_OTHER_NAMES = {"labels_seen_untrusted": "untrusted_seen"}
ADDRESSES = "addresses"  # by argument: what the host of a web address was found to have
SOURCES = "sources"  # by argument: becomes `context.source`
APPROVED = "approved"  # bool, or the roles that approved, joined with "+": read by the policy set, not by policies


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
        "seen_confidentiality": "secret",
        "untrusted_seen": True,
    }
    for key, value in given.items():
        if key in (ADDRESSES, APPROVED, SOURCES):
            continue
        name = _OTHER_NAMES.get(key, key)
        if name not in _GIVEN:
            raise PolicyError(
                f"fact {key!r} is not known: the gateway's facts are "
                f"{', '.join((*_GIVEN, ADDRESSES, APPROVED, SOURCES))}"
            )
        if type(value) is not _GIVEN[name] or (isinstance(value, int) and not 0 <= value <= LONG):
            raise PolicyError(f"fact {key!r} must be of type {_GIVEN[name].__name__} and not negative")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise PolicyError(f"fact {key!r} must be one of {', '.join(_CHOICES[name])}")
        facts[name] = value
    return facts


def source_facts(arguments: Mapping[str, Argument], given: Mapping[str, Json]) -> dict[str, Json]:
    """`context.source`: where each argument of the tool comes from; what is not known comes from outside.

    Raises:
        PolicyError: a source that does not exist, or of an argument the tool does not have.
    """
    sources = given.get(SOURCES, {})
    if not isinstance(sources, Mapping) or not set(sources) <= set(arguments):
        raise PolicyError("fact 'sources' must name arguments of the tool")
    for name, source in sources.items():
        if source not in _SOURCES:
            raise PolicyError(f"the source of {name!r} must be one of {', '.join(_SOURCES)}")
    return {name: sources.get(name, "untrusted") for name in arguments}


def found_addresses(given: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """By argument, the addresses of a web address's host; None: nothing was looked up yet.

    Raises:
        PolicyError: not addresses by argument.
    """
    found = given.get(ADDRESSES)
    if found is not None and not isinstance(found, Mapping):
        raise PolicyError("fact 'addresses' must be lists of addresses by argument")
    return found


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
