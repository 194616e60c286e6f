"""docs/governance.md is run from top to bottom on a copy of the reference project: each command prints what it shows.

```console``` blocks are run in order; ```LANGUAGE PATH``` blocks are written to (or added to) that file; a ```toml```
block without a path is an excerpt of identities.toml; ```text``` is not run. In what is shown `…` ends a line early and
alone stands for any lines. Times, durations, confidences and counts of records differ from run to run. Ids differ too:
the page's stand for those met in their place, so that a command may name what an earlier one has shown.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentops import project as projects
from agentops.cli import main
from agentops.project import FOLDERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "governance.md"
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b[0-9a-f]{12,64}\b")
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC"), "TIME"),
    (re.compile(r"\b\d+ (ms|s)\b"), r"N \1"),
    (re.compile(r"\(\d\.\d\d, "), "(0.00, "),
    (re.compile(r"\b(record|records:|checkpoints:|compared:) \d+"), r"\1 N"),
    (re.compile(r"\b\d+ (records|signed ones)"), r"N \1"),
    (re.compile(r"(\"(?:at|index|since|until|requested_at|expires_at|decided_at)\": )[\d.]+"), r"\1N"),
    (re.compile(r"(tenants/\S+) \d+$"), r"\1 N"),  # a log and an index in it
    (re.compile(r"\s+"), " "),
)


@dataclass
class Reader:
    """Follows the page; knows which of its ids stands for which real one."""

    root: Path
    ids: dict[str, str] = field(default_factory=dict)

    def real(self, text: str) -> str:
        return ID.sub(lambda found: self.ids.get(found[0], found[0]), text)

    def compare(self, shown: list[str], printed: list[str], command: str) -> None:
        rest = iter(printed)
        anything = False
        for line in shown:
            if line.strip() == "…":
                anything = True
                continue
            for actual in rest:
                if self._same(line, actual):
                    break
                assert anything, f"{command}\nshown:   {line}\nprinted: {actual}"
            else:
                pytest.fail(f"{command}\nshown and not printed: {line}\nprinted:\n" + "\n".join(printed))
            anything = False
        left = list(rest)
        assert anything or not left, f"{command}\nprinted and not shown: {left}"

    def _same(self, shown: str, printed: str) -> bool:
        cut = shown.rstrip().endswith("…")
        wanted, got = normal(shown.rstrip().removesuffix("…")), normal(printed)
        mine, theirs = ID.findall(wanted), ID.findall(got)[: len(ID.findall(wanted))]
        wanted, got = ID.sub("ID", wanted), ID.sub("ID", got)
        if not (got.startswith(wanted) if cut else got == wanted):
            return False
        for page, real in zip(mine, theirs, strict=True):
            assert self.ids.setdefault(page, real) == real, f"{page} stands for two ids"
        return True


def normal(line: str) -> str:
    for pattern, text in VARYING:
        line = pattern.sub(text, line)
    return line.strip()


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


@pytest.fixture
def desk(repo: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "desk"
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    yield root
    projects.mount(repo)


@pytest.fixture
def run(desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    monkeypatch.chdir(desk)

    def one(command: str) -> list[str]:
        if not command.startswith("agentops "):
            done = subprocess.run(["bash", "-ec", command], cwd=desk, capture_output=True, text=True, check=True)
            return done.stdout.splitlines()
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", shlex.split(command.replace("$PWD", str(desk))))
        try:
            main()
        except SystemExit:
            pass  # what it says of a failure is compared too
        out, err = capsys.readouterr()
        return [line for line in (out + err).replace(str(desk), "$PWD").splitlines() if line.strip()]

    return one


def test_the_page_as_run(desk: Path, run: Callable[[str], list[str]], repo: Path) -> None:
    reader = Reader(desk)
    identities = (repo / "policies" / "identities.toml").read_text()
    for language, path, block in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            for command, shown in commands(block):
                reader.compare([line for line in shown if line.strip()], run(reader.real(command)), command)
        elif path:
            file = desk / path
            file.parent.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as opened:
                opened.write(block)
        elif language == "toml":
            assert block in identities
