"""How the live tools of MCP servers stand to the pinned ones, kept in the shared state for those who only look.

Invariant: a change is recorded in the audit log once, whoever of many processes sees it first. Keeping it can fail and
blocks nothing: a connection holds its server to the lock by itself.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

from agentops.act.mcp.lock import State
from agentops.act.mcp.remote import Declared
from agentops.errors import AuditError, StoreError
from agentops.types import Tool

if TYPE_CHECKING:  # built by the conductors
    from agentops.audit import Audit
    from agentops.store import State as Shared

_KEY = "mcp/tool/"
_LOG = logging.getLogger(__name__)


class States:
    """What `Servers` reports to."""

    def __init__(self, shared: "Shared", audit: "Audit") -> None:
        self._shared, self._audit = shared, audit

    def changed(self, tenant: str, tool: Declared, state: State, live: str) -> None:
        """Keep a tool's state, and record that it is another one than before.

        Args:
            tenant: whose connection saw it; "" = a connection for all.
            tool: the pinned tool.
            state: how the server's definition stands to it.
            live: digest of the server's definition; "" when it has none.
        """
        key, pinned = f"{_KEY}{tool.spec.name}", tool.definition.digest
        value = orjson.dumps([pinned, state, live])
        try:
            found = self._shared.get(key)
            if (found is None and state == "ok") or (found is not None and found[0] == value):
                return
            if not self._shared.compare_and_set(key, value, 0 if found is None else found[1]):
                return  # another process was first, and records it
            self._audit.post(
                {
                    "type": "mcp.changed",
                    "tenant": tenant,
                    "pack": tool.server.pack,
                    "tool": tool.spec.name,
                    "state": state,
                    "pinned": pinned,
                    "live": live,
                }
            )
        except (StoreError, AuditError) as error:
            _LOG.error("that tool %s is %s was not kept: %s", tool.spec.name, state, error)


def states(shared: "Shared", tools: Mapping[str, Tool]) -> dict[str, State]:
    """The last known state of each tool of an MCP pack; "ok" where nobody has seen another since it was pinned.

    Raises:
        StoreError: the shared state cannot answer.
    """
    known: dict[str, State] = {}
    for name, tool in tools.items():
        if isinstance(tool.function, Declared):
            found = shared.get(f"{_KEY}{name}")
            pinned, state, _ = orjson.loads(found[0]) if found else (tool.function.definition.digest, "ok", "")
            known[name] = state if pinned == tool.function.definition.digest else "ok"
    return known
