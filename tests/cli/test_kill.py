"""`agentops kill` and `agentops revive` on a copy of the reference project."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.types import Run
from agentops.workspace import local_principal, open_workspace


@pytest.fixture
def at(agentops: Callable[..., Any], copy: Path) -> Callable[..., Any]:
    return lambda *arguments: agentops(*arguments, "--project", copy)


def test_what_is_killed_is_refused_until_it_is_revived(at: Callable[..., Any], copy: Path) -> None:
    killed = at("kill", "tool:get_order", "--as", "olga", "--reason", "wrong data")
    assert (killed.code, "tool:get_order is stopped" in killed.out) == (0, True)
    listed = json.loads(at("kill", "--list", "--json").out)
    assert [(one["target"], one["reason"], one["by"]) for one in listed] == [
        ("tool:get_order", "wrong data", "default/olga")
    ]
    assert "wrong data" in at("kill", "--list").out

    def asked() -> list[str]:
        with open_workspace(copy) as workspace:
            who = local_principal(workspace, "C-1001")
            run = Run("r", "s", who, next(iter(workspace.project.agents.values())), 1e12)
            specs = [workspace.specs[name] for name in ("get_order", "cancel_order")]
            return [asyncio.run(workspace.kill.stopped(run, spec)) for spec in specs]

    refused, going = asked()
    assert refused.endswith(": wrong data")
    assert going == ""
    assert at("revive", "tool:get_order", "--as", "olga", "--reason", "mended").code == 0
    assert asked() == ["", ""]
    assert "nothing is stopped" in at("kill", "--list").out
    kinds = [record["type"] for record in json.loads(at("audit", "query", "--json").out) if "kill" in record["type"]]
    assert kinds == ["kill.set", "kill.revive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kill", "tool:get_ordr", "--as", "olga", "--reason", "x"], "there is no tool 'get_ordr'"),
        (["kill", "agent:nobody", "--as", "olga", "--reason", "x"], "there is no agent 'nobody'"),
        (["kill", "--as", "olga", "--reason", "x"], "nothing is named: stop all, tool:NAME"),
        (["kill", "all", "--reason", "x"], "the user is empty"),
        (["kill", "all", "--as", "olga"], "a reason is needed"),
        (["kill", "all", "--as", "olga", "--role", "staff", "--reason", "x"], "needs role 'operator'"),
        (["revive", "all", "--as", "olga", "--reason", "x"], "is not stopped"),
    ],
)
def test_mistakes_are_one_sentence_and_stop_nothing(at: Callable[..., Any], arguments: list[str], message: str) -> None:
    ran = at(*arguments)
    assert (ran.code, message in ran.err.replace("\n", " ")) == (2, True)
    assert "nothing is stopped" in at("kill", "--list").out
