"""Finding, mounting and loading a project; every problem at once."""

import pickle
import sys
from pathlib import Path

import pytest

from agentops import project
from agentops.errors import ProjectError

TOOL = '''"""Pack."""
from agentops.act import Context, tool


@tool(effect="read", scopes={"a:read"}, timeout_s=1)
async def look(ctx: Context, key: str) -> dict:
    """Look something up."""
    return {"key": key}


class Thing:
    pass
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    for folder in project.FOLDERS:
        (tmp_path / folder).mkdir()
    pack = tmp_path / "tools" / "alpha"
    pack.mkdir()
    (pack / "pack.toml").write_text('[pack]\nname = "alpha"\n')
    (pack / "__init__.py").write_text(TOOL)
    router = tmp_path / "routers" / "intent"
    router.mkdir()
    (router / "router.toml").write_text('[agents.helper]\ntools = ["look"]\nscopes = ["a:read"]\nmax_calls = 3\n')
    return tmp_path


def test_find_walks_up_and_says_what_to_do(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert project.find(root / "tools" / "alpha") == root
    with pytest.raises(ProjectError, match="agentops init DIR"):
        project.find(tmp_path_factory.mktemp("empty"))


def test_loaded_project_has_tools_agents_and_settings(root: Path) -> None:
    loaded = project.load(root, {})
    assert set(loaded.tools) == {"look"}
    assert loaded.tools["look"].spec.pack == "alpha"
    assert loaded.agents["helper"].max_calls == 3
    assert loaded.settings.service == "desk"


def test_project_code_is_mounted_under_one_reserved_name(root: Path) -> None:
    before = list(sys.path)
    module = project.module(root, "tools.alpha")
    assert module.__name__ == "agentops_project.tools.alpha"
    assert sys.path == before
    assert isinstance(pickle.loads(pickle.dumps(module.Thing())), module.Thing)


def test_mounting_another_project_unloads_the_first(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.load(root, {})
    other = tmp_path_factory.mktemp("other")
    (other / "tools" / "alpha").mkdir(parents=True)
    (other / "tools" / "alpha" / "__init__.py").write_text("MARK = 'other'\n")
    assert project.module(other, "tools.alpha").MARK == "other"


def test_digest_follows_content_and_ignores_caches(root: Path) -> None:
    first = project.digest(root)
    (root / "tools" / "alpha" / "__pycache__").mkdir(exist_ok=True)
    (root / "tools" / "alpha" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert project.digest(root) == first
    (root / "policies" / "a.cedar").write_text("x")
    assert project.digest(root) != first


def test_all_problems_come_at_once_with_file_and_line(root: Path) -> None:
    (root / "tools" / "beta").mkdir()
    (root / "tools" / "gamma").mkdir()
    (root / "tools" / "gamma" / "pack.toml").write_text("[pack\n")
    (root / "tools" / "gamma" / "__init__.py").write_text("x = 1\nraise ValueError('boom')\n")
    (root / "tools" / "delta").mkdir()
    (root / "tools" / "delta" / "pack.toml").write_text("")
    (root / "tools" / "delta" / "__init__.py").write_text(TOOL)
    (root / "routers" / "intent" / "router.toml").write_text("ok = 1\nnot toml\n")
    (root / "pipelines").rmdir()
    with pytest.raises(ProjectError) as caught:
        project.load(root, {})
    shown = [str(problem) for problem in caught.value.problems]
    assert any(text.startswith("tools/beta: has no pack.toml") for text in shown)
    assert any(text.startswith("tools/gamma/pack.toml:1: not valid TOML") for text in shown)
    assert any(text.startswith("tools/gamma/__init__.py:2: ValueError: boom") for text in shown)
    assert any(text.startswith("tools/delta/__init__.py:") and "already defined" in text for text in shown)
    assert any(text.startswith("routers/intent/router.toml:2: not valid TOML") for text in shown)
    assert any(text.startswith("pipelines: folder is missing") for text in shown)


def test_a_bad_setting_names_its_line(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\nprot = 1\n')
    _, problems = project.inspect(root, {})
    assert [(problem.path, problem.line) for problem in problems] == [("pyproject.toml", 3)]
