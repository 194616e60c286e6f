"""Find, mount and load a project: the folder with `[tool.agentops]` in its pyproject.toml and the team's four folders.

Invariant: project code is importable only under the reserved name `agentops_project`; `sys.path` is never touched.
Loading collects every problem (file, line, what to do) before it refuses. It reads definitions; it runs no tool.
"""

import hashlib
import importlib
import re
import sys
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agentops import config
from agentops.errors import ConfigError, ProjectError
from agentops.types import AgentSpec, Problem, Tool

MOUNT = "agentops_project"
_MCP_PACKS = "agentops.act.mcp.pack"  # imported by name, like a pack's own module: it lies above this one
FOLDERS = ("routers", "tools", "pipelines", "policies")
DIGEST_LIMIT = 64 * 1024 * 1024  # bytes; more than this is data, which does not belong in the four folders


@dataclass(frozen=True, slots=True)
class Pack:
    """One folder under tools/: `pack.toml` and the tools its module defines."""

    name: str
    path: Path
    settings: Mapping[str, Any]
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """One TOML definition of the project (a router, a pipeline): its folder, file and parsed table."""

    name: str
    path: Path  # the folder
    file: Path
    table: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Project:
    """A loaded project. Content is plain data here; the stages give it meaning."""

    root: Path
    settings: config.Settings
    packs: tuple[Pack, ...]
    routers: Mapping[str, Definition]
    pipelines: Mapping[str, Definition]
    policies: Path
    digest: str

    @property
    def tools(self) -> dict[str, Tool]:
        return {tool.spec.name: tool for pack in self.packs for tool in pack.tools}

    @property
    def home(self) -> Path:
        return config.home(self.root, self.settings)

    @property
    def agents(self) -> dict[str, AgentSpec]:
        """Sub-agents named by the routers' `[agents.NAME]` tables."""
        return {
            name: agent_spec(name, table)
            for definition in self.routers.values()
            for name, table in definition.table.get("agents", {}).items()
        }

    def router(self, name: str) -> Definition:
        """The definition in routers/`name`.

        Raises:
            ProjectError: there is none.
        """
        if name not in self.routers:
            known = ", ".join(sorted(self.routers)) or "none"
            raise ProjectError(f"router {name!r} does not exist: create routers/{name}/; routers: {known}")
        return self.routers[name]

    def pipeline(self, name: str = "") -> Definition:
        """The pipeline called `name`, or the configured or only one.

        Raises:
            ProjectError: none, or several and no name.
        """
        name = name or self.settings.pipeline or (next(iter(self.pipelines)) if len(self.pipelines) == 1 else "")
        if name not in self.pipelines:
            choices = ", ".join(sorted(self.pipelines)) or "none yet (create pipelines/NAME/recipe.toml)"
            raise ProjectError(f"pipeline {name!r} does not exist; pipelines: {choices}")
        return self.pipelines[name]


def find(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` whose pyproject.toml has a `[tool.agentops]` table.

    Raises:
        ProjectError: no such folder up to the file system's root.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and "[tool.agentops" in file.read_text(encoding="utf-8", errors="replace"):
            return folder
    raise ProjectError(
        f"no project at or above {str(start)!r}: a project has [tool.agentops] in its pyproject.toml; "
        "run inside one, or make one with `agentops init DIR`"
    )


def mount(root: Path) -> ModuleType:
    """Make `root`'s folders importable as `agentops_project.tools.…`; mounting another root unloads the first."""
    mounted = sys.modules.get(MOUNT)
    if mounted is not None and list(mounted.__path__) == [str(root)]:
        return mounted
    for name in [name for name in sys.modules if name == MOUNT or name.startswith(MOUNT + ".")]:
        del sys.modules[name]
    module = ModuleType(MOUNT, "The mounted project: its routers, tools, pipelines and policies.")
    module.__path__ = [str(root)]
    sys.modules[MOUNT] = module
    importlib.invalidate_caches()
    return module


def module(root: Path, dotted: str) -> ModuleType:
    """Import `dotted` ("tools.world") from the project.

    Raises:
        ProjectError: with the file and line in the project where the import failed.
    """
    mount(root)
    try:
        return importlib.import_module(f"{MOUNT}.{dotted}")
    except Exception as error:
        problem = import_problem(root, dotted, error)
        raise ProjectError(str(problem), (problem,)) from error


def import_problem(root: Path, dotted: str, error: BaseException) -> Problem:
    """Where in the project an import failed: the deepest frame (or syntax error) inside `root`."""
    path, line = dotted.replace(".", "/") + ".py", 0
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        path, line = str(Path(error.filename).relative_to(root)), error.lineno or 0
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).is_relative_to(root) and ".venv" not in frame.filename:
                path, line = str(Path(frame.filename).relative_to(root)), frame.lineno or 0
    return Problem(path, line, f"{type(error).__name__}: {error}")


def line_of(file: Path, pattern: str) -> int:
    """1-based line of the first match of a regular expression in `file`, 0 if there is none."""
    for number, text in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if re.search(pattern, text):
            return number
    return 0


def read_toml(root: Path, file: Path) -> tuple[dict[str, Any], list[Problem]]:
    """A TOML table, or the problem with its line."""
    shown = str(file.relative_to(root))
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), []
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return {}, [Problem(shown, int(at[1]) if at else 0, f"not valid TOML: {error}")]
    except (OSError, UnicodeDecodeError) as error:
        return {}, [Problem(shown, 0, f"cannot be read: {error}")]


def agent_spec(name: str, table: Mapping[str, Any]) -> AgentSpec:
    """An `[agents.NAME]` table as a ceiling. Missing limits are the strict defaults of AgentSpec.

    Raises:
        ProjectError: a value of a wrong type.
    """
    try:
        return AgentSpec(
            name=name,
            tools=frozenset(table.get("tools", ())),
            scopes=frozenset(table.get("scopes", ())),
            max_calls=int(table.get("max_calls", 20)),
            max_money_cents=int(table.get("max_money_cents", 0)),
            max_seconds=float(table.get("max_seconds", 30.0)),
            max_tokens=int(table.get("max_tokens", 200_000)),
            description=str(table.get("description", "")),
        )
    except (TypeError, ValueError) as error:
        raise ProjectError(f"[agents.{name}] has a value of a wrong type: {error}") from None


def digest(root: Path) -> str:
    """SHA-256 over names and bytes of every file in the four folders: what a trace says it ran on.

    Raises:
        ProjectError: the folders hold more than 64 MiB; data belongs elsewhere.
    """
    total = 0
    hasher = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            relative = file.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            if hidden or not file.is_file() or file.suffix == ".pyc":
                continue
            data = file.read_bytes()
            total += len(data)
            if total > DIGEST_LIMIT:
                raise ProjectError(
                    f"{relative} takes the four folders past 64 MiB: keep data outside them, for example in .agentops/"
                )
            hasher.update(f"{relative.as_posix()}\0{len(data)}\0".encode() + data)
    return "sha256:" + hasher.hexdigest()


def inspect(root: Path, environment: Mapping[str, str] | None = None) -> tuple[Project | None, list[Problem]]:
    """Load as much as can be loaded, and every problem met. The project is None only when settings are unusable."""
    root = root.resolve()
    table, problems = read_toml(root, root / "pyproject.toml")
    try:
        settings = config.load(table.get("tool", {}).get("agentops", {}), environment)
    except ConfigError as error:
        key = re.search(r"\[tool\.agentops\] '?(\w+)", str(error))
        line = line_of(root / "pyproject.toml", rf"^\s*{key[1]}\s*=") if key else 0
        return None, [*problems, Problem("pyproject.toml", line, str(error))]
    for folder in FOLDERS:
        if not (root / folder).is_dir():
            problems.append(
                Problem(folder, 0, f"folder is missing: create {folder}/ (a project has {', '.join(FOLDERS)})")
            )
    packs, more = _packs(root)
    problems += more
    routers, more = _definitions(root, "routers", ("router.toml", "planner.toml"))
    problems += more
    pipelines, more = _definitions(root, "pipelines", ("recipe.toml",))
    problems += more
    loaded = Project(root, settings, packs, routers, pipelines, root / "policies", digest(root))
    return loaded, problems


def load(root: Path | None = None, environment: Mapping[str, str] | None = None) -> Project:
    """The project at `root` (default: found from the working directory).

    Raises:
        ProjectError: with all problems at once.
    """
    root = find() if root is None else root
    loaded, problems = inspect(root, environment)
    if problems or loaded is None:
        listing = "\n".join(f"  {problem}" for problem in problems)
        raise ProjectError(f"the project has {len(problems)} problem(s):\n{listing}", tuple(problems))
    return loaded


def _packs(root: Path) -> tuple[tuple[Pack, ...], list[Problem]]:
    packs: list[Pack] = []
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for file in sorted((root / "tools").glob("*/pack.toml")):
        table, bad = read_toml(root, file)
        problems += bad
        name = file.parent.name
        if "mcp" in table:
            tools, more = importlib.import_module(_MCP_PACKS).tools(root, file.parent, table)
            problems += more
        else:
            try:
                loaded = module(root, f"tools.{name}")
            except ProjectError as error:
                problems += error.problems
                continue
            values = vars(loaded).values()
            tools = tuple(value for value in values if isinstance(value, Tool) and value.spec.pack == name)
            if not tools:
                problems.append(
                    Problem(f"tools/{name}/__init__.py", 0, "defines no tool: decorate a function with @tool")
                )
        for one in tools:
            if one.spec.name in owner:
                path, line = _place(root, file, one)
                problems.append(
                    Problem(
                        path,
                        line,
                        f"tool {one.spec.name!r} is already defined by pack {owner[one.spec.name]!r}: "
                        "tool names are unique in a project",
                    )
                )
            owner[one.spec.name] = name
        packs.append(Pack(name, file.parent, table, tools))
    for folder in sorted(path for path in (root / "tools").glob("*/") if not path.name.startswith(("_", "."))):
        if not (folder / "pack.toml").is_file():
            problems.append(Problem(f"tools/{folder.name}", 0, "has no pack.toml: every folder under tools/ is a pack"))
    return tuple(packs), problems


def _place(root: Path, pack: Path, tool: Tool) -> tuple[str, int]:
    """Where a tool is defined: its function, or its table in pack.toml."""
    code = getattr(tool.function, "__code__", None)
    if code is not None and Path(code.co_filename).is_relative_to(root):
        return str(Path(code.co_filename).relative_to(root)), code.co_firstlineno
    own = re.escape(tool.spec.name)
    line = line_of(pack, rf'^\[mcp\.tools\."?{own}"?\]') or line_of(pack, rf'^rename = "{own}"')
    return str(pack.relative_to(root)), line


def _definitions(root: Path, folder: str, names: tuple[str, ...]) -> tuple[dict[str, Definition], list[Problem]]:
    found: dict[str, Definition] = {}
    problems: list[Problem] = []
    for path in sorted(entry for entry in (root / folder).glob("*/") if not entry.name.startswith(("_", "."))):
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            problems.append(Problem(f"{folder}/{path.name}", 0, f"has no {' or '.join(names)}"))
            continue
        table, bad = read_toml(root, file)
        problems += bad
        if not bad:
            found[path.name] = Definition(path.name, path, file, table)
    return found, problems
