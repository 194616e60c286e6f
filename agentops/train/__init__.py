"""Training: the router's head in seconds; SFT, DPO and GRPO over TRL.

Invariant: importing this package imports no training library; an artifact folder is complete or not there.
"""

from agentops.train.router import fit_head

__all__ = ["fit_head"]
