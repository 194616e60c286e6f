"""What may be done, by whom, how often, and with whose approval.

Invariant: everything here fails closed. `PolicySet.decide` never raises and allows only what a policy permits; an
approval is used once and only for the call it was given for; reservations never pass a limit.
"""

from agentops.policy.approvals import Approval, Approvals, approval_record
from agentops.policy.budgets import Budgets, Reservation, TokenMeter
from agentops.policy.counters import Refused
from agentops.policy.decisions import policy_problems, write_schema
from agentops.policy.effects import Effects
from agentops.policy.identity import DECIDE, Identities, delegated, identities, narrowed, principal, renewed
from agentops.policy.keys import ApiKeys
from agentops.policy.killswitch import Kill, KillSwitch
from agentops.policy.labels import Readings
from agentops.policy.limits import UNLIMITED, DailyLimits, Limits
from agentops.policy.live import LivePolicy, PolicyStatus
from agentops.policy.policyset import PolicySet
from agentops.policy.replay import DecisionRecords
from agentops.policy.schema import generate_schema
from agentops.policy.tokens import TokenRefused, Tokens

__all__ = [
    "DECIDE",
    "UNLIMITED",
    "ApiKeys",
    "Approval",
    "Approvals",
    "Budgets",
    "DailyLimits",
    "DecisionRecords",
    "Effects",
    "Identities",
    "Kill",
    "KillSwitch",
    "Limits",
    "LivePolicy",
    "PolicySet",
    "PolicyStatus",
    "Readings",
    "Refused",
    "Reservation",
    "TokenMeter",
    "TokenRefused",
    "Tokens",
    "approval_record",
    "delegated",
    "generate_schema",
    "identities",
    "narrowed",
    "policy_problems",
    "principal",
    "renewed",
    "write_schema",
]
