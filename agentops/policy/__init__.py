"""What may be done, by whom, how often, and with whose approval.

Invariant: everything here fails closed. `PolicySet.decide` never raises and allows only what a policy permits; an
approval is used once and only for the call it was given for; reservations never pass a limit.
"""

from agentops.policy.approvals import Approval, Approvals, approval_record
from agentops.policy.budgets import Budgets, Reservation
from agentops.policy.decisions import policy_problems, write_schema
from agentops.policy.identity import ApiKeys, DailyLimits, Identities, identities, principal
from agentops.policy.policyset import PolicySet
from agentops.policy.schema import generate_schema

__all__ = [
    "ApiKeys",
    "Approval",
    "Approvals",
    "Budgets",
    "DailyLimits",
    "Identities",
    "PolicySet",
    "Reservation",
    "approval_record",
    "generate_schema",
    "identities",
    "policy_problems",
    "principal",
    "write_schema",
]
