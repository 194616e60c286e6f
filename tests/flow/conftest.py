"""The reference project with its state in a temporary folder."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentops import project as projects
from agentops.improve import ensure_router
from agentops.runtime import Answer, new_request, open_runtime
from agentops.workspace import Workspace, local_principal


@pytest.fixture(scope="session")
def open_desk(repo: Path) -> Callable[[Path], Workspace]:
    def opened(home: Path) -> Workspace:
        environment = {**os.environ, "AGENTOPS_HOME": str(home), "AGENTOPS_API_KEYS": ""}
        return Workspace(projects.load(repo, environment))

    return opened


@pytest.fixture(scope="module")
def desk(open_desk: Callable[[Path], Workspace], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace with the shipped router in service, shared by the tests of one module."""
    with open_desk(tmp_path_factory.mktemp("desk")) as workspace:
        ensure_router(workspace)
        yield workspace


async def ask(workspace: Workspace, text: str, user: str = "C-1001", session: str = "", **more: object) -> Answer:
    """One request through a runtime of its own."""
    async with open_runtime(workspace) as runtime:
        return await runtime.ask(new_request(text, local_principal(workspace, user), session, **more))
