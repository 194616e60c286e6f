"""Conductor 3, `agentops check`: every problem of a project at once, with file and line.

Invariant: it never stops at the first problem and runs no tool; a project without a problem here loads and serves.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentops import policy, project, redact, release
from agentops.act.sandbox.declarations import declaration_problems
from agentops.errors import AgentopsError
from agentops.evaluate import gate_problems, load_suite
from agentops.labelled import labelled, labels_of, suite_path
from agentops.plan import Playbooks, parse
from agentops.project import Definition, Project, line_of
from agentops.train.recipe import read as read_recipe
from agentops.types import OUT_OF_SCOPE, Problem


def check(root: Path) -> list[Problem]:
    """All problems of the project at `root`, in the order of its files."""
    loaded, problems = project.inspect(root)
    if loaded is None:
        return problems
    found = list(problems)
    for part in (_policies, _tools, _routers, _planner, _pipelines, _world):
        found += _guarded(part, loaded)
    unique = dict.fromkeys(found)
    return sorted(unique, key=lambda problem: (problem.path, problem.line))


def _guarded(part: Callable[[Project], Iterator[Problem]], loaded: Project) -> list[Problem]:
    """What `part` yields, and the deliberate error that ended it, when one did."""
    found: list[Problem] = []
    try:
        for problem in part(loaded):
            found.append(problem)  # one by one: what was found before an error is kept
    except AgentopsError as error:
        found += getattr(error, "problems", ()) or [Problem(part.__name__.strip("_"), 0, str(error))]
    except Exception as error:  # noqa: BLE001 - a value of a wrong type must not hide what the other parts find
        found.append(Problem(part.__name__.strip("_"), 0, f"a value has a wrong type: {type(error).__name__}: {error}"))
    return found


def _policies(loaded: Project) -> Iterator[Problem]:
    specs = {name: tool.spec for name, tool in loaded.tools.items()}
    yield from policy.policy_problems(loaded.policies, specs, loaded.agents)
    yield from redact.problems(loaded.policies)
    yield from release.problems(loaded.policies)
    yield from gate_problems(loaded.policies)


def _tools(loaded: Project) -> Iterator[Problem]:
    yield from declaration_problems(loaded.root, loaded.policies, loaded.tools)


def _routers(loaded: Project) -> Iterator[Problem]:
    """Labels name agents that exist; agents name tools that exist and fit their scopes; seed rows fit the labels."""
    for definition in loaded.routers.values():
        shown = str(definition.file.relative_to(loaded.root))
        agents = definition.table.get("agents", {})
        for label, table in definition.table.get("labels", {}).items():
            agent = table.get("agent", "")
            if agent not in agents:
                line = line_of(definition.file, rf"^\[labels\.{label}\]")
                known = ", ".join(sorted(agents)) or "none"
                yield Problem(
                    shown, line, f"label {label!r} names agent {agent!r}, which does not exist; agents: {known}"
                )
        for name, table in agents.items():
            line = line_of(definition.file, rf"^\[agents\.{name}\]")
            yield from (Problem(shown, line, message) for message in _agent(loaded, name, table))
        seed = definition.table.get("router", {}).get("seed_data")
        if seed:
            yield from _rows(loaded, definition, definition.path / str(seed))


def _agent(loaded: Project, name: str, table: dict[str, Any]) -> Iterator[str]:
    known = ("tools", "scopes", "max_calls", "max_money_cents", "max_seconds", "max_tokens", "description")
    for key in table:
        if key not in known:
            yield f"agent {name!r} has no setting {key!r}; settings: {', '.join(known)}"
    scopes = set(table.get("scopes", ()))
    for tool in table.get("tools", ()):
        if tool not in loaded.tools:
            yield f"agent {name!r} names tool {tool!r}, which no pack defines; tools: {', '.join(sorted(loaded.tools))}"
            continue
        missing = loaded.tools[tool].spec.scopes - scopes
        if missing:
            yield f"agent {name!r} may use tool {tool!r} but lacks its scope {', '.join(sorted(missing))}"


def _rows(loaded: Project, definition: Definition, file: Path) -> Iterator[Problem]:
    shown = str(file.relative_to(loaded.root))
    try:
        rows = labelled(file, labels_of(loaded, definition.name))
    except AgentopsError as error:
        yield Problem(shown, _line_in(str(error)), str(error))
        return
    used = {label for _, label in rows}
    for label in sorted(set(definition.table.get("labels", {})) - used - {OUT_OF_SCOPE}):
        yield Problem(shown, 0, f"label {label!r} has no row: the first version could never answer it")


def _line_in(message: str) -> int:
    """The line number in a message like "file.csv:12: …" or "… line 12 …"."""
    import re

    found = re.search(r":(\d+):|line (\d+)", message)
    return int(found[1] or found[2]) if found else 0


def _planner(loaded: Project) -> Iterator[Problem]:
    """Playbooks parse against the tools, use only their agent's tools, and answer labels that exist."""
    definition = loaded.routers.get("planner")
    if definition is None:
        yield Problem("routers", 0, "there is no routers/planner: create planner.toml with [playbooks.LABEL] tables")
        return
    module = project.module(loaded.root, "routers.planner.playbooks")
    if not callable(getattr(module, "extract", None)):
        yield Problem(
            "routers/planner/playbooks.py", 0, "has no function extract(request): it fills the playbooks' slots"
        )
        return
    specs = {name: tool.spec for name, tool in loaded.tools.items()}
    playbooks = Playbooks(definition, module.extract)
    yield from playbooks.problems(specs)
    shown = str(definition.file.relative_to(loaded.root))
    labels = {
        label: str(table.get("agent", ""))
        for router in loaded.routers.values()
        for label, table in router.table.get("labels", {}).items()
    }
    for label, used in playbooks.tools(specs).items():
        line = line_of(definition.file, rf"^\[playbooks\.{label}\]")
        if label not in labels:
            yield Problem(
                shown, line, f"playbook {label!r} is for a label no router has; labels: {', '.join(sorted(labels))}"
            )
            continue
        agent = loaded.agents.get(labels[label])
        for tool in sorted(used - (agent.tools if agent else frozenset())):
            yield Problem(shown, line, f"playbook {label!r} calls {tool!r}, which agent {labels[label]!r} may not use")


def _pipelines(loaded: Project) -> Iterator[Problem]:
    """Recipes are complete; suites load, name known labels, and their gold plans parse."""
    specs = {name: tool.spec for name, tool in loaded.tools.items()}
    for definition in loaded.pipelines.values():
        shown = str(definition.file.relative_to(loaded.root))
        try:
            read_recipe(definition.file)
        except AgentopsError as error:
            yield Problem(shown, _line_in(str(error)), str(error))
        for key in ("suite", "sealed", "replay"):
            if not definition.table.get("evaluate", {}).get(key):
                continue
            file = suite_path(definition, key)
            place = str(file.relative_to(loaded.root))
            try:
                suite = load_suite(file, labels_of(loaded))
            except AgentopsError as error:
                yield Problem(place, _line_in(str(error)), str(error))
                continue
            for number, task in enumerate(suite.tasks, 1):
                try:
                    if task.plan:
                        parse(task.plan, specs)
                except AgentopsError as error:
                    yield Problem(place, number, f"task {task.id!r}: {error}")


def _world(loaded: Project) -> Iterator[Problem]:
    module = project.module(loaded.root, loaded.settings.world)
    for name in ("create", "connect", "fork", "changes"):
        if not callable(getattr(module, name, None)):
            yield Problem(
                loaded.settings.world.replace(".", "/") + ".py", 0, f"has no function {name}(): a world has four"
            )
