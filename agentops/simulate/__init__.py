"""Simulated episodes: the project's own tools and policies in a fresh world on virtual time. It trains nothing."""

from agentops.simulate.compare import Compared, compare
from agentops.simulate.environment import NOT_A_PLAN, START, ProjectEnvironment, agents_of

__all__ = ["NOT_A_PLAN", "START", "Compared", "ProjectEnvironment", "agents_of", "compare"]
