"""Plans: the plan language and its parser, playbooks (templates filled from the request) and model-written plans.

Invariant: whatever wrote a plan, it becomes a DAG only through `language.parse`. Nothing here runs a step.
"""

from agentops.plan.answer import answer
from agentops.plan.fallback import WithFallback
from agentops.plan.language import format, parse
from agentops.plan.llm import ModelPlanner
from agentops.plan.merge import merged
from agentops.plan.playbooks import Playbooks, hand_over

__all__ = ["ModelPlanner", "Playbooks", "WithFallback", "answer", "format", "hand_over", "merged", "parse"]
