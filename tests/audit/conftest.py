"""A log folder with a few records in it."""

from pathlib import Path

import pytest

from agentops.audit import AuditLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve records and a signed checkpoint, closed."""
    with AuditLog(tmp_path / "audit", "desk") as log:
        for number in range(12):
            log.append_now({"type": "call.intent", "tool": "get_order", "number": number})
    return tmp_path / "audit"


def only(folder: Path, suffix: str) -> Path:
    [path] = folder.glob(f"*.{suffix}")
    return path
