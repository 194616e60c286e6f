"""What one user, and one tenant with all its users, may use in a day: `[limits]` of `policies/identities.toml`.

Invariant: what the file does not limit for a user has a finite default; a tenant has only the limits that are written.
It counts nothing: `Budgets` does. A request's own limits are its agent's, in `routers/*/router.toml`.
"""

from dataclasses import dataclass, replace
from typing import Any

NO_LIMIT = 2**53 - 1  # the largest whole number that every JSON reader keeps exact
_KEYS = {
    "calls_per_day": "calls",
    "money_cents_per_day": "money_cents",
    "tokens_per_day": "tokens",
    "seconds_per_day": "seconds",
}
_RULE = f"whole numbers below 2^43 for {', '.join(_KEYS)}"


@dataclass(frozen=True, slots=True)
class DailyLimits:
    """What may be used in one day (UTC), over all runs and replicas."""

    calls: int = 100_000
    money_cents: int = 1_000_000
    tokens: int = 20_000_000  # of language models, read and written
    seconds: int = 86_400  # that tools and models were busy; several may be busy at once


UNLIMITED = DailyLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT // 1000)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of every user, and of a tenant with all its users together."""

    user: DailyLimits = DailyLimits()
    tenant: DailyLimits = UNLIMITED


def parse_limits(table: Any) -> tuple[Limits, list[tuple[str, str]]]:
    """`[limits]` and `[limits.tenant]` as limits, and (table, what is wrong with it) of each fault."""
    given = dict(table) if isinstance(table, dict) else table
    tenant = given.pop("tenant", {}) if isinstance(given, dict) else {}
    faults = []
    if not _fits(given):
        faults.append(("limits", f"[limits] has {_RULE}, and the table [limits.tenant]; nothing else"))
    if not _fits(tenant):
        faults.append(("limits.tenant", f"[limits.tenant] has {_RULE}; nothing else"))
    if faults:
        return Limits(), faults
    return Limits(replace(DailyLimits(), **_named(given)), replace(UNLIMITED, **_named(tenant))), []


def _fits(table: Any) -> bool:
    if not isinstance(table, dict) or set(table) - set(_KEYS):
        return False
    return all(type(value) is int and 0 <= value < 2**43 for value in table.values())


def _named(table: dict[str, int]) -> dict[str, int]:
    return {_KEYS[key]: value for key, value in table.items()}
