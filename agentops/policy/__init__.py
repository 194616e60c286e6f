"""What may be done, by whom, how often, and with whose approval.

Invariant: everything here fails closed. `PolicySet.decide` never raises and allows only what a policy permits.
"""

from agentops.policy.identity import ApiKeys, DailyLimits, identities, principal
from agentops.policy.policyset import PolicySet
from agentops.policy.schema import generate_schema

__all__ = ["ApiKeys", "DailyLimits", "PolicySet", "generate_schema", "identities", "principal"]
