"""A data set on disk: rows.jsonl, validation.jsonl, manifest.json and a card a person reads.

Invariant: the folder appears complete or not at all, and the same input gives the same bytes (no time, no path, no
machine in it). A folder that holds a different data set is never overwritten.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from agentops.errors import HarvestError
from agentops.types import Json

PURPOSE = {
    "sft": "whole successful episodes for supervised fine-tuning",
    "dpo": "preference pairs of one assistant message each",
    "grpo": "prompts whose success is decidable, with their recorded pass rate",
    "distill": "prompts with a teacher's answer",
    "router": "requests and the label they should be routed to",
}


def write_rows(file: Path, rows: Iterable[bytes]) -> None:
    """One JSON object a line; rows that show a new shape come first.

    `datasets` derives the columns' types from the first 10 MB alone and fails on what it has not seen there; every kind
    of message, argument and schema in the first lines makes it take the column as JSON.
    """
    held: list[bytes] = []
    seen: set[str] = set()
    with file.open("wb") as out:
        rest = file.with_suffix(".rest")
        with rest.open("w+b") as later:
            for row in rows:
                paths = _shape(orjson.loads(row))
                if paths <= seen:
                    later.write(row + b"\n")
                else:
                    seen |= paths
                    held.append(row)
            out.writelines(row + b"\n" for row in held)
            later.seek(0)
            while block := later.read(1 << 20):
                out.write(block)
        rest.unlink()
        out.flush()
        os.fsync(out.fileno())


def digest(folder: Path) -> str:
    """SHA-256 over the rows, training then validation."""
    hasher = hashlib.sha256()
    for name in ("rows.jsonl", "validation.jsonl"):
        data = (folder / name).stat().st_size
        hasher.update(f"{name}\0{data}\0".encode())
        with (folder / name).open("rb") as file:
            while block := file.read(1 << 20):
                hasher.update(block)
    return "sha256:" + hasher.hexdigest()


def write_about(folder: Path, manifest: Mapping[str, Any]) -> None:
    """manifest.json and card.md."""
    (folder / "manifest.json").write_bytes(_manifest_bytes(manifest))
    (folder / "card.md").write_text(card(manifest), encoding="utf-8")


def publish(folder: Path, out: Path) -> None:
    """Move the finished `folder` to `out` in one step; nothing to do when the same data set is there.

    Raises:
        HarvestError: `out` holds something else.
    """
    if out.is_dir() and any(out.iterdir()):
        names = ("rows.jsonl", "validation.jsonl", "manifest.json")
        if all((out / name).is_file() and _same_file(folder / name, out / name) for name in names):
            return
        raise HarvestError(
            f"{str(out)!r} already holds {_holding(out)}: give another folder, or remove it first; nothing was changed"
        )
    try:
        folder.replace(out)
    except OSError as error:
        raise HarvestError(
            f"{str(out)!r} cannot be written: {error.strerror}; give a folder that may be made"
        ) from None


def card(manifest: Mapping[str, Any]) -> str:
    """The funnel and what else a reader must know, as Markdown."""
    kind, rows, redaction = manifest["kind"], manifest["rows"], manifest["redaction"]
    lines = [
        f"# {kind}: {PURPOSE[kind]}",
        "",
        f"{rows['train']} training and {rows['validation']} validation rows from {len(manifest['sources'])} episodes, "
        f"made by agentops {manifest['engine']}. Content digest `{manifest['digest']}`.",
        "",
        "## From episodes to rows",
        "",
        "| filter | in | out | dropped, and why |",
        "|---|---:|---:|---|",
    ]
    for stage in manifest["funnel"]:
        unit = f" ({stage['unit']} to {stage['makes']})" if "makes" in stage else f" ({stage['unit']})"
        why = "; ".join(f"{count} {reason}" for reason, count in stage["dropped"].items())
        lines.append(f"| {stage['filter']}{unit} | {stage['in']} | {stage['out']} | {why} |")
    if manifest["counts"]:
        lines += ["", "## What is in it", ""]
    for name, counts in manifest["counts"].items():
        lines.append(f"- {name}: " + ", ".join(f"{key} {count}" for key, count in counts.items()))
    lines += ["", "## Personal data", ""]
    found = ", ".join(f"{count} {name}" for name, count in redaction["findings"].items())
    lines.append(
        f"Redacted again with version `{redaction['version']}`: "
        + (f"**{found} had got past the first redaction (a defect); replaced.**" if found else "nothing was found.")
    )
    lines += ["", "## Kept out", ""]
    protected = [f"- {name}: {one['texts']} texts, `{one['digest']}`" for name, one in manifest["excluded"].items()]
    lines += protected or ["- no evaluation set was given: this data set may overlap with one"]
    lines += ["", f"Split: {manifest['split']['rule']} ({manifest['split']['share']}).", ""]
    return "\n".join(lines)


def _shape(row: dict[str, Json]) -> set[str]:
    """Every path of a row with its type; tool schemas, long and few, count as a whole."""
    tools = row.pop("tools", None)
    return {orjson.dumps(tools).decode(), *_paths("", row)}


def _paths(prefix: str, value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        yield prefix + "{}" + ",".join(sorted(value))
        for key, item in value.items():
            yield from _paths(f"{prefix}.{key}", item)
    elif isinstance(value, list):
        for item in value or (None,):
            yield from _paths(prefix + "[]", item)
    else:
        yield f"{prefix}:{type(value).__name__}"


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"


def _same_file(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _holding(out: Path) -> str:
    try:
        found = orjson.loads((out / "manifest.json").read_bytes())
        return f"a different {found['kind']} data set ({found['digest'][:19]})"
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return "files that are not this data set"
