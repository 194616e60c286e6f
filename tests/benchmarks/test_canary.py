"""The canary benchmark runs as its users run it, and reports every measure it is held to."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_quick_run_reports_every_measure(repo: Path, tmp_path: Path):
    file = tmp_path / "canary.json"
    command = [sys.executable, "-m", "benchmarks.canary", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    table = json.loads(file.read_text())
    goals = tomllib.loads((repo / "benchmarks" / "measures.toml").read_text())["canary"]
    assert list(table["measures"]) == list(goals)
    assert table["benchmark"] == "canary"
    assert table["measures"]["drop5_rollback"] > 0.8
    for name in goals:
        assert name in done.stdout
