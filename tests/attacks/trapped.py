"""The reference project with one pack more, whose tools are traps, and short ways to its real gateway and runtime."""

import os
import shutil
from pathlib import Path

from agentops import project as projects
from agentops.project import FOLDERS
from agentops.runtime import Runtime, planner
from agentops.types import Assignment, Json, Route, Run, ToolCall, ToolResult
from agentops.workspace import Workspace, local_principal

TOOLS = '''
"""Traps: an effect that can be interrupted, and a reader of what outsiders wrote."""

import asyncio
import os
from pathlib import Path
from typing import Any

from agentops.act import Context, Labels, tool
from agentops.errors import ToolError


async def _pressed(ctx: Context, name: str) -> dict[str, Any]:
    folder = Path(os.environ["TRAP_FOLDER"])
    with open(folder / "entered", "a") as file:
        file.write(f"{name} {ctx.idempotency_key}\\n")
    if (folder / "wait").exists():
        await asyncio.sleep(30)
    with open(folder / "effects", "a") as file:
        file.write(f"{name} {ctx.idempotency_key}\\n")
    return {"pressed": name}


@tool(effect="write", scopes={"trap:press"}, timeout_s=60.0)
async def press(ctx: Context, place: str, force: int = 0) -> dict[str, Any]:
    """Press a button that does not know whether it was pressed before."""
    return await _pressed(ctx, "press")


@tool(effect="write", scopes={"trap:press"}, timeout_s=60.0, idempotent=True)
async def press_safely(ctx: Context, place: str) -> dict[str, Any]:
    """Press a button that knows."""
    return await _pressed(ctx, "press_safely")


@tool(effect="read", scopes={"trap:press"}, timeout_s=5.0, labels=Labels("untrusted", "personal"))
async def hear(ctx: Context, text: str, second: str = "", fail: bool = False) -> dict[str, Any]:
    """Give back what an outsider said, as a result, an error or a fault."""
    if second == "crash":
        raise RuntimeError(f"cannot parse {text}")
    if fail:
        raise ToolError(text)
    return {"text": text, "second": second}
'''
PACK = """
[pack]
name = "trap"
description = "Traps."
owner = "tests"
"""
POLICIES = """
@id("trap-vault")
@advice("approval:finance")
@reason("the vault needs finance")
forbid (principal, action == Action::"press", resource)
when { context.args.place == "vault" };

@id("trap-overflow")
forbid (principal, action == Action::"press", resource)
when { context.args.force * 9223372036854775807 > 100 };
"""
PLAYBOOKS = """
[playbooks.press]
needs = []
plan = \"\"\"
p = press("desk")
say "{p.pressed}"
\"\"\"

[playbooks.press_vault]
needs = []
plan = \"\"\"
p = press("vault")
say "{p.pressed}"
\"\"\"

[playbooks.press_safely]
needs = []
plan = \"\"\"
p = press_safely("desk")
say "{p.pressed}"
\"\"\"
"""
LABELS = """
[labels.press]
agent = "trap"
description = "press"
[labels.press_vault]
agent = "trap"
description = "press the vault's"
[labels.press_safely]
agent = "trap"
description = "press the one that knows"

[agents.trap]
description = "walks into traps"
tools = ["press", "press_safely", "hear", "get_document", "get_order", "check_refund", "create_refund", "send_document"]
scopes = [
    "trap:press", "orders:read", "refunds:read", "refunds:write", "documents:read", "documents:send",
]
max_calls = 40
max_money_cents = 50000
max_seconds = 60.0
"""
KEYS = (
    "shop:secret-of-the-shop-0001:default:C-1054:customer,"
    "boss:secret-of-the-boss-0001:default:C-1054:customer+finance,"
    "money:secret-of-finance-00001:default:E-1:finance,"
    "rival:secret-of-another-0002:default:C-1001:customer,"
    "other:secret-of-another-0001:globex:C-1054:customer+finance,"
    "front:secret-of-frontend-001:default:frontend:service"
)
CUSTOMER = "C-1054"
ORDER = "SO-12878"  # C-1054's, above what is refunded without finance
LARGE = f"i want to return {ORDER} and get a refund"


class Fixed:
    """A router that gives the label it was made with."""

    version = "fixed"

    def __init__(self, label: str) -> None:
        self.label = label

    def route(self, texts: list[str]) -> list[tuple[Route, ...]]:
        return [(Route(self.label, 0.9, "encoder"),) for _ in texts]


class Trapped:
    """A workspace of the project, its runtime for one label, and short ways to call its gateway."""

    def __init__(self, workspace: Workspace, opened: Runtime, label: str) -> None:
        self.workspace, self.gateway = workspace, opened.gateway
        planned, questions = planner(workspace)
        assignment = Assignment("stable", "fixed", 0.0, "", 1.0)
        router = Fixed(label)
        self.runtime = Runtime(
            workspace, opened.gateway, planned, lambda _: router, lambda _: assignment, opened._saver, questions
        )

    def run(self, session: str = "s", user: str = CUSTOMER, request: str = "", agent: str = "trap") -> Run:
        who = local_principal(self.workspace, user)
        deadline = self.workspace.clock.now() + 60
        return Run(f"r-{session}", session, who, self.workspace.project.agents[agent], deadline, request=request)

    async def call(self, tool: str, run: Run | None = None, key: str = "", **arguments: Json) -> ToolResult:
        run = run or self.run()
        return await self.gateway.call(run, ToolCall(f"c-{key}", tool, arguments, idempotency_key=key))

    def count(self, table: str) -> int:
        """Rows of a table of the tools' world."""
        with self.workspace.world.read() as db:
            return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    def pressed(self) -> list[str]:
        """What the trap's buttons did."""
        return lines(self.workspace.home / "effects")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def trapped_project(repo: Path, root: Path) -> Path:
    """Write the project to `root`."""
    root.mkdir()
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    (root / "tools" / "trap").mkdir()
    (root / "tools" / "trap" / "__init__.py").write_text(TOOLS)
    (root / "tools" / "trap" / "pack.toml").write_text(
        '[pack]\nname = "trap"\ndescription = "Traps."\nowner = "tests"\n'
    )
    (root / "policies" / "trap.cedar").write_text(POLICIES)
    (root / "policies" / "schema.cedarschema").unlink()  # of the reference tools alone
    for file, more in (("intent/router.toml", LABELS), ("planner/planner.toml", PLAYBOOKS)):
        with (root / "routers" / file).open("a") as opened:
            opened.write(more)
    (root / ".agentops").mkdir()
    identities = root / "policies" / "identities.toml"
    text = identities.read_text()
    identities.write_text(
        text.replace('    "orders:read", "orders:write",', '    "trap:press", "orders:read", "orders:write",')
    )
    return root


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "AGENTOPS_HOME": str(home), "AGENTOPS_API_KEYS": "", "TRAP_FOLDER": str(home)}


def open_trap(root: Path) -> Workspace:
    """The project's workspace, as another process would open it."""
    return Workspace(projects.load(root, environment(root / ".agentops")))
