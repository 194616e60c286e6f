"""The command line run in this process, on a copy of the reference project."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentops.cli import main
from agentops.project import FOLDERS


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def agentops(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command; exit code and what it printed. No traceback may ever show."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["agentops", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code, out, err)

    return run


@pytest.fixture
def copy(repo: Path, tmp_path: Path) -> Path:
    """A copy of the reference project that a test may break."""
    root = tmp_path / "desk"
    root.mkdir()
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    return root
