"""Where a project's labelled requests are: its suites, its seed rows, harvested rows, a CSV.

Invariant: a row's label is one the router's definition knows, or the error names the file and line. Nothing here
trains, measures or decides.
"""

from collections.abc import Iterable
from pathlib import Path

import orjson

from agentops.errors import EvaluateError, TrainError
from agentops.evaluate import Suite, load_suite
from agentops.project import Definition, Project
from agentops.types import OUT_OF_SCOPE

ROUTER = "intent"  # the router commands mean when none is named


def suite_path(pipeline: Definition, key: str) -> Path:
    """File of the pipeline's `[evaluate] suite | sealed | replay`.

    Raises:
        EvaluateError: the recipe does not name it.
    """
    named = pipeline.table.get("evaluate", {}).get(key)
    if not named:
        raise EvaluateError(
            f"pipelines/{pipeline.name}/recipe.toml: [evaluate] has no {key!r}: name a .jsonl or .csv file"
        )
    return pipeline.path / str(named)


def labels_of(project: Project, router: str = ROUTER) -> frozenset[str]:
    """The labels the router's definition knows, and OUT_OF_SCOPE."""
    return frozenset(project.router(router).table.get("labels", {})) | {OUT_OF_SCOPE}


def find_suite(project: Project, name: str = "", pipeline: str = "") -> Suite:
    """A suite by its role in the recipe ("suite" when empty, "sealed", "replay"), by its name in suites/, or by file.

    Raises:
        EvaluateError: no such suite; names the choices.
    """
    if Path(name).suffix:
        return load_suite(Path(name))
    definition = project.pipeline(pipeline)
    if name in ("", "suite", "sealed", "replay"):
        return load_suite(suite_path(definition, name or "suite"), labels_of(project))
    file = definition.path / "suites" / f"{name}.jsonl"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in file.parent.glob("*.jsonl"))) or "none"
        raise EvaluateError(
            f"suite {name!r} does not exist in pipelines/{definition.name}/suites: {known}; or give a file"
        )
    return load_suite(file, labels_of(project))


def seed_rows(project: Project, router: str = ROUTER) -> list[tuple[str, str]]:
    """The rows the router's definition ships with."""
    definition = project.router(router)
    file = definition.path / str(definition.table.get("router", {}).get("seed_data", "messages.csv"))
    return labelled(file, labels_of(project, router))


def labelled(path: Path, labels: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """(text, label) rows of a labelled file: CSV with text and label (or category), JSONL rows of a harvest or a suite,
    or a harvested folder. Requests with several labels are left out: each row teaches one.

    Raises:
        EvaluateError, TrainError: no such data, or a row that cannot be used; names the line.
    """
    if path.is_dir():
        path = path / "rows.jsonl"
    if not path.is_file():
        raise TrainError(
            f"no data at {str(path)!r}: give a CSV with text,label, a .jsonl or a folder made by `agentops harvest`"
        )
    if path.suffix == ".jsonl" and (path.parent / "manifest.json").is_file():
        return [
            _row(path, number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()
        ]
    found = load_suite(path, None if labels is None else frozenset(labels))
    return [(task.text, task.labels[0]) for task in found.tasks if len(task.labels) == 1]


def with_seed(project: Project, rows: list[tuple[str, str]], router: str = ROUTER) -> list[tuple[str, str]]:
    """`rows` and those seed rows whose text they do not have: few traces must not make a router forget its labels."""
    known = {" ".join(text.split()).casefold() for text, _ in rows}
    return rows + [row for row in seed_rows(project, router) if " ".join(row[0].split()).casefold() not in known]


def _row(path: Path, number: int, line: bytes) -> tuple[str, str]:
    try:
        row = orjson.loads(line)
        return str(row["text"]), str(row["label"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise TrainError(
            f"{path.parent.name}/{path.name}:{number}: not a router row (text, label): harvest kind router"
        ) from None
