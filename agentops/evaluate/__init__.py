"""Measuring: frozen suites, paired comparisons with intervals, gates, reports.

Invariant: a number always comes with its interval and its n, and a verdict that the data cannot give is "inconclusive".
"""

from agentops.evaluate.agents import evaluate_agent
from agentops.evaluate.gates import gate, gate_problems
from agentops.evaluate.report import from_json, junit, load, rows, save, to_json
from agentops.evaluate.routers import evaluate_router, latencies
from agentops.evaluate.suites import Suite, load_suite, suite_of

__all__ = [
    "Suite",
    "evaluate_agent",
    "evaluate_router",
    "from_json",
    "gate",
    "gate_problems",
    "junit",
    "latencies",
    "load",
    "load_suite",
    "rows",
    "save",
    "suite_of",
    "to_json",
]
