"""policies/release.toml: what ships is right, and a mistake is named with its line."""

from pathlib import Path

import pytest

from agentops.errors import ReleaseError
from agentops.release import load_rules, problems


def test_the_shipped_file_is_valid(repo: Path):
    assert problems(repo / "policies") == []
    rules = load_rules(repo / "policies")
    assert [step.weight for step in rules.steps] == [0.01, 0.05, 0.25, 0.5]
    assert rules.gate["min_accuracy"] > 0
    assert "required" not in rules.gate


@pytest.mark.parametrize(
    ("before", "after", "line_has", "says"),
    [
        ("weight = 0.25", "weight = 0.03", "weight = 0.03", "steps must grow"),
        ("alpha = 0.05", "alpha = 5", "alpha = 5", "promote.alpha = 5 is not allowed"),
        ("evidence = 20", "evidence = 12", "evidence = 12", "write at least 20"),
        (
            "tolerance = 0.0\nmargin = 0.03",
            "tolerance = 0.0\nmargin = 0.0",
            "margin = 0.0",
            "guardrails.success.margin",
        ),
        ("[shadow]\n", "[shadow]\nsesions = 3\n", "sesions = 3", "shadow.sesions is not a rule"),
        ("sessions = 500", "# gone", "[shadow]", "shadow.sessions is missing"),
        ("sessions = 500", "sessions = 20", "sessions = 20", "shadow.sessions = 20"),
        ("deadline_s = 3600", "deadline_s = nan", "deadline_s = nan", "outcomes.deadline_s"),
        ("roll_back = 1e6", "roll_back = 1e2", "roll_back = 1e2", "below warn"),
        ("required = true", 'required = "yes"', 'required = "yes"', "must be true or false"),
        ("[guardrails.denied]", "[guardrails.refused]", "[guardrails.refused]", "guardrails.refused is not a rule"),
        ("missing_margin = 0.05", "missing_margin = 0.001", "missing_margin = 0.001", "must be larger"),
    ],
)
def test_mistakes_are_named_with_their_line(
    repo: Path, tmp_path: Path, before: str, after: str, line_has: str, says: str
):
    text = (repo / "policies" / "release.toml").read_text()
    assert before in text
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "release.toml").write_text(text.replace(before, after, 1))
    found = problems(folder)
    assert found
    match = next(problem for problem in found if says in problem.message)
    assert match.path == "policies/release.toml"
    assert line_has in (folder / "release.toml").read_text().splitlines()[match.line - 1]
    with pytest.raises(ReleaseError, match=r"policies/release\.toml"):
        load_rules(folder)


def test_several_mistakes_come_at_once(repo: Path, tmp_path: Path):
    text = (repo / "policies" / "release.toml").read_text()
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "release.toml").write_text(
        text.replace("sessions = 500", "sessions = -1").replace("days = 28", "days = 0")
    )
    assert len(problems(folder)) == 2


def test_a_missing_or_broken_file_is_one_problem(tmp_path: Path):
    folder = tmp_path / "policies"
    folder.mkdir()
    assert "is missing" in problems(folder)[0].message
    (folder / "release.toml").write_text("[gate\n")
    assert problems(folder)[0].line == 1
