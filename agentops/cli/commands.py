"""Every command, registered once when this module is first imported, in the order a newcomer meets them."""

from agentops.cli import auditing, demo, governance, kill, offline, online, policies, releases, setup, tools, traces
from agentops.cli.app import app

for part in (setup, online, traces, offline, releases, governance, auditing, policies, tools, kill, demo):
    part.register(app)
