"""What happened, as spans: recorded here or brought in from elsewhere, and read back as trajectories.

Invariant: whatever its origin, an episode is stored as redacted spans and read as one `Trajectory`; feedback and
verdicts join it by trace id. Routing, policy and training know nothing of spans.
"""

from agentops.trace import names
from agentops.trace.importing import ImportReport, import_files
from agentops.trace.reading import summaries, trajectories, trajectory
from agentops.trace.records import default_outcome, write_feedback, write_verdicts
from agentops.trace.tracing import Tracing, attribute, continued, set_attributes

__all__ = [
    "ImportReport",
    "Tracing",
    "attribute",
    "continued",
    "default_outcome",
    "import_files",
    "names",
    "set_attributes",
    "summaries",
    "trajectories",
    "trajectory",
    "write_feedback",
    "write_verdicts",
]
