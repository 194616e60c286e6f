"""`python -m agentops.cli`."""

from agentops.cli.app import main

main()
