"""Tools of other MCP servers, behind our gateway: pinned by digest, confined, and held to our own manifest.

Invariant: nothing that a server says about its tools is believed but what a person pinned. What serves our tools over
MCP is `agentops.server.mcp`.
"""
