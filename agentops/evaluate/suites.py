"""Suites: frozen sets of tasks with a content digest, from JSONL of Task rows or from any labelled CSV.

Invariant: the digest covers every task and nothing else: it does not depend on file format, key order or place. A row
that cannot be understood is refused with its line; nothing is skipped or guessed. It evaluates nothing.
"""

import csv
import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agentops.errors import EvaluateError
from agentops.types import OUT_OF_SCOPE, Task

MAX_BYTES = 256 * 1024 * 1024
MAX_LINE = 256 * 1024
MAX_TASKS = 1_000_000
LABEL_COLUMNS = ("label", "category")
_KINDS: Mapping[str, Any] = typing.get_type_hints(Task)
_REQUIRED = {field.name for field in dataclasses.fields(Task) if field.default is dataclasses.MISSING}


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks an evaluation runs on. `digest` is "sha256:…" over their content."""

    name: str
    tasks: tuple[Task, ...]
    digest: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label of the suite, sorted, OUT_OF_SCOPE included where it occurs."""
        return tuple(sorted({label for task in self.tasks for label in task.labels}))


def load_suite(path: Path, labels: Collection[str] | None = None) -> Suite:
    """The suite in a .jsonl file of Task rows or a .csv file with columns `text` and `label` or `category`.

    Args:
        path: the file. A CSV may also have columns id, template, must_pass; several labels are separated by "|".
        labels: labels that may occur, OUT_OF_SCOPE always being one; default: any.

    Raises:
        EvaluateError: no such file, an unknown format, column, key or label, a wrong value, a repeated id, no task.
        Names
            the file and line.
    """
    if path.suffix not in (".jsonl", ".csv"):
        raise EvaluateError(f"{path.name!r} is not a suite: give a .jsonl file of tasks or a .csv with text,label")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EvaluateError(
                f"{path}: a suite has at most {MAX_BYTES // 2**20} MiB, this has {path.stat().st_size} bytes"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _csv(path, file) if path.suffix == ".csv" else _jsonl(path, file)
            return suite_of(path.stem, (task for _, task in _checked(path, rows, labels)))
    except OSError as error:
        raise EvaluateError(f"suite {str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise EvaluateError(f"{path}: not UTF-8 at byte {error.start}: save the file as UTF-8") from None


def suite_of(name: str, tasks: Iterator[Task] | typing.Iterable[Task]) -> Suite:
    """A suite from tasks in memory."""
    found = tuple(tasks)
    hasher = hashlib.sha256()
    for task in found:
        row = json.dumps(dataclasses.asdict(task), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        hasher.update(row.encode("utf-8", "surrogatepass") + b"\n")
    return Suite(name, found, "sha256:" + hasher.hexdigest())


def _checked(
    path: Path, rows: Iterator[tuple[int, Task]], labels: Collection[str] | None
) -> Iterator[tuple[int, Task]]:
    seen: dict[str, int] = {}
    known = None if labels is None else {*labels, OUT_OF_SCOPE}
    for line, task in rows:
        where = f"{path}:{line}"
        if not task.text.strip():
            raise EvaluateError(f"{where}: the text is empty")
        if not task.labels:
            raise EvaluateError(f"{where}: the task has no label; write {OUT_OF_SCOPE!r} when none fits")
        if len(task.labels) > 1 and OUT_OF_SCOPE in task.labels:
            raise EvaluateError(f"{where}: {OUT_OF_SCOPE!r} cannot stand beside another label in {task.labels!r}")
        for label in task.labels:
            if known is not None and label not in known:
                close = get_close_matches(label, known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known labels: {_some(known)}"
                raise EvaluateError(f"{where}: label {label!r} is not one of the router's: {hint}")
        if task.id in seen:
            raise EvaluateError(f"{where}: id {task.id!r} is already that of line {seen[task.id]}: ids are unique")
        if len(seen) >= MAX_TASKS:
            raise EvaluateError(f"{where}: a suite has at most {MAX_TASKS} tasks")
        seen[task.id] = line
        yield line, task
    if not seen:
        raise EvaluateError(f"{path}: the suite has no task")


def _jsonl(path: Path, file: typing.TextIO) -> Iterator[tuple[int, Task]]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        where = f"{path}:{line}"
        if len(text) > MAX_LINE:
            raise EvaluateError(f"{where}: the line has {len(text)} characters, at most {MAX_LINE} are allowed")
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EvaluateError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise EvaluateError(f"{where}: a task is a JSON object, this is a {type(row).__name__}")
        yield line, _task(where, row)


def _task(where: str, row: Mapping[str, Any]) -> Task:
    unknown = sorted(set(row) - set(_KINDS))
    if unknown:
        raise EvaluateError(f"{where}: {unknown[0]!r} is not a field of a task; fields: {', '.join(sorted(_KINDS))}")
    missing = sorted(_REQUIRED - set(row))
    if missing:
        raise EvaluateError(f"{where}: field {missing[0]!r} is missing")
    values: dict[str, Any] = {}
    for key, value in row.items():
        kind = _KINDS[key]
        if typing.get_origin(kind) is tuple:
            inner = typing.get_args(kind)[0]
            wanted = str if inner is str else dict
            if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value):
                raise EvaluateError(f"{where}: {key} must be a list of {'texts' if wanted is str else 'objects'}")
            values[key] = tuple(value)
        elif typing.get_origin(kind) is typing.Literal:
            if value not in typing.get_args(kind):
                raise EvaluateError(f"{where}: {key} = {value!r:.80} must be one of {', '.join(typing.get_args(kind))}")
            values[key] = value
        elif not isinstance(value, kind if isinstance(kind, type | types.UnionType) else str):
            raise EvaluateError(f"{where}: {key} = {value!r:.80} must be of type {getattr(kind, '__name__', kind)}")
        else:
            values[key] = value
    return Task(**values)


def _csv(path: Path, file: typing.TextIO) -> Iterator[tuple[int, Task]]:
    reader = csv.DictReader(file, strict=True)
    try:
        columns = list(reader.fieldnames or ())
        label = next((name for name in LABEL_COLUMNS if name in columns), None)
        if "text" not in columns or label is None:
            raise EvaluateError(
                f"{path}:1: needs the columns text and label (or category), has: {', '.join(columns) or 'none'}"
            )
        unknown = sorted(set(columns) - {"text", label, "id", "template", "must_pass", "user"})
        if unknown:
            raise EvaluateError(
                f"{path}:1: column {unknown[0]!r} is not known; columns: text, {label}, id, template, must_pass, user"
            )
        for number, row in enumerate(reader, 1):
            where = f"{path}:{reader.line_num}"
            if None in row or any(value is None for value in row.values()):
                raise EvaluateError(f"{where}: the row does not have {len(columns)} columns")
            named = tuple(part.strip() for part in row[label].split("|") if part.strip())
            flag = (row.get("must_pass") or "").strip().lower()
            if flag not in ("", "0", "1", "false", "true", "no", "yes"):
                raise EvaluateError(f"{where}: must_pass = {flag!r} must be true or false")
            yield (
                reader.line_num,
                Task(
                    id=(row.get("id") or "").strip() or f"{path.stem}-{number}",
                    text=row["text"],
                    labels=named,
                    user=(row.get("user") or "").strip(),
                    template=(row.get("template") or "").strip(),
                    split="frozen",
                    must_pass=flag in ("1", "true", "yes"),
                ),
            )
    except csv.Error as error:
        raise EvaluateError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
