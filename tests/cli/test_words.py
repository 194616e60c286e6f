"""What a person meets who mistypes: one sentence that says what to do, and no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from agentops.cli import commands


def test_a_folder_without_a_project_is_one_sentence(agentops: Callable, tmp_path: Path) -> None:
    for command in (("check",), ("ask", "hello"), ("audit", "verify"), ("kill", "--list"), ("tools", "list")):
        ran = agentops(*command, "--project", tmp_path)
        assert ran.code == 2, command
        assert "no project at or above" in ran.err
        assert len(ran.err.splitlines()) == 1
        assert ran.out == ""


def test_a_folder_inside_a_project_leads_to_it(agentops: Callable, copy: Path) -> None:
    assert agentops("policy", "test", "--project", copy / "tools").code == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("kill",), "nothing is named: stop all, tool:NAME"),
        (("policy", "diff", "nowhere", "--as", "ada"), "'nowhere' is no folder"),
        (("approvals", "approve", "nope", "--as", "maria"), "there is no approval 'nope'"),
    ],
)
def test_what_is_missing_is_named(agentops: Callable, copy: Path, command: tuple[str, ...], said: str) -> None:
    ran = agentops(*command, "--project", copy)
    assert ran.code == 2
    assert said in ran.err


def test_the_lists_of_commands_cut_no_sentence_off() -> None:
    pending = [typer.main.get_command(commands.app)]
    while pending:
        group = pending.pop()
        for name, command in getattr(group, "commands", {}).items():
            assert not command.get_short_help_str(62).endswith("..."), (name, command.get_short_help_str(62))
            pending.append(command)


def test_a_search_without_a_find_says_so(agentops: Callable, copy: Path) -> None:
    assert agentops("audit", "query", "--tenant", "nobody", "--project", copy).out == "no record matches\n"
