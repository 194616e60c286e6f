"""Which version serves a session: the traffic split.

Invariant: a pure function of (salt, session, weight). The same session gets the same arm on every replica, and when the
weight grows no session leaves the candidate. It stores nothing: ask once per conversation and keep the answer with it,
so that a conversation that began on the incumbent also stays there when the weight grows.
"""

import hashlib

from agentops.types import Assignment, Release


def position(salt: str, session: str) -> float:
    """Where a session falls in [0, 1): uniform over sessions, independent between salts (SHA-256, 53 bits)."""
    digest = hashlib.sha256(f"{salt}\0{session}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def assign(release: Release | None, stable: str, session: str) -> Assignment:
    """The version that serves `session`, and the probability with which it was chosen.

    Args:
        release: the router's open release, or None.
        stable: artifact digest the registry points to.
        session: conversation id.

    Returns:
        Arm "canary" (the candidate) for a share `release.weight` of sessions while a canary runs; after promotion arm
        "hold_back" (the old version) for a share 1 - weight. Everyone else "stable".
    """
    alone = Assignment("stable", stable, 0.0, release.salt if release else "", 1.0)
    if release is None or release.weight <= 0 or release.stage in ("shadow", "rolled_back"):
        return alone
    if stable != (release.candidate if release.stage == "full" else release.stable):
        return alone  # the pointer was moved by hand, or is being moved: it wins
    weight = min(1.0, release.weight)
    chosen = position(release.salt, session) < weight
    if release.stage == "full":
        if chosen:
            return Assignment("stable", release.candidate, weight, release.salt, weight)
        return Assignment("hold_back", release.stable, weight, release.salt, 1.0 - weight)
    if chosen:
        return Assignment("canary", release.candidate, weight, release.salt, weight)
    return Assignment("stable", release.stable, weight, release.salt, 1.0 - weight)
