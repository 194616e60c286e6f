"""Isolation of tool processes by the operating system: levels, profiles, and processes that can be killed whole.

Invariant: a process runs at the level its caller asked for, or better, or it does not run.
It knows nothing of tools, calls or policies; the worker protocol is built on `spawn`.
"""

from agentops.act.sandbox.level import detect, missing, spawn
from agentops.act.sandbox.process import Sandboxed
from agentops.act.sandbox.profile import Profile

__all__ = ["Profile", "Sandboxed", "detect", "missing", "spawn"]
