"""Who calls: an API key or an identity provider's token, and for whom, with which of the rights.

Invariant: tenant, user and roles come from the credential alone; headers name the user a service acts for, within its
tenant, and take rights away. Every refused credential gets one and the same answer; its kind is counted, its content is
not kept.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Annotated

from fastapi import Header, HTTPException

from agentops.config import Settings, loopback
from agentops.errors import AuditError, ConfigError, PolicyError
from agentops.policy import ApiKeys, TokenRefused, Tokens, delegated, identities, narrowed, principal
from agentops.policy.names import asked_scopes
from agentops.policy.tokens import SERVICE
from agentops.types import Principal
from agentops.workspace import Workspace

REPORT_S = 60.0  # between two records of refused credentials
_NEEDED = "a valid credential is needed: Authorization: Bearer ID:SECRET, or a token of a known issuer"
_LOG = logging.getLogger(__name__)


def api_keys(workspace: Workspace) -> ApiKeys | None:
    """The keys of AGENTOPS_API_KEYS; None without any, where something else keeps strangers out.

    Raises:
        ConfigError: others can reach the address, and neither keys nor issuers say who may call.
        PolicyError: a malformed key, or an unusable identities.toml.
    """
    settings: Settings = workspace.project.settings
    if settings.api_keys is not None:
        return ApiKeys.parse(settings.api_keys.get_secret_value(), workspace.project.policies, workspace.clock)
    if not loopback(settings.host) and not identities(workspace.project.policies).issuers:
        raise ConfigError(
            f"host = {settings.host!r} is reachable by others: before serving there, set AGENTOPS_API_KEYS or "
            "add [issuers.NAME] to identities.toml"
        )
    return None


class Refusals:
    """Counts of refused credentials by kind, written once a minute: a flood of bad ones costs one record."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        """Count one."""
        self._counts[kind] += 1

    def flush(self) -> None:
        """Log and record what was counted since the last time. Never raises."""
        counts, self._counts = dict(sorted(self._counts.items())), Counter()
        if not counts:
            return
        _LOG.warning("refused credentials: %s", ", ".join(f"{kind} {number}" for kind, number in counts.items()))
        try:
            self._workspace.audit.post({"type": "auth.refused", "counts": counts})
        except AuditError as error:
            _LOG.error("refused credentials were not recorded: %s", error)

    async def keep(self) -> None:
        """Flush every minute, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.flush()


class Callers:
    """A FastAPI dependency: the principal of a request, or the end of it."""

    def __init__(self, workspace: Workspace, keys: ApiKeys | None, refusals: Refusals) -> None:
        """Args:
        keys: None where only tokens count.
        refusals: counts what is refused.

        Raises:
            ConfigError: without keys, identities.toml has no issuer either: nobody could call.
        """
        self._policies = workspace.project.policies
        self._keys, self._tokens, self._refusals = keys, Tokens(self._policies), refusals
        if keys is None and not identities(self._policies).issuers:
            raise ConfigError("nobody could call: set AGENTOPS_API_KEYS or add [issuers.NAME] to identities.toml")

    async def __call__(
        self,
        authorization: Annotated[str | None, Header()] = None,
        x_agentops_user: Annotated[str | None, Header(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")] = None,
        x_agentops_scopes: Annotated[str | None, Header(max_length=2048)] = None,
    ) -> Principal:
        """The principal, with no more rights than the credential gives.

        Raises:
            HTTPException: 401 no valid credential; 400 a service names no user, or too many scopes are asked for;
                403 it may not act for that user.
        """
        who = await self._authenticated(authorization)
        if SERVICE in who.roles:  # an API key: a service's token needs its user inside (`tokens`)
            who = self._for_user(who, x_agentops_user)
        elif x_agentops_user not in (None, who.user):
            raise HTTPException(403, "only a service key may act for another user")
        if x_agentops_scopes is None:
            return who
        try:
            return narrowed(who, asked_scopes(x_agentops_scopes))
        except PolicyError as error:
            raise HTTPException(400, f"X-Agentops-Scopes: {error}") from None

    async def _authenticated(self, header: str | None) -> Principal:
        scheme, _, credential = (header or "").partition(" ")
        kind = "absent" if header is None else "scheme"
        if scheme.lower() == "bearer" and ":" in credential:  # which no token contains
            who = self._keys.authenticate(header) if self._keys else None
            if who is not None:
                return who
            kind = "api-key"
        elif scheme.lower() == "bearer":
            try:
                return await self._tokens.authenticate(credential.strip())
            except TokenRefused as refused:
                kind = f"token-{refused.kind}"
        self._refusals.add(kind)
        raise HTTPException(401, _NEEDED, {"WWW-Authenticate": "Bearer"})

    def _for_user(self, service: Principal, user: str | None) -> Principal:
        """The user a service key names, in the service's tenant, with the default roles; limited by [actors]."""
        if user is None:
            raise HTTPException(400, "a service key acts for a user: name one in X-Agentops-User")
        try:
            who = principal(self._policies, service.tenant, user)
            known = identities(self._policies)
            if known.actors:
                return delegated(known, who, (service.user,))
        except PolicyError:
            self._refusals.add("actor")
            raise HTTPException(403, "this service may not act for users: see [actors] in identities.toml") from None
        return replace(who, actors=(service.user,))
