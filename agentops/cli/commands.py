"""Every command, registered on one application."""

import typer

from agentops.cli import demo, governance, offline, online, releases, setup, traces

PARTS = (setup, online, traces, offline, releases, governance, demo)


def register(app: typer.Typer) -> None:
    """Add all commands to `app`, in the order a newcomer meets them."""
    for part in PARTS:
        part.register(app)
