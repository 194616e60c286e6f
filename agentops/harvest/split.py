"""Train and validation without a leak: groups of rows that belong together fall on one side.

Invariant: rows whose requests have the same wording (numbers masked), are near copies of each other (linked by Jaccard
>= .8), or are trials of one task, are one group; a group's side depends only on its own texts, so the order of rows and
the presence of other groups do not move it. Rows that carry history are also kept apart by session: a training row
of a session that has a validation row is dropped.
"""

import hashlib
from collections.abc import Sequence

from agentops.harvest.similar import clusters, normal, root, shingles

RULE = (
    "group = same wording (digits masked), near copy (Jaccard >= .8 of word 3-shingles) or same task; validation when "
    "the first 8 bytes of SHA-256('split' + the least of the group's request digests), as a fraction of 2^64, is below "
    "the share; a training row whose session is in validation is dropped (kinds with conversation history)"
)


def groups(requests: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """For each row the id of its group."""
    forms = [normal(request, mask=True) for request in requests]
    unique = {form: at for at, form in enumerate(dict.fromkeys(sorted(forms)))}
    parent = clusters([shingles(form) for form in unique])
    first_of_task: dict[str, int] = {}
    for form, task in zip(forms, tasks, strict=True):
        if task:
            low, high = sorted((root(parent, first_of_task.setdefault(task, unique[form])), root(parent, unique[form])))
            parent[high] = low
    least: dict[int, str] = {}
    for form, at in unique.items():
        digest = hashlib.sha256(form.encode("utf-8", "replace")).hexdigest()
        top = root(parent, at)
        least[top] = min(least.get(top, digest), digest)
    return [least[root(parent, unique[form])] for form in forms]


def in_validation(group: str, share: float) -> bool:
    """Whether a group belongs to validation: deterministic, uniform over groups."""
    fraction = int.from_bytes(hashlib.sha256(f"split{group}".encode()).digest()[:8]) / 2**64
    return fraction < share
