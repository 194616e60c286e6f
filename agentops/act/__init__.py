"""Tools and the only door to them."""

from agentops.act.gateway import ToolGateway
from agentops.act.scheduler import execute, idempotency_key
from agentops.act.tool import Context, Marked, tool
from agentops.types import CacheRule, Labels

__all__ = ["CacheRule", "Context", "Labels", "Marked", "ToolGateway", "execute", "idempotency_key", "tool"]
