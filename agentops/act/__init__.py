"""Tools and the only door to them."""

from agentops.act.gateway import ToolGateway
from agentops.act.scheduler import execute, idempotency_key
from agentops.act.tool import Context, Marked, tool
from agentops.act.values import Cents, Domain, Email, FilePath, Url
from agentops.types import CacheRule, Labels

__all__ = [
    "CacheRule",
    "Cents",
    "Context",
    "Domain",
    "Email",
    "FilePath",
    "Labels",
    "Marked",
    "ToolGateway",
    "Url",
    "execute",
    "idempotency_key",
    "tool",
]
