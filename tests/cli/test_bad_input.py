"""What users get wrong: each a sentence that names the place, the right exit code, nothing lost."""

import json
import os
import shutil
from pathlib import Path

import pytest

from agentops import project as projects
from agentops.workspace import Workspace


def test_ten_mistakes_in_a_project_come_at_once_with_file_and_line(agentops, copy: Path) -> None:
    def edit(path: str, old: str, new: str) -> None:
        file = copy / path
        text = file.read_text()
        assert old in text, (path, old)
        file.write_text(text.replace(old, new, 1))

    edit("policies/refunds.cedar", "forbid", "forbidden")
    edit("policies/release.toml", "[promote]\nalpha = ", "[promote]\nalpha = 7 # ")
    edit("policies/redaction.toml", "\n", "\nno_such_switch = true\n")
    edit(
        "routers/intent/router.toml",
        '[labels.order_status]\nagent = "orders"',
        '[labels.order_status]\nagent = "nobody"',
    )
    edit("routers/intent/router.toml", "[agents.help]\n", "[agents.help]\nmax_cals = 3\n")
    messages = copy / "routers" / "intent" / "messages.csv"
    messages.write_text(messages.read_text() + "what is this,no_such_label\n")
    edit("routers/planner/planner.toml", "c = cancel_order($order_id)", "c = cancel_ordr($order_id)")
    edit("pipelines/support/recipe.toml", "[sft] # episodes that went well\nsteps = 70", "[sft]\nstepps = 70")
    (copy / "tools" / "broken").mkdir()
    (copy / "tools" / "broken" / "pack.toml").write_text('[pack]\nname = "broken"\n')
    (copy / "tools" / "broken" / "__init__.py").write_text("import nothing_of_that_name\n")
    (copy / "pipelines" / "empty").mkdir()
    ran = agentops("check", "--project", copy, "--json")
    assert ran.code == 1
    problems = json.loads(ran.out)["problems"]
    places = {(problem["path"], problem["line"] > 0) for problem in problems}
    assert {
        ("policies/refunds.cedar", True),
        ("policies/release.toml", True),
        ("policies/redaction.toml", True),
        ("routers/intent/router.toml", True),
        ("routers/intent/messages.csv", True),
        ("routers/planner/planner.toml", True),
        ("pipelines/support/recipe.toml", True),
        ("tools/broken/__init__.py", True),
        ("pipelines/empty", False),
    } <= places
    said = " ".join(problem["message"] for problem in problems)
    for name in ("nobody", "max_cals", "no_such_label", "cancel_ordr", "stepps", "nothing_of_that_name"):
        assert name in said
    assert len(problems) >= 10


def test_a_broken_cedar_file_stops_serving_and_names_the_line(agentops, copy: Path) -> None:
    file = copy / "policies" / "base.cedar"
    file.write_text(
        file.read_text() + '\n@id("x") permit (principal, action, resource) when { context.nothing == 1 };\n'
    )
    ran = agentops("ask", "hello", "--project", copy)
    assert ran.code == 2
    assert "base.cedar" in ran.err


def test_a_torn_segment_is_named_and_nothing_is_lost(agentops, copy: Path) -> None:
    assert agentops("ask", "Which orders have I placed?", "--project", copy).code == 0
    [segment] = (copy / ".agentops" / "lake" / "spans").rglob("*.parquet")
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) // 2])
    ran = agentops("traces", "list", "--project", copy)
    assert ran.code == 2
    assert segment.name in ran.err
    assert segment.read_bytes() == whole[: len(whole) // 2]  # named, not deleted
    segment.write_bytes(whole)
    assert agentops("traces", "list", "--project", copy).code == 0


def test_a_truncated_audit_log_fails_verification(agentops, copy: Path) -> None:
    assert agentops("ask", "Which orders have I placed?", "--project", copy).code == 0
    assert agentops("audit", "verify", "--project", copy).code == 0
    logs = [
        file for file in (copy / ".agentops" / "audit").rglob("*") if file.is_file() and b"tool." in file.read_bytes()
    ]
    assert logs
    logs[0].write_bytes(logs[0].read_bytes()[:40])
    ran = agentops("audit", "verify", "--project", copy)
    assert ran.code == 1
    assert logs[0].name in ran.out


def test_a_missing_model_is_one_sentence(agentops, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOPS_ENCODER", str(copy / "no-model-here"))
    ran = agentops("ask", "hello", "--project", copy)
    assert ran.code == 2
    assert "no-model-here" in ran.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text,label\nhello,no_such_label\n", "no_such_label"),
        ("text,label\n", "no"),
        ("words,label\nhello,order_status\n", "text"),
        ("text,label\nhello\n", "2"),
    ],
)
def test_a_bad_router_data_set_names_file_and_row(agentops, copy: Path, content: str, said: str) -> None:
    data = copy / "rows.csv"
    data.write_text(content)
    ran = agentops("train", "--data", data, "--project", copy)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("traces", "show", "0" * 32),
        ("traces", "sql", "DROP TABLE spans"),
        ("traces", "sql", "SELECT * FROM read_csv('/etc/passwd')"),
        ("traces", "import", "no-such-file.pb"),
        ("traces", "feedback", "0" * 32, "--up"),
        ("harvest", "poems", "--out", "x"),
        ("harvest", "sft", "--out", "pyproject.toml"),
        ("train", "--stage", "sft"),
        ("evaluate", "no_such_suite"),
        ("evaluate", "--candidate", "sha256:beef"),
        ("release", "promote", "because"),
        ("release", "start", "sha256:beef"),
        ("approvals", "approve", "no-such-id", "--as", "E-1"),
        ("ask", "hello", "--role", "emperor"),
        ("ask", "hello", "--as", " "),
        ("no-such-command",),
        ("ask",),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_2(
    agentops, copy: Path, arguments: tuple[str, ...], monkeypatch
) -> None:
    monkeypatch.chdir(copy)
    ran = agentops(*arguments)
    assert ran.code == 2, ran
    assert ran.err.strip()
    assert len(ran.err.strip().splitlines()) <= 12


def test_outside_a_project_every_command_says_how_to_make_one(agentops, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = agentops("traces", "list")
    assert ran.code == 2
    assert "agentops init DIR" in ran.err


def test_unknown_tools_and_malformed_arguments_never_reach_a_tool(copy: Path) -> None:
    import asyncio

    from agentops.runtime import open_runtime
    from agentops.types import Run, ToolCall
    from agentops.workspace import local_principal

    async def call(workspace: Workspace, tool: str, arguments: dict):
        async with open_runtime(workspace) as runtime:
            agent = workspace.project.agents["orders"]
            who = local_principal(workspace, "C-1001")
            run = Run("r", "s", who, agent, workspace.clock.now() + 10)
            return await runtime.gateway.call(run, ToolCall("c", tool, arguments))

    with Workspace(projects.load(copy, dict(os.environ))) as workspace:
        unknown = asyncio.run(call(workspace, "rm_rf", {}))
        assert unknown.status in ("denied", "error")
        assert "rm_rf" in unknown.error
        bad = asyncio.run(call(workspace, "get_order", {"order_id": 7, "extra": True}))
        assert bad.status in ("denied", "error")
        assert "order_id" in bad.error
        assert "extra" in bad.error


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("routers/intent/router.toml", "", "= broken\n", "not valid TOML"),
        ("routers/intent/router.toml", "[agents.help]\n", '[agents.help]\nmax_seconds = "long"\n', "could not convert"),
        ("policies/identities.toml", "", "[stuff]\n", "[stuff] is not known: use [roles]"),
    ],
)
def test_check_survives_any_value_and_prints_every_character(
    agentops, copy: Path, path: str, old: str, new: str, said: str
) -> None:
    file = copy / path
    text = file.read_text()
    if "max_seconds" in new:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("max_seconds"))
    file.write_text(text.replace(old, new, 1))
    ran = agentops("check", "--project", copy)
    assert ran.code == 1
    assert agentops("ask", "hello", "--project", copy).code == 2
    assert said in ran.out  # also what looks like a style tag of the terminal library


def test_a_project_without_its_router_is_a_sentence(agentops, copy: Path) -> None:
    shutil.rmtree(copy / "routers" / "intent")
    ran = agentops("ask", "hello", "--project", copy)
    assert ran.code == 2
    assert "routers/intent" in ran.err


def test_recorded_text_neither_breaks_nor_forges_the_output(agentops, copy: Path) -> None:
    query = (
        "SELECT '[/x] [bold]' AS text, chr(27) || '[2J' || chr(8238) AS code, 1.5 AS half, INTERVAL 2 SECOND AS took"
    )
    ran = agentops("traces", "sql", query, "--project", copy)
    assert ran.code == 0
    assert "[/x] [bold]" in ran.out
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out
    assert "\\u202e" in ran.out
    [row] = json.loads(agentops("traces", "sql", query, "--project", copy, "--json").out)
    assert (row["text"], row["half"], row["took"]) == ("[/x] [bold]", 1.5, 2.0)


def test_a_path_that_cannot_be_written_is_a_sentence(agentops, copy: Path) -> None:
    ran = agentops("evaluate", "--limit", 10, "--junit", copy / "no" / "x.xml", "--project", copy)
    assert ran.code == 2
    assert "x.xml" in ran.err


@pytest.mark.parametrize("manifest", [{"stage": "sft"}, {"router": "own-labels"}])
def test_only_a_version_of_the_router_is_released_even_by_hand(agentops, copy: Path, manifest: dict) -> None:
    (copy / "made").mkdir()
    (copy / "made" / "file").write_text("x")
    with Workspace(projects.load(copy, dict(os.environ))) as workspace:
        digest = workspace.artifacts.put(copy / "made", manifest)
    ran = agentops("release", "start", digest[:19], "--override", "an emergency", "--project", copy)
    assert ran.code == 2
    assert "no version of router 'intent'" in ran.err
