"""A missing extra is one sentence; a broken import inside an installed package is not hidden."""

import sys

import pytest

from agentops.errors import MissingExtra, require


def test_missing_extra_names_the_command() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'agentops-flywheel\[ray\]'"):
        require("surely_not_installed_anywhere", "ray")


def test_a_fault_inside_the_optional_package_is_shown_as_it_is(tmp_path, monkeypatch) -> None:
    (tmp_path / "halfbroken.py").write_text("import surely_not_installed_anywhere\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError):
        require("halfbroken", "ray")
