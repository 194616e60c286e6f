"""The offline loop on the reference project: data sets, training, gate, release, and the demo that shows it all."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentops import improve
from agentops.errors import HarvestError, ReleaseError, RouteError, TrainError
from agentops.evaluate import Suite
from agentops.improve import Trained, ensure_router
from agentops.labelled import find_suite, labelled, labels_of, seed_rows, with_seed
from agentops.project import FOLDERS
from agentops.release import Controller, Metrics, load_rules
from agentops.runtime import load_router
from agentops.trace import import_files
from agentops.types import OUT_OF_SCOPE, Route, Task
from agentops.workspace import Workspace

from .conftest import ask


def test_the_shipped_router_says_that_it_is_a_handful(desk: Workspace) -> None:
    manifest = desk.artifacts.manifest(desk.registry.current("intent"))
    assert manifest["shipped"] is True
    assert manifest["rows"] == len(seed_rows(desk.project))
    assert ensure_router(desk) == ""  # a version in service is left alone


def test_data_sets_exclude_the_frozen_and_the_sealed_suite(desk: Workspace) -> None:
    held = improve.exclusion(desk.project).describe()
    assert [one["texts"] for one in held.values()] == [1000, 1000]


@pytest.mark.anyio
async def test_nothing_to_learn_from_ends_the_loop_with_a_reason(
    open_desk: Callable[[Path], Workspace], tmp_path: Path
) -> None:
    with open_desk(tmp_path) as desk:
        ensure_router(desk)
        await ask(desk, "Which orders have I placed so far?")  # nobody judged it
        desk.tracing.flush()
        steps = list(improve.improve(desk))
        assert steps[-1]["step"] == "harvest"
        assert steps[-1]["failed"] is True


def test_a_data_set_with_an_unknown_label_names_it(desk: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\nwhere is it,order_status\nsing me a song,entertainment\n")
    with pytest.raises(Exception, match=r"rows\.csv.*3.*entertainment"):
        improve.train_stage(desk, "router", file)


def test_data_with_its_own_labels_makes_a_router_that_cannot_be_mistaken_for_the_projects(
    desk: Workspace, tmp_path: Path
) -> None:
    rows = [
        (f"{verb} the {thing} now", verb)
        for verb in ("open", "close", "paint")
        for thing in ["door", "gate", "box", "lid"]
    ]
    file = tmp_path / "own.csv"
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    made = improve.train_stage(desk, "router", file, own_labels=True)
    report = improve.evaluate_version(desk, made.digest, find_suite(desk.project, str(file)))
    assert report.metrics["accuracy"].value >= 0.9
    assert made.manifest["router"] == "own-labels"
    with pytest.raises(TrainError, match="cannot be trained"):
        improve.train_stage(desk, "poetry", file)


def test_an_artifact_that_is_no_router_is_refused(desk: Workspace, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("x")
    digest = desk.artifacts.put(tmp_path / "made", {"stage": "sft"})
    with pytest.raises(RouteError, match="is no router"):
        load_router(desk, digest)


def test_releases_are_decided_on_wordings_the_candidate_never_saw() -> None:
    tasks = [Task(f"t{n}", f"text {n}", ("a",), "u", template=f"w{n // 2}") for n in range(300)]
    left = improve.unseen(tasks, ["Text  0", "text 7"])
    assert {task.template for task in tasks} - {task.template for task in left} == {"w0", "w3"}
    with pytest.raises(ReleaseError, match="never saw"):
        improve.unseen(tasks[:20], [])


def test_replayed_sessions_measure_both_versions_on_the_same_requests() -> None:
    class Always:
        def __init__(self, label: str) -> None:
            self.version = self.label = label

        def route(self, texts: list[str]) -> list[tuple[Route, ...]]:
            return [(Route(self.label, 1.0, "x", latency_s=0.25),) for _ in texts]

    tasks = [Task("1", "one", ("a",), "u"), Task("2", "two", ("b",), "u")]
    units = list(improve.replay_units(Always("a"), Always("b"), tasks, 50, seed=3))
    assert len({unit.session for unit in units}) == 50
    for unit in units:
        assert isinstance(unit.stable, Metrics)
        assert {unit.stable.success, unit.candidate.success} == {0, 1}
        assert unit.disagreed is True
    assert {unit.stable.success for unit in units} == {0, 1}


def test_a_suite_is_found_by_role_name_and_file(desk: Workspace, repo: Path) -> None:
    assert isinstance(find_suite(desk.project), Suite)
    assert len(find_suite(desk.project, "sealed").tasks) == 1000
    assert find_suite(desk.project, "replay").digest == find_suite(desk.project, "traffic").digest
    assert len(find_suite(desk.project, str(repo / "pipelines/support/suites/frozen.jsonl")).tasks) == 1000
    assert OUT_OF_SCOPE in labels_of(desk.project)


def test_a_data_set_gets_a_new_folder_also_after_an_old_one_was_removed(tmp_path: Path) -> None:
    (tmp_path / "router-0002").mkdir()
    assert improve._next_folder(tmp_path).name == "router-0003"
    assert improve._next_folder(tmp_path / "none").name == "router-0001"


@pytest.fixture(scope="module")
def small(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the reference project whose recipe takes two steps a stage."""
    root = tmp_path_factory.mktemp("small") / "desk"
    root.mkdir()
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    recipe = root / "pipelines" / "support" / "recipe.toml"
    lines = [
        "steps = 2" if line.startswith("steps = ") else "generations = 2" if line.startswith("generations = ") else line
        for line in recipe.read_text().splitlines()
    ]
    recipe.write_text("\n".join("batch_size = 2" if line.startswith("batch_size = ") else line for line in lines))
    return root


@pytest.mark.slow
def test_every_stage_trains_on_harvested_rows(small: Path, tmp_path: Path) -> None:
    """Serve, judge, harvest, then sft, dpo and grpo of the recipe on a micro model."""
    import asyncio

    from agentops import project as projects
    from agentops.cli.rehearsal import Rehearsal
    from agentops.train.micro import make

    with Workspace(projects.load(small, {**os.environ, "AGENTOPS_HOME": str(tmp_path / "home")})) as desk:
        rehearsal = Rehearsal(desk)
        rehearsal.deploy()
        served = asyncio.run(rehearsal.serve(80))
        asyncio.run(rehearsal.judge(served))
        rows = rehearsal.harvest()
        assert all(count > 0 for count in rows.values()), rows
        episodes = (desk.home / "datasets" / "sft" / "rows.jsonl").read_text().splitlines()
        base = make(tmp_path / "micro", episodes, vocabulary=4000, positions=8192)
        for stage in ("sft", "dpo"):
            data = desk.home / "datasets" / stage
            made = improve.train_stage(desk, stage, data, base=base)
            assert isinstance(made, Trained)
            assert made.manifest["data"].startswith("sha256:")
            assert desk.artifacts.path(made.digest).is_dir()
        # A model that knows nothing writes no plan: every episode ran, was judged, and there was nothing to tell apart.
        with pytest.raises(TrainError, match="nothing was learned: in 4 groups"):
            improve.train_stage(desk, "grpo", desk.home / "datasets" / "grpo", base=base)
        with pytest.raises(HarvestError):
            improve.harvest_dataset(desk, "sft", desk.home / "datasets" / "sft", where="service = 'nobody'")
        texts = {text for text, _ in labelled(desk.home / "datasets" / "router")}
        assert not texts & {task.text for task in rehearsal.frozen.tasks}


@pytest.mark.slow
def test_the_demo_runs_the_whole_loop(repo: Path, tmp_path: Path) -> None:
    root = tmp_path / "desk"
    root.mkdir()
    for folder in FOLDERS:
        shutil.copytree(repo / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text('[tool.agentops]\nservice = "desk"\n')
    command = [sys.executable, "-m", "agentops.cli", "demo", "--steps", "2", "--json", "--project", str(root)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["failed"] == 0
    assert figures["audit_verified"] is True
    assert figures["denied"] >= 2
    assert figures["cache_hits"] > 0
    assert figures["parallel_speed_up"] > 1.0
    assert min(figures["datasets"].values()) > 0
    assert figures["release"]["stage"] == "full"
    assert figures["damaged"]["stage"] == "rolled_back"
    assert figures["gain"] >= 0.10


def test_seed_rows_fill_what_few_traces_lack_and_never_contradict_them(desk: Workspace) -> None:
    seed = seed_rows(desk.project)
    text, label = seed[0]
    other = next(one for _, one in seed if one != label)
    rows = with_seed(desk.project, [(f"  {text.upper()} ", other)])
    assert len(rows) == len(seed)
    assert [one for words, one in rows if " ".join(words.split()).casefold() == text.casefold()] == [other]
    assert {one for _, one in rows} == {one for _, one in seed}


@pytest.mark.data
def test_imported_traces_nobody_judged_become_rows_until_somebody_judges_one(
    open_desk: Callable[[Path], Workspace], data_dir: Path, tmp_path: Path
) -> None:
    with open_desk(tmp_path / "home") as desk:
        import_files(desk.lake, desk.redactor, sorted((data_dir / "otlp").glob("*.pb")))
        assert improve.harvest_dataset(desk, "sft", tmp_path / "unjudged").rows >= 1
        with pytest.raises(HarvestError, match="outcome unknown"):
            improve.harvest_dataset(desk, "sft", tmp_path / "strict", options={"include_undecided": False})
        import_files(desk.lake, desk.redactor, [data_dir / "tau_airline" / "gpt-4o-airline.json"])
        made = improve.harvest_dataset(desk, "sft", tmp_path / "judged")
        assert made.manifest["options"]["include_undecided"] is False
        assert "import:genai" not in (made.path / "rows.jsonl").read_text()


def test_the_loop_does_not_train_while_a_release_is_open(
    open_desk: Callable[[Path], Workspace], tmp_path: Path
) -> None:
    with open_desk(tmp_path) as desk:
        ensure_router(desk)
        candidate = improve.train_router(desk, seed_rows(desk.project), {"data": "the same rows, another manifest"})
        controller = Controller(desk.registry, load_rules(desk.project.policies), desk.clock)
        controller.start("intent", candidate.digest, by="test", override="a release to be in the way")
        [step] = improve.improve(desk)
        assert step["failed"] is True
        assert "is open (shadow)" in step["summary"]
        controller.abort("intent", by="test", reason="out of the way")
        assert next(iter(improve.improve(desk)))["step"] == "harvest"
