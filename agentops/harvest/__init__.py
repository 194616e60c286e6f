"""Traces to training data: select, redact, deduplicate, decontaminate, split; every row explained."""

from agentops.harvest.exclusion import Exclusion
from agentops.harvest.pipeline import KINDS, harvest

__all__ = ["KINDS", "Exclusion", "harvest"]
