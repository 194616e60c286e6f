"""Bearer tokens of identity providers: a signed JWT (RFC 7519) becomes a principal, or is refused.

Invariant: a token counts only with a valid signature by a key of the very issuer it names, under an algorithm that
identities.toml allows for it, for our audience, in its time. Tenant, user and roles come from it alone; scopes and
actors in it only take rights away. Where the RFCs leave a choice (8725, 8693, 9068), it refuses. It decides no call.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import httpx
import jwt

from agentops.errors import PolicyError
from agentops.policy.identity import Identities, delegated, identities, narrowed, principal
from agentops.policy.issuers import Issuer
from agentops.policy.jwks import FetchedKeys, FileKeys
from agentops.policy.names import asked_scopes
from agentops.types import Principal

MAX_TOKEN = 8192  # characters
MAX_AGE_S = 24 * 3600  # since `iat`, whatever `exp` says
MAX_ACTORS = 4
MAX_GROUPS = 256
MAX_KID = 256  # characters
SERVICE = "service"  # the role of front ends: they act for users and have no right of their own
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
_TYPES = ("jwt", "at+jwt", "application/at+jwt")  # of an access token (RFC 9068, 2.1)
_UNSUPPORTED = ("crit", "zip", "b64", "enc", "cty")  # extensions, compression, detached and nested tokens
Kind = Literal[
    "actor", "age", "algorithm", "audience", "binding", "claims", "configuration", "expired", "header", "issuer", "key",
    "malformed", "roles", "scope", "service", "signature", "size", "tenant", "time", "user",
]  # fmt: skip
_KINDS: tuple[tuple[type[jwt.PyJWTError], Kind], ...] = (
    (jwt.ExpiredSignatureError, "expired"),
    (jwt.ImmatureSignatureError, "time"),
    (jwt.InvalidSignatureError, "signature"),
    (jwt.InvalidAudienceError, "audience"),
    (jwt.InvalidIssuerError, "issuer"),
    (jwt.InvalidAlgorithmError, "algorithm"),
    (jwt.MissingRequiredClaimError, "claims"),
)


class TokenRefused(PolicyError):
    """A token that gives no principal. `kind` is for operators; callers get the same answer whatever it is."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"the token was refused ({kind})")
        self.kind: Kind = kind


class Tokens:
    """Tokens of the issuers in `policies`/identities.toml; a change of the file counts at once."""

    def __init__(self, policies: Path, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport`: of the HTTP client that fetches keys; None: the network."""
        self._policies, self._transport = policies, transport
        self._known: Identities | None = None
        self._keys: dict[tuple[str, ...], FileKeys | FetchedKeys] = {}

    async def authenticate(self, token: str) -> Principal:
        """The principal of a compact JWT.

        Raises:
            TokenRefused: with the first reason that was found.
        """
        try:
            known = identities(self._policies)
        except PolicyError:
            raise TokenRefused("configuration") from None
        header, issuer = _addressed(token, known)
        algorithm, kid = header["alg"], header.get("kid", "")
        if algorithm not in issuer.algorithms:
            raise TokenRefused("algorithm")
        if not isinstance(kid, str) or len(kid) > MAX_KID:
            raise TokenRefused("key")
        key = await self._of(issuer, known).find(kid, algorithm)
        if key is None:
            raise TokenRefused("key")
        return principal_of(self._policies, issuer, _verified(token, key, issuer))

    def _of(self, issuer: Issuer, known: Identities) -> FileKeys | FetchedKeys:
        if known is not self._known:  # keys of what did not change are kept
            current = {_place(one) for one in known.issuers.values()}
            self._keys = {place: keys for place, keys in self._keys.items() if place in current}
            self._known = known
        place = _place(issuer)
        if place not in self._keys:
            self._keys[place] = (
                FileKeys(self._policies / issuer.jwks, issuer.algorithms)
                if issuer.jwks
                else FetchedKeys(issuer.jwks_url, issuer.algorithms, transport=self._transport)
            )
        return self._keys[place]


def _place(issuer: Issuer) -> tuple[str, ...]:
    return (issuer.jwks, issuer.jwks_url, *issuer.algorithms)


def principal_of(policies: Path, issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Who verified claims speak for, with the rights: user's roles ∩ scopes of the token ∩ what each actor may use.

    Raises:
        TokenRefused: a claim is missing, malformed or names what identities.toml does not know.
    """
    known = identities(policies)
    user = claims.get(issuer.user_claim)
    verified = issuer.user_claim != "email" or claims.get("email_verified") is True  # else anyone can set it
    if not isinstance(user, str) or not verified:
        raise TokenRefused("user")
    tenant = issuer.tenant or claims.get(issuer.tenant_claim)
    speaks = not known.tenants or (isinstance(tenant, str) and issuer.name in known.tenants.get(tenant, ()))
    if not isinstance(tenant, str) or not speaks:
        raise TokenRefused("tenant")
    actors = _actors(claims.get("act"), issuer) if "act" in claims else ()
    try:
        who = principal(policies, tenant, user, _roles(issuer, known, claims, bool(actors)))
    except TokenRefused:
        raise
    except PolicyError:
        raise TokenRefused("user") from None
    for name in ("scope", "scp"):
        if name in claims:
            who = narrowed(who, _scopes(claims[name]))
    try:
        return delegated(known, who, actors)
    except PolicyError:
        raise TokenRefused("actor") from None


def _addressed(token: str, known: Identities) -> tuple[Mapping[str, Any], Issuer]:
    """The header and the issuer a token names. Nothing of it is believed yet: it only chooses whose keys are tried."""
    if len(token) > MAX_TOKEN:
        raise TokenRefused("size")
    if not token.isascii() or token.count(".") != 2:
        raise TokenRefused("malformed")
    try:
        read = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise TokenRefused("malformed") from None
    header, claimed = read["header"], read["payload"].get("iss")
    kind = header.get("typ", "JWT")
    if any(name in header for name in _UNSUPPORTED) or not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("header")
    if not isinstance(header.get("alg"), str):
        raise TokenRefused("algorithm")
    issuer = known.issuers.get(claimed) if isinstance(claimed, str) else None
    if issuer is None:
        raise TokenRefused("issuer")
    return header, issuer


def _verified(token: str, key: jwt.PyJWK, issuer: Issuer) -> Mapping[str, Any]:
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=list(issuer.algorithms),
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=issuer.leeway_s,
            options={"require": _REQUIRED, "enforce_minimum_key_length": True},
        )
        old = time.time() - float(claims["iat"]) > MAX_AGE_S + issuer.leeway_s
    except jwt.PyJWTError as error:
        for type, kind in _KINDS:
            if isinstance(error, type):
                raise TokenRefused(kind) from None
        raise TokenRefused("claims") from None
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise TokenRefused("claims") from None
    if old:
        raise TokenRefused("age")
    if "cnf" in claims:  # bound to a key of the sender (RFC 7800): whoever shows it here may have stolen it
        raise TokenRefused("binding")
    return claims


def _roles(issuer: Issuer, known: Identities, claims: Mapping[str, Any], acted_for: bool) -> tuple[str, ...]:
    names = set(known.default_roles)
    if issuer.roles_claim:
        groups = claims.get(issuer.roles_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
            raise TokenRefused("roles")
        names = {issuer.roles[group] for group in groups if isinstance(group, str) and group in issuer.roles}
    if SERVICE in names and not acted_for:  # no actor, no service
        raise TokenRefused("service")
    if not names - {SERVICE}:
        raise TokenRefused("roles")
    return tuple(sorted(names - {SERVICE}))


def _actors(act: Any, issuer: Issuer) -> tuple[str, ...]:
    """The services in an `act` claim (RFC 8693, 4.1), outermost, which is the current one, first."""
    actors: list[str] = []
    while act is not None:
        name = act.get("sub") if isinstance(act, dict) else None
        if not isinstance(name, str) or act.get("iss", issuer.issuer) != issuer.issuer or len(actors) == MAX_ACTORS:
            raise TokenRefused("actor")
        actors.append(name)
        act = act.get("act")
    if not actors:
        raise TokenRefused("actor")
    return tuple(actors)


def _scopes(claim: Any) -> frozenset[str]:
    if isinstance(claim, list) and all(isinstance(one, str) for one in claim):
        claim = " ".join(claim)
    if not isinstance(claim, str):
        raise TokenRefused("scope")
    try:
        return asked_scopes(claim)
    except PolicyError:
        raise TokenRefused("scope") from None
