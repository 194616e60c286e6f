"""docs/security.md is kept true: every attack has a row, every test it names exists, every command parses."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from agentops.cli import commands

ATTACKS = """
erroring forbid; bad reload; empty policy set; NaN; 2^63; duplicate keys; depth 10,000; 50 MB arguments;
`__entity` keys; `..` in a path; symlink; path swapped after the check; two-@ address; IDN homograph; CRLF;
SSRF encodings; DNS rebinding; redirects; zero-width; bidi; lone surrogates;
50 concurrent calls near a budget; a direct call around the gateway;
taint through memory; taint through the cache; taint through a sub-agent; taint through a restart;
arguments changed after approval; policy changed after approval; two workers on one approval; self-approval;
forged resume; crash between intent and tool; tool description swapped; duplicate tool names;
injection in an error text; wrong-audience token; any bit flipped in the log; truncation with an old checkpoint;
rewrite with a stolen key; torn last frame; torn middle frame; disk full; inner node as leaf; fork bomb; memory bomb;
disk bomb; inherited descriptors; missing sandbox backend; encoded personal data; split personal data; ReDoS input;
another tenant's cache entry; another tenant's trace id; another tenant's approval id; non-loopback bind without auth
"""


@pytest.fixture(scope="module")
def page(repo: Path) -> str:
    return (repo / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows(page: str) -> dict[str, list[str]]:
    """Attack -> the tests that its row names."""
    table = page.split("## Attacks")[1].split("\n## ")[0]
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines() if line.startswith("|")][2:]
    assert all(len(row) == 3 and row[1] for row in cells), "attack, expected outcome, tests"
    assert len({row[0] for row in cells}) == len(cells), "one row an attack"
    return {row[0]: re.findall(r"`([^`]+)`", row[2]) for row in cells}


def test_every_attack_has_a_row(rows: dict[str, list[str]]) -> None:
    assert list(rows) == [attack for attack in re.split(r";\s*", " ".join(ATTACKS.split())) if attack]


def test_every_test_that_a_row_names_exists(rows: dict[str, list[str]], repo: Path) -> None:
    known: dict[str, set[str]] = {}
    for attack, tests in rows.items():
        assert tests, f"{attack}: no test"
        for test in tests:
            file, _, name = test.partition("::")
            if file not in known:
                tree = ast.parse((repo / "tests" / file).read_text(encoding="utf-8"))
                found = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                known[file] = {one.name for one in found if not re.search(r"mark\.(skip|xfail)\b", _marks(one))}
            assert name in known[file], f"{attack}: {test} does not exist, or is switched off"


def _marks(test: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return " ".join(map(ast.unparse, test.decorator_list))


def test_every_command_of_the_page_parses(page: str) -> None:
    root = typer.main.get_command(commands.app)
    shown = re.findall(r"^    (agentops [^#\n]+)", page, re.MULTILINE) + re.findall(r"`(agentops [^`]+)`", page)
    assert len(shown) >= 12
    for line in shown:
        arguments = shlex.split(line)[1:]
        group = root
        while arguments and arguments[0] in getattr(group, "commands", {}):
            group = group.commands[arguments.pop(0)]
        assert not hasattr(group, "commands"), f"{line}: no such command"
        known = {option for parameter in group.params for option in parameter.opts}
        assert {one for one in arguments if one.startswith("--")} <= known, line


def test_links_lead_to_files(page: str, repo: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", page):
        assert (repo / "docs" / link).exists(), link
