"""Feedback and verdicts: append-only rows beside the spans, joined to them by trace id.

Invariant: texts are redacted before they are written, also when the caller has not done so; nothing is ever changed,
the newest of a user (feedback) or of a verifier (verdicts) wins when they are read.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from agentops.redact import Redactor
from agentops.store import Lake
from agentops.types import Feedback, Outcome, Trajectory, Verdict


def write_feedback(
    lake: Lake, feedback: Sequence[Feedback], service: str, redactor: Redactor | None = None, tenant: str = ""
) -> None:
    """Append what people said.

    Args:
        lake: where to.
        feedback: `user` is a pseudonym (`Redactor.pseudonym("USER", …)`).
        service: the service that received it.
        redactor: the deployment's; without one, texts are redacted with pseudonyms nothing else shares.
        tenant: whose pseudonyms.

    Raises:
        StoreError: it cannot be written.
    """
    clean = (redactor or _stranger()).text
    rows = [
        asdict(
            replace(
                one,
                user=clean(one.user, tenant),
                comment=clean(one.comment, tenant),
                corrected_answer=clean(one.corrected_answer, tenant),
            )
        )
        for one in feedback
    ]
    lake.write("feedback", [{**row, "corrected_labels": list(row["corrected_labels"])} for row in rows], service)


def write_verdicts(
    lake: Lake, verdicts: Sequence[Verdict], service: str, redactor: Redactor | None = None, tenant: str = ""
) -> None:
    """Append what verifiers found; arguments and errors as `write_feedback`."""
    clean = (redactor or _stranger()).text
    lake.write("verdicts", [asdict(replace(one, evidence=clean(one.evidence, tenant))) for one in verdicts], service)


def default_outcome(trajectory: Trajectory) -> Outcome:
    """Success by the newest verdict that could tell, else by the newest thumbs, else unknown."""
    told = [verdict for verdict in trajectory.verdicts if verdict.success is not None]
    if told:
        newest = max(told, key=lambda verdict: verdict.at)
        return Outcome(1 if newest.success else 0, f"verdict:{newest.verifier}")
    thumbs = [one for one in trajectory.feedback if one.score]
    if thumbs:
        return Outcome(1 if max(thumbs, key=lambda one: one.at).score > 0 else 0, "feedback")
    return Outcome(None)


def latest_feedback(rows: Iterable[Mapping[str, Any]]) -> tuple[Feedback, ...]:
    """The newest of each user, oldest first."""
    newest: dict[str, Feedback] = {}
    for row in sorted(rows, key=lambda row: row["at"] or 0.0):
        score = row["score"] if row["score"] in (-1, 0, 1) else 0
        newest.pop(row["user"] or "", None)
        newest[row["user"] or ""] = Feedback(
            trace_id=row["trace_id"],
            score=score,
            at=row["at"] or 0.0,
            user=row["user"] or "",
            comment=row["comment"] or "",
            corrected_answer=row["corrected_answer"] or "",
            corrected_labels=tuple(row["corrected_labels"] or ()),
        )
    return tuple(newest.values())


def latest_verdicts(rows: Iterable[Mapping[str, Any]]) -> tuple[Verdict, ...]:
    """The newest of each verifier, oldest first."""
    newest: dict[str, Verdict] = {}
    for row in sorted(rows, key=lambda row: row["at"] or 0.0):
        newest.pop(row["verifier"] or "", None)
        newest[row["verifier"] or ""] = Verdict(
            trace_id=row["trace_id"],
            verifier=row["verifier"] or "",
            success=row["success"],
            score=row["score"],
            evidence=row["evidence"] or "",
            at=row["at"] or 0.0,
        )
    return tuple(newest.values())


OutcomeRule = Callable[[Trajectory], Outcome]


@cache
def _stranger() -> Redactor:
    return Redactor(secrets.token_bytes(32))
