"""Routing: which label, and so which sub-agent, a message is for.

Invariant: importing this package imports no model library. What a router was fitted on is `agentops.train`'s business.
"""

from agentops.route.text import TextRouter, Thresholds

__all__ = ["TextRouter", "Thresholds"]
