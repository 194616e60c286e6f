"""The `agentops` command."""

from agentops.cli.app import main

__all__ = ["main"]
