"""`agentops init`: what it writes, what it refuses, and that the project it lays out works."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentops import project as projects
from agentops import redact, release
from agentops.act import ToolGateway, execute
from agentops.audit import MemoryAudit
from agentops.cache import MemoryCache
from agentops.cli.scaffold import FILES, scaffold
from agentops.errors import ProjectError
from agentops.evaluate import load_suite
from agentops.graph import VirtualClock
from agentops.harvest import Exclusion
from agentops.plan import Playbooks, answer, parse
from agentops.policy import Approvals, Budgets, Effects, PolicySet, Readings, policy_problems, principal
from agentops.redact import Redactor
from agentops.simulate import ProjectEnvironment
from agentops.store import MemoryState
from agentops.train import recipe
from agentops.types import OUT_OF_SCOPE, Request, Route, Task


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[projects.Project]:
    root = tmp_path_factory.mktemp("init") / "shop"
    scaffold(root)
    yield projects.load(root, {})
    for name in [name for name in sys.modules if name == projects.MOUNT or name.startswith(projects.MOUNT + ".")]:
        del sys.modules[name]


def specs(shop: projects.Project) -> dict[str, Any]:
    return {name: tool.spec for name, tool in shop.tools.items()}


def all_tasks(shop: projects.Project) -> list[Task]:
    found = projects.module(shop.root, "pipelines.shop.tasks").generate()
    assert found
    return found


# ------------------------------------------------------------------ what is written


def test_every_file_is_written_once(tmp_path: Path) -> None:
    done = scaffold(tmp_path / "new" / "shop")
    assert {what for what, _ in done} == {"write"}
    paths = [path for _, path in done]
    assert len(set(paths)) == len(paths)
    assert {".gitignore", "pyproject.toml", "tools/world.py", "policies/base.cedar"} <= set(paths)
    assert not any(path.endswith(".template") for path in paths)
    on_disk = {
        str(path.relative_to(tmp_path / "new" / "shop"))
        for path in (tmp_path / "new" / "shop").rglob("*")
        if path.is_file()
    }
    assert on_disk == set(paths)


def test_what_exists_stays(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "world.py").write_text("mine")
    done = {path: what for what, path in scaffold(tmp_path)}
    assert done["tools/world.py"] == "skip"
    assert (tmp_path / "tools" / "world.py").read_text() == "mine"
    assert {what for what, _ in scaffold(tmp_path)} == {"skip"}
    assert (tmp_path / "tools" / "world.py").read_text() == "mine"


@pytest.mark.parametrize("link", ["tools", "tools/books", "README.md", "policies/base.cedar"])
def test_links_are_not_followed(tmp_path: Path, link: str) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (inside / link).parent.mkdir(parents=True)
    (inside / link).symlink_to(outside / "somewhere")
    with pytest.raises(ProjectError, match=r"is a link: remove it first; nothing was written"):
        scaffold(inside)
    assert list(outside.iterdir()) == []
    assert not (inside / "pyproject.toml").exists()


def test_what_cannot_be_a_project_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ProjectError, match="is a file: give a new folder"):
        scaffold(file)
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    with pytest.raises(ProjectError, match=r"without a \[tool.agentops\] table"):
        scaffold(other)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "tools").write_text("not a folder")
    with pytest.raises(ProjectError, match=r"'tools' .* is a file, not a folder"):
        scaffold(blocked)
    (tmp_path / "folder" / "README.md").mkdir(parents=True)
    with pytest.raises(ProjectError, match=r"'README.md' .* is a folder, not a file"):
        scaffold(tmp_path / "folder")
    assert [one.name for one in other.iterdir()] == ["pyproject.toml"]
    with pytest.raises(ProjectError, match="cannot be laid out"):
        scaffold(tmp_path / ("x" * 300))


# ------------------------------------------------------------------ what it is


def test_the_new_project_is_clean(shop: projects.Project) -> None:
    assert sorted(shop.tools) == ["find_books", "reserve_book"]
    assert policy_problems(shop.policies, specs(shop), shop.agents) == []
    assert redact.problems(shop.policies) == []
    assert release.problems(shop.policies) == []
    recipe.read(shop.pipeline().file)
    extract = projects.module(shop.root, "routers.planner.playbooks").extract
    playbooks = Playbooks(shop.routers["planner"], extract)
    assert playbooks.problems(specs(shop)) == []
    labels = set(shop.routers["intent"].table["labels"])
    assert set(shop.routers["planner"].table["playbooks"]) == labels
    seed = load_suite(shop.routers["intent"].path / "messages.csv", {*labels, OUT_OF_SCOPE})
    assert {label for task in seed.tasks for label in task.labels} == {*labels, OUT_OF_SCOPE}


def test_release_rules_are_those_of_the_reference_project(repo: Path) -> None:
    """Every rule must be stated, so a new rule has to reach new projects too: copy policies/release.toml."""
    ours = FILES / "policies" / "release.toml"
    assert ours.read_bytes() == (repo / "policies" / "release.toml").read_bytes()


def test_frozen_tasks_are_kept_apart(shop: projects.Project) -> None:
    tasks = projects.module(shop.root, "pipelines.shop.tasks").tasks
    match = Exclusion({"frozen": [task.text for task in tasks("frozen")]}).matcher(str)
    seed = load_suite(shop.routers["intent"].path / "messages.csv")
    assert not [task.text for task in (*tasks("train"), *seed.tasks) if match(task.text)]


@pytest.mark.anyio
async def test_playbooks_plan_every_task_rightly(shop: projects.Project) -> None:
    extract = projects.module(shop.root, "routers.planner.playbooks").extract
    playbooks = Playbooks(shop.routers["planner"], extract)
    for task in all_tasks(shop):
        asks = principal(shop.policies, "default", task.user, ["customer"])
        routes = tuple(Route(label, 1.0, "gold", agent="counter") for label in task.labels)
        plan = await playbooks.plan(Request(task.id, task.text, asks, "s"), routes, specs(shop))
        if task.plan.startswith("handoff") or not task.plan:
            assert plan.handoff
        else:
            gold = parse(task.plan, specs(shop))
            assert [(step.tool, step.arguments) for step in plan.steps] == [
                (step.tool, step.arguments) for step in gold.steps
            ], task.text
            assert plan.say == gold.say


@pytest.mark.anyio
async def test_gold_plans_pass_their_verifier_and_doing_nothing_does_not(
    shop: projects.Project, tmp_path: Path
) -> None:
    verify = projects.module(shop.root, "pipelines.shop.verify").verify
    policy = PolicySet.load(shop.policies, specs(shop), shop.agents)

    def gateway(world: Any, clock: Any, audit: MemoryAudit) -> ToolGateway:
        state = MemoryState()
        approvals, budgets = Approvals(state, clock), Budgets(state, clock)
        redactor = Redactor(b"a key for tests, thirty-two bytes")
        return ToolGateway(
            shop.tools,
            policy,
            audit,
            approvals,
            budgets,
            Readings(state, clock),
            Effects(state, clock),
            MemoryCache(100),
            world,
            clock,
            None,
            redactor,
        )

    world = tmp_path / "world.db"
    projects.module(shop.root, "tools.world").create(world)
    environment = ProjectEnvironment(
        shop,
        world,
        parse=parse,
        gateway=gateway,
        execute=execute,
        verify=verify,
        principal=lambda task: principal(shop.policies, "default", task.user, ["customer"]),
        answer=answer,
    )
    for task in all_tasks(shop):
        if task.plan:
            environment.reset(0, task)
            episode = await environment.run(task.plan)
            verdict = environment.verify(episode)
            assert verdict.success, (task.text, verdict.evidence, episode.error)
        if task.plan and not task.plan.startswith("handoff"):
            environment.reset(0, task)
            lazy = await environment.run('say "I do not know."')
            assert environment.verify(lazy).success is False
    environment.close()


@pytest.mark.anyio
async def test_a_reservation_happens_once_and_only_from_the_shelf(shop: projects.Project, tmp_path: Path) -> None:
    from agentops.act import Context
    from agentops.errors import ToolError
    from agentops.types import Run

    module = projects.module(shop.root, "tools.world")
    module.create(tmp_path / "world.db")
    world = module.connect(tmp_path / "world.db", VirtualClock())
    asks = principal(shop.policies, "default", "reader-1", ["customer"])
    run = Run("r", "s", asks, shop.agents["counter"], 60.0)
    reserve = shop.tools["reserve_book"].function
    again = Context(run, world, VirtualClock(), "c", "key")
    assert await reserve(again, book_id="B-101", quantity=2) == await reserve(again, book_id="B-101", quantity=2)
    assert module.changes(world, tmp_path / "world.db") == [
        {"table": "books", "key": "B-101", "op": "update", "columns": {"available": 2}},
        {"table": "reservations", "key": "reader-1/B-101", "op": "insert", "columns": {"quantity": 2}},
    ]
    other = Context(run, world, VirtualClock(), "d", "other")
    with pytest.raises(ToolError, match="Only 2 of Moby-Dick"):
        await reserve(other, book_id="B-101", quantity=3)
    with pytest.raises(ToolError, match="no book B-999"):
        await reserve(other, book_id="B-999")
    world.close()


def test_the_wheel_would_carry_every_file() -> None:
    ignored = subprocess.run(
        ["git", "-C", str(FILES), "status", "--porcelain", "--ignored", "."],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in ignored.stdout.splitlines() if line.startswith("!!") and "__pycache__" not in line]
    assert not lines, "a file under scaffold_files is ignored by git: hatchling would leave it out"


@pytest.mark.slow
def test_a_fresh_project_is_checked_and_answers_from_the_command_line(tmp_path: Path) -> None:
    def agentops(*arguments: str, where: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AGENTOPS_")}
        return subprocess.run(
            [sys.executable, "-m", "agentops.cli", *arguments],
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    made = agentops("init", "shop")
    assert made.returncode == 0, made.stderr
    assert "write" in made.stdout
    checked = agentops("check", where=tmp_path / "shop")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for text, fact in (("Do you have Moby-Dick?", "14.90 EUR"), ("reserve two copies of Emma", "2 x Emma")):
        asked = agentops("ask", text, "--as", "reader-1", "--json", where=tmp_path / "shop")
        assert asked.returncode == 0, asked.stderr
        assert fact in orjson.loads(asked.stdout)["answer"]
    again = agentops("init", "shop")
    assert again.returncode == 0
    assert "skip" in again.stdout
    assert "write" not in again.stdout
    refused = agentops("init", "shop/README.md")
    assert refused.returncode == 2
    assert "is a file" in refused.stderr
    assert "Traceback" not in refused.stderr
