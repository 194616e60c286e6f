"""What names of tenants, users, roles and scopes look like, wherever they come from.

Invariant: what passes here is short printable ASCII without space, colon, slash or quote, so it can stand in a key, a
header or a policy. It knows no tenant and no role: `identity` does.
"""

import re

from agentops.errors import PolicyError

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")  # of roles, issuers and keys
SCOPE = re.compile(r"[a-z][a-z0-9_-]{0,62}:[a-z][a-z0-9_-]{0,62}")
SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")  # a tenant, a user, or a service that acts for one
MAX_SCOPES = 64  # in one header or claim


def checked_names(tenant: str, user: str) -> None:
    """Raises:
    PolicyError: a tenant or user name that is not allowed.
    """
    for kind, value in (("tenant", tenant), ("user", user)):
        if not SUBJECT.fullmatch(value):
            raise PolicyError(f"{kind} {value[:80]!r} is not allowed: letters, digits, _ . @ -, at most 64 characters")


def asked_scopes(text: str) -> frozenset[str]:
    """The scopes in a space-separated list (RFC 6749, 3.3); what is no scope of ours ("openid") is left out.

    Raises:
        PolicyError: more than 64 of them.
    """
    given = text.split(" ", MAX_SCOPES)
    if len(given) > MAX_SCOPES:
        raise PolicyError(f"more than {MAX_SCOPES} scopes are asked for: name those that are needed")
    return frozenset(one for one in given if SCOPE.fullmatch(one))
