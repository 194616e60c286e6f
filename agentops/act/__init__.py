"""Tools and the only door to them."""

from agentops.act.tool import Context, tool
from agentops.types import CacheRule, Labels

__all__ = ["CacheRule", "Context", "Labels", "tool"]
