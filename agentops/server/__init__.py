"""HTTP: OpenAI-compatible chat completions, feedback and approvals, behind an API key."""

from agentops.server.app import create_app

__all__ = ["create_app"]
