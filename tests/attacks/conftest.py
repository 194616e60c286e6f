"""A project of traps for a test of one's own, and one that is served over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agentops.policy import ApiKeys
from agentops.runtime import Runtime, open_runtime
from agentops.server import create_app
from agentops.workspace import Workspace

from .trapped import KEYS, Trapped, open_trap, trapped_project


@pytest.fixture
def trap(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project of traps; its state is in `root`/.agentops."""
    root = trapped_project(repo, tmp_path / "desk")
    monkeypatch.setenv("TRAP_FOLDER", str(root / ".agentops"))
    return root


@pytest.fixture
def within(trap: Path) -> Callable[..., Any]:
    """Run an attack on a freshly opened workspace; twice in a test means a restart in between."""

    def run(attack: Callable[[Trapped], Awaitable[Any]], label: str = "") -> Any:
        async def attacked(workspace: Workspace) -> Any:
            async with open_runtime(workspace) as opened:
                return await attack(Trapped(workspace, opened, label))

        with open_trap(trap) as workspace:
            return asyncio.run(attacked(workspace))

    return run


@pytest.fixture(scope="module")
def served(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Trapped]]:
    """The HTTP application on the real runtime, whose router gives one label; and its inside."""
    root = trapped_project(repo, tmp_path_factory.mktemp("served") / "desk")
    inside: list[Trapped] = []

    @asynccontextmanager
    async def runtime(workspace: Workspace) -> AsyncIterator[Runtime]:
        async with open_runtime(workspace) as opened:
            inside.append(Trapped(workspace, opened, "refund_request"))
            yield inside[0].runtime

    with pytest.MonkeyPatch.context() as patched, open_trap(root) as workspace:
        patched.setenv("TRAP_FOLDER", str(workspace.home))
        app = create_app(workspace, ApiKeys.parse(KEYS, workspace.project.policies), runtime)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield client, inside[0]
