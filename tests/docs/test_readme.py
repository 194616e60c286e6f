"""README and docs are kept true: their commands exist, their links lead somewhere, their project examples work."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.core
import typer.main

from agentops.cli import commands
from agentops.plan import parse
from agentops.policy import PolicySet
from agentops.project import load

SHOWN = re.compile(r"^(?:    |\$ )(agentops .+)$|`(agentops [^`]+)`", re.MULTILINE)
PAGES = ("README.md", "docs/governance.md", "docs/mcp.md", "docs/security.md")


@pytest.fixture(scope="module")
def readme(repo: Path) -> str:
    return (repo / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_parses(page: str, repo: Path) -> None:
    root = typer.main.get_command(commands.app)
    found = SHOWN.findall((repo / page).read_text(encoding="utf-8"))
    shown = [" ".join((block or inline).split("#")[0].split()) for block, inline in found]
    shown = [part.strip() for line in shown for part in line.split("&&") if part.strip().startswith("agentops")]
    assert len(shown) >= 5
    for line in shown:
        arguments = shlex.split(line)[1:]
        group, names = root, []
        while arguments and arguments[0] in getattr(group, "commands", {}):
            names.append(arguments[0])
            group = group.commands[arguments.pop(0)]
        assert names, line
        known = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for argument in arguments:
            if argument.startswith("--"):
                assert argument in known, f"{line}: {argument}"


@pytest.mark.parametrize("page", [*PAGES, "docs/architecture.md"])
def test_links_lead_to_files_and_headings(page: str, repo: Path) -> None:
    for link, heading in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", (repo / page).read_text(encoding="utf-8")):
        target = (repo / page).parent / link if link else repo / page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_plan_of_the_readme_parses_against_the_reference_tools(readme: str, repo: Path) -> None:
    plan = re.search(r"```text\n(o = get_order.*?)```", readme, re.DOTALL)
    assert plan is not None
    tools = {name: tool.spec for name, tool in load(repo, {}).tools.items()}
    assert [step.tool for step in parse(plan[1], tools).steps] == [
        "get_order",
        "check_refund",
        "search_articles",
        "create_refund",
    ]


def test_the_policy_of_the_readme_is_the_projects(readme: str, repo: Path) -> None:
    cedar = re.search(r"```cedar\n(.*?)```", readme, re.DOTALL)
    assert cedar is not None
    assert cedar[1].strip() in (repo / "policies" / "refunds.cedar").read_text(encoding="utf-8")
    project = load(repo, {})
    specs = {name: tool.spec for name, tool in project.tools.items()}
    assert PolicySet.load(project.policies, specs, project.agents).digest


def test_the_layers_of_the_architecture_are_the_contracts(repo: Path) -> None:
    contracts = tomllib.loads((repo / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    text = (repo / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.split("## Layers")[1].split("Stages never")[0]
    shown = [line[4:].split("    ")[0].strip() for line in block.splitlines() if line.startswith("    ")]
    assert shown == contracts[0]["layers"]


def test_the_architecture_lists_every_command(repo: Path) -> None:
    text = (repo / "docs" / "architecture.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z][a-z-]+", text.split("## Command line")[1].split("## Not built yet")[0]))
    root = typer.main.get_command(commands.app)
    assert isinstance(root, typer.core.TyperGroup)
    for name, command in root.commands.items():
        assert {name, *getattr(command, "commands", ())} <= words, name


def test_architecture_names_only_what_exists(repo: Path) -> None:
    text = (repo / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.split("## Tree")[1].split("## Layers")[0]
    for name in re.findall(r"^      ([a-z_]+(?:/|\.py))", tree, re.MULTILINE):
        assert (repo / "agentops" / name.rstrip("/")).exists(), name
    missing = [
        path.name
        for path in (repo / "agentops").iterdir()
        if (path.is_dir() or path.suffix == ".py")
        and not path.name.startswith("_")
        and path.name.split(".")[0] not in tree
    ]
    assert missing == []


def test_no_placeholder_is_left(readme: str) -> None:
    assert not re.findall(r"\b(?:DEMO|BANKING)_[A-Z]+\b", readme)
