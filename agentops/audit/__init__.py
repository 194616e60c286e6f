"""Append-only audit: canonical records in a Merkle log with signed checkpoints, verifiable by an outsider.

Invariant: `append` returns after the record is on disk; no change to what was written passes `verify` unless it was
made with the signing key or undoes the last few seconds together with the checkpoint. `anchors` publishes heads to
where the log's owner cannot write; with them those changes are caught too.
"""

from agentops.audit.canonical import canonical, digest, digest_value
from agentops.audit.log import Audit, AuditLog, MemoryAudit
from agentops.audit.merkle import inclusion_proof, verify_inclusion
from agentops.audit.sealed import SealedRecords
from agentops.audit.subjects import SubjectKeys
from agentops.audit.verify import AuditProblem, AuditReport, Claim, records, verify

__all__ = [
    "Audit",
    "AuditLog",
    "AuditProblem",
    "AuditReport",
    "Claim",
    "MemoryAudit",
    "SealedRecords",
    "SubjectKeys",
    "canonical",
    "digest",
    "digest_value",
    "inclusion_proof",
    "records",
    "verify",
    "verify_inclusion",
]
