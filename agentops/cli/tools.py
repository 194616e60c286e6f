"""Commands for tools: list them, pin those of MCP servers, and serve ours over MCP.

Invariant: `list` starts nothing and runs no tool; `pin` writes mcp.lock only after a person saw what changed.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from agentops import project as projects
from agentops.act.mcp import lock
from agentops.act.mcp.lock import Definition
from agentops.act.mcp.pack import admitted, server
from agentops.act.mcp.remote import Server
from agentops.act.mcp.states import states
from agentops.act.tool import Remote
from agentops.cli.app import AsJson, ProjectDir, console, errors, printable, show, table
from agentops.errors import GateFailed, MCPError, ProjectError, require
from agentops.project import Project
from agentops.types import Tool
from agentops.workspace import Workspace, local_principal, open_workspace

tools = typer.Typer(no_args_is_help=True, help="Tools of the project, and what stands behind them.")


@tools.command("list")
def list_(project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Every tool, what it may do and where it comes from. State says whether an MCP tool is the pinned one."""
    loaded, problems = projects.inspect(projects.find(project))
    if loaded is None:
        raise ProjectError(str(problems[0]), tuple(problems))
    with Workspace(loaded) as workspace:
        found = [*map(_described, loaded.tools.values())]
        known = states(workspace.state, loaded.tools)
        rows = [{**row, "state": known.get(row["tool"], "ok")} for row in found]
        rows += _unpinned(loaded)
    rows.sort(key=lambda row: (row["pack"], row["tool"]))
    columns = ("tool", "pack", "effect", "scopes", "labels", "isolation", "timeout_s", "digest", "origin", "state")
    shown = [[_cell(row[column]) for column in columns] for row in rows]
    show(rows, as_json, [table("", columns, shown)])
    if problems:
        errors.print(f"the project has {len(problems)} problem(s): `agentops check` names them", markup=False)


@tools.command()
def pin(
    pack: Annotated[str, typer.Argument(help="A pack whose pack.toml has [mcp].")],
    yes: Annotated[bool, typer.Option("--yes", help="Write mcp.lock without asking.")] = False,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Pin the tools of a pack's MCP server. Shows what differs from mcp.lock; pins what pack.toml admits.

    A tool's description reaches the model: read it as you would read a change of a prompt.
    """
    require("mcp", "mcp")
    root = projects.find(project)
    folder = root / "tools" / pack
    packs = sorted(file.parent.name for file in (root / "tools").glob("*/pack.toml"))
    if pack not in packs:
        raise MCPError(f"pack {pack[:80]!r} does not exist; packs: {', '.join(packs)}")
    settings, problems = projects.read_toml(root, folder / "pack.toml")
    if problems:
        raise ProjectError(str(problems[0]), tuple(problems))
    if "mcp" not in settings:
        raise MCPError(f"pack {pack!r} has no [mcp] table in tools/{pack}/pack.toml: there is nothing to pin")
    offered = asyncio.run(_offered(projects.inspect(root)[0], server(folder, settings)))
    names = admitted(settings)
    wanted = _wanted(names, offered)
    try:
        before = lock.read(folder)
    except MCPError:
        before = {}  # damaged: everything is shown as new
    lines = [
        line for name in sorted({*before, *wanted}) for line in lock.difference(before.get(name), wanted.get(name))
    ]
    others = sorted({one.name for one in offered} - set(names))
    report = {"pack": pack, "pinned": sorted(wanted), "changed": bool(lines), "not_admitted": others, "diff": lines}
    if not as_json:
        for line in lines:
            console.print(Text(printable(line), style={"+": "green", "-": "red"}.get(line[:1], "")))
        if others:
            console.print(f"not admitted by pack.toml: {', '.join(map(lock.visible, others))}", markup=False)
    if lines and not yes:
        if as_json or not sys.stdin.isatty():
            raise GateFailed(f"mcp.lock of pack {pack!r} is out of date: look at the diff, then pin with --yes")
        typer.confirm("Pin these definitions?", abort=True)
    if lines:
        lock.write(folder, wanted.values())
    show(report, as_json, [f"pinned {len(wanted)} tools in tools/{pack}/{lock.FILE}" if lines else "nothing changed"])


def mcp(
    agent: Annotated[str, typer.Option(help="Under which agent's ceiling: one of the routers' [agents.NAME].")],
    user: Annotated[str, typer.Option("--as", help="For whom the calls are made.")],
    role: Annotated[list[str] | None, typer.Option("--role", help="Roles of the user.")] = None,
    session: Annotated[str, typer.Option(help="Conversation; the same call in it is one effect.")] = "",
    project: ProjectDir = None,
) -> None:
    """Serve the governed tools to a local agent over MCP. On standard input and output."""
    require("mcp", "mcp")
    from agentops.server.mcp import caller

    with open_workspace(project) as workspace:
        who = local_principal(workspace, user, tuple(role or ("customer",)))
        asyncio.run(_serve(workspace, caller(workspace, who, agent, session)))


async def _serve(workspace: Workspace, by: Any) -> None:
    from agentops.runtime import open_runtime
    from agentops.server.mcp import serve_stdio

    async with open_runtime(workspace) as runtime:
        await serve_stdio(workspace, runtime.gateway, by)


async def _offered(project: Project | None, asked: Server) -> list[Definition]:
    from agentops.act.mcp.client import Servers
    from agentops.act.sandbox.egress import Egress
    from agentops.act.sandbox.secrets import Secrets

    if project is None:
        raise ProjectError("the project's settings cannot be read: `agentops check` says why")
    egress = Egress(private=project.settings.private_networks)
    servers = Servers(project.root, Secrets.load(project.policies), egress, lambda *_: None)
    try:
        return await servers.listing(asked)
    finally:
        await servers.close()


def _wanted(names: Mapping[str, Any], offered: list[Definition]) -> dict[str, Definition]:
    """The definitions of the admitted tools.

    Raises:
        MCPError: one is not there, is there twice, or has a definition nobody could be held to.
    """
    found: dict[str, Definition] = {}
    for name in names:
        same = [one for one in offered if one.name == name]
        if len(same) != 1:
            have = ", ".join(sorted({lock.visible(one.name) for one in offered}))
            many = "twice" if same else "not"
            raise MCPError(f"tool {name[:128]!r} of pack.toml is {many} among the server's tools: {have or 'none'}")
        if same[0].digest == lock.UNUSABLE:
            raise MCPError(f"tool {name[:128]!r}: its definition is too large or has no canonical form")
        found[name] = same[0]
    return found


def _described(tool: Tool) -> dict[str, Any]:
    spec = tool.spec
    return {
        "tool": spec.name,
        "pack": spec.pack,
        "effect": spec.effect,
        "scopes": sorted(spec.scopes),
        "labels": [spec.labels.integrity, spec.labels.confidentiality],
        "isolation": spec.isolation.least if spec.isolation else "none",
        "timeout_s": spec.timeout_s,
        "digest": spec.digest,
        "origin": "mcp" if isinstance(tool.function, Remote) else "python",
    }


def _unpinned(project: Project) -> list[dict[str, Any]]:
    """Tools that a pack admits and nobody has pinned: they do not exist yet."""
    rows = []
    for pack in project.packs:
        pinned = lock.read(pack.path) if "mcp" in pack.settings else {}
        for name, settings in admitted(pack.settings).items():
            if name not in pinned:
                empty = {"labels": [], "isolation": "", "timeout_s": None, "digest": "", "origin": "mcp"}
                shown = {"tool": name, "pack": pack.name, "effect": settings.get("effect", ""), "state": "unpinned"}
                rows.append({**shown, "scopes": settings.get("scopes", []), **empty})
    return rows


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value[:19] if isinstance(value, str) and value.startswith("sha256:") else value


def register(app: typer.Typer) -> None:
    app.add_typer(tools, name="tools")
    app.command()(mcp)
