"""Log folders with a few records in them, and a thief of their key."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentops.audit import AuditLog, frames, notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve records and a signed checkpoint, closed."""
    with AuditLog(tmp_path / "audit", "desk") as log:
        for number in range(12):
            log.append_now({"type": "call.intent", "tool": "get_order", "number": number})
    return tmp_path / "audit"


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    """Six records of each of three tenants and two of none, closed: a system log and three tenants' logs."""
    with AuditLog(tmp_path / "audit", "desk") as log:
        log.append_now({"type": "release.start", "number": 0})
        for number in range(6):
            for tenant in ("acme", "Beta.Corp@eu", "gamma"):
                log.append_now({"type": "tool.intent", "tenant": tenant, "number": number, "text": "naïve €"})
        log.append_now({"type": "release.end", "number": 1})
    return tmp_path / "audit"


@pytest.fixture
def one() -> Callable[[Path, str], Path]:
    """The only file of a folder that fits a pattern."""

    def find(folder: Path, pattern: str) -> Path:
        [path] = folder.glob(pattern)
        return path

    return find


@pytest.fixture
def rewrite() -> Callable[..., None]:
    """Change a log and recompute all that follows from it, signature included, as a thief of the key would."""

    def steal(path: Path, name: str, key: Ed25519PrivateKey, change: Callable[[bytes], bytes]) -> None:
        data, public, parts = path.read_bytes(), notes.public_bytes(key), []
        link = frames.genesis(name, public)
        for _, leaf in frames.leaves(data, len(data)):
            part, link = frames.frame(link, change(leaf[frames.BODY :]), notes.seal_secret(key))
            parts.append(part)
        path.write_bytes(b"".join(parts))
        walk = frames.walk(path.read_bytes(), name, public)
        note = notes.sign(notes.Checkpoint(name, walk.tree.size, walk.tree.root(), 0), key)
        path.with_suffix(".checkpoint").write_bytes(note)

    return steal
