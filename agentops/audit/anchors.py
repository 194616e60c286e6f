"""Anchors: places that the log's owner cannot rewrite, where signed heads of the system logs are published.

An anchor is named by a specification, as in `[tool.agentops] audit_anchors`: `file:/mnt/worm/heads`,
`git:/srv/heads`, `s3://bucket/prefix?days=365`, `http://127.0.0.1:8400#VERIFIER-KEY`.

Invariant: what an anchor says counts only as far as the log's own key signed it, and an anchor that says nothing of
this key is an error, never an agreement. Nothing here writes to a log, and no anchor sees a record: a head is a name,
a count and a hash. It publishes when told; `publishing` does so by itself.
"""

import contextlib
from pathlib import Path
from urllib.parse import urlsplit

from agentops.audit import cosign, names, notes
from agentops.audit.heads import Anchor
from agentops.audit.places import AppendFileAnchor, GitAnchor
from agentops.audit.remote import S3Anchor, WitnessAnchor
from agentops.audit.verify import Claim
from agentops.errors import AuditError


def open_anchor(spec: str) -> Anchor:
    """The anchor that a specification names; nothing is contacted yet.

    Raises:
        AuditError: not a specification of a known kind.
    """
    scheme, _, rest = spec.partition(":")
    if scheme in ("file", "git") and rest.startswith("/"):
        return AppendFileAnchor(spec, Path(rest)) if scheme == "file" else GitAnchor(spec, Path(rest))
    parts = urlsplit(spec)
    if scheme == "s3" and parts.hostname:
        return S3Anchor.parse(spec)
    if scheme in ("http", "https") and parts.hostname and not parts.username:
        return WitnessAnchor(spec)
    raise AuditError(
        f"{spec!r} is not an anchor: use file:/PATH, git:/REPOSITORY, s3://BUCKET/PREFIX?days=N or http(s)://HOST:PORT"
    )


def claims(anchor: Anchor, public: bytes) -> list[Claim]:
    """What an anchor remembers of the logs that this key signs, for `verify`.

    Raises:
        AuditError: it does not answer, or keeps no head of this key.
    """
    found: dict[bytes, Claim] = {}
    for note in anchor.kept():
        note, _ = cosign.split(note)
        if note in found:
            continue
        with contextlib.suppress(AuditError):  # another host's head in a shared place
            head = notes.open_note(note, public)
            if not names.NAME.fullmatch(head.log):  # the same key signs exports
                continue
            found[note] = Claim(head.log, head.size, head.root.hex(), f"the anchor {anchor.spec}")
    if not found:
        raise AuditError(
            f"the anchor {anchor.spec} keeps no head signed by this key: publish one with `agentops audit anchor`; "
            "if it had some, the key was replaced"
        )
    return list(found.values())
