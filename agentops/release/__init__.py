"""Who serves and who decides it: pointers, the traffic split, sequential tests and the controller of a release.

Invariant: no version serves that was not registered, and nothing moves a release but the rules in
`policies/release.toml`, the evidence and a named person; each with a record in the audit log.
"""

from agentops.release.assignment import assign
from agentops.release.controller import OPEN, Controller, Ruling
from agentops.release.registry import Registry
from agentops.release.replay import Replay, ReplayUnit, replay
from agentops.release.rules import Rules, load_rules, problems
from agentops.release.sessions import Metrics

__all__ = [
    "OPEN",
    "Controller",
    "Metrics",
    "Registry",
    "Replay",
    "ReplayUnit",
    "Rules",
    "Ruling",
    "assign",
    "load_rules",
    "problems",
    "replay",
]
