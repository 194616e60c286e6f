"""Everything kept on disk or shared between processes: the lake of spans, artifacts by digest, small shared state.

Invariant: a value is visible whole or not at all, and what was acknowledged survives a crash of the process.
Nothing here knows what a span, a policy or a model means.
"""

from agentops.store.artifacts import Artifacts
from agentops.store.lake import Lake
from agentops.store.schemas import FEEDBACK_SCHEMA, SPAN_SCHEMA, TABLES, VERDICT_SCHEMA
from agentops.store.state import State, open_state
from agentops.store.state_memory import MemoryState

__all__ = [
    "FEEDBACK_SCHEMA",
    "SPAN_SCHEMA",
    "TABLES",
    "VERDICT_SCHEMA",
    "Artifacts",
    "Lake",
    "MemoryState",
    "State",
    "open_state",
]
