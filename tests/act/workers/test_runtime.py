"""A project of its own, with an isolated tool: checked, served, recorded, closed."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentops import project
from agentops.check import check
from agentops.cli.scaffold import scaffold
from agentops.policy import write_schema
from agentops.runtime import open_runtime
from agentops.types import Principal, Run, ToolCall
from agentops.workspace import open_workspace

PACK = '''
"""A service of others."""

import os

from agentops.act import Context, Labels, tool
from agentops.types import Isolation


@tool(
    effect="read",
    scopes={"books:read"},
    timeout_s=10,
    labels=Labels("untrusted", "public"),
    isolation=Isolation(hosts=("127.0.0.1:PORT",), secrets=("shop",)),
)
async def page(ctx: Context) -> dict:
    """Read a page."""
    reply = await ctx.fetch("GET", "http://127.0.0.1:PORT/echo", secret="shop")
    return {"status": reply.status, "seen": reply.text(), "variable": os.environ.get("LAB_SHOP_KEY")}
'''
PERMIT = """
@id("read-page")
permit (principal, action == Action::"page", resource)
when { principal.scopes.containsAll(resource.scopes) && context.g.isolation != "none" };
"""
SECRET = '[secrets.shop]\nfrom_env = "LAB_SHOP_KEY"\nhosts = ["127.0.0.1:PORT"]\n'


@pytest.fixture
def shop(tmp_path: Path, server: Any) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    scaffold(root)
    (root / "tools/web").mkdir()
    (root / "tools/web/pack.toml").write_text('[pack]\nname = "web"\n')
    (root / "tools/web/__init__.py").write_text(PACK.replace("PORT", str(server.port)))
    (root / "policies/secrets.toml").write_text(SECRET.replace("PORT", str(server.port)))
    with (root / "policies/base.cedar").open("a") as file:
        file.write(PERMIT)
    router = root / "routers/intent/router.toml"
    router.write_text(router.read_text().replace('tools = ["find_books"', 'tools = ["page", "find_books"', 1))
    loaded = project.load(root)
    specs = {name: tool.spec for name, tool in loaded.tools.items()}
    write_schema(loaded.policies, specs, loaded.agents)
    return root


def test_an_isolated_tool_is_served_with_its_credential(
    shop: Path, server: Any, living: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_SHOP_KEY", "k3y-of-the-shop-in-the-environment")
    before = living()
    assert check(shop) == []

    async def served() -> tuple[Any, Any]:
        with open_workspace(shop) as workspace:
            async with open_runtime(workspace) as runtime:
                assert "LAB_SHOP_KEY" not in os.environ
                agent = next(one for one in workspace.project.agents.values() if "page" in one.tools)
                who = Principal("default", "ann", frozenset({"books:read"}), frozenset({"customer"}))
                run = Run("r-1", "s-1", who, agent, workspace.clock.now() + 60)
                result = await runtime.gateway.call(run, ToolCall("c-1", "page", {}))
            return result, workspace.redactor.text("it is k3y-of-the-shop-in-the-environment")

    try:
        result, text = asyncio.run(served())
    finally:
        project.mount(Path(__file__).parents[3])
    assert result.status == "ok", result
    assert result.value["status"] == 200
    assert server.seen[-1][2]["Authorization"] == "Bearer k3y-of-the-shop-in-the-environment"
    assert "k3y" not in str(result) + text
    assert result.value["variable"] is None
    assert living() <= before
