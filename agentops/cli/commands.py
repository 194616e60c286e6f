"""Every command, registered once when this module is first imported, in the order a newcomer meets them."""

from agentops.cli import demo, governance, kill, offline, online, releases, setup, traces
from agentops.cli.app import app

for part in (setup, online, traces, offline, releases, governance, kill, demo):
    part.register(app)
