"""Segments on disk: their names, which of them count, whether they are whole, and merging small ones.

Invariant: every row counts exactly once for every reader at every moment. A merged segment lists the names it replaces
in its own Parquet metadata and becomes visible by one rename; a reader that sees it leaves those names out. The
replaced files are deleted only `GRACE_S` later, longer than any listing of a folder or any running query, so a reader
that listed the folder before the rename still finds every file it listed. One merge at a time per lake (file lock).
"""

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from agentops.store.files import TEMPORARY, write_atomically
from agentops.store.schemas import TABLES

SEGMENT = re.compile(r"[0-9a-f]{32}(\.merged)?\.parquet")
SET_ASIDE = ".torn"  # suffix a person gives a damaged segment; kept, not read
REPLACES = b"agentops.replaces"
GRACE_S = 600.0
STALE_TEMPORARY_S = 3600.0
_MAGIC = b"PAR1"
_SMALLEST = 12  # magic, footer length, magic


@dataclass(frozen=True, slots=True)
class Listing:
    """What one table's folder holds at one moment."""

    live: tuple[Path, ...]  # count for readers, sorted
    replaced: tuple[Path, ...]  # merged into a live one, waiting for deletion
    foreign: tuple[Path, ...]  # not written by the lake
    torn: tuple[tuple[Path, str], ...]  # with what is wrong


def partition(root: Path, table: str, date: str, service: str) -> Path:
    """Folder of a segment. The service is percent-encoded: it may come from a foreign trace and name no other path."""
    encoded = quote(service, safe="-_")[:180].replace(".", "%2E")
    return root / table / f"date={date}" / f"service={encoded or '-'}"


def list_segments(root: Path, table: str) -> Listing:
    """Every file of `table`, sorted into the four kinds; opens only files not seen whole before by this process."""
    live: list[Path] = []
    foreign: list[Path] = []
    torn: list[tuple[Path, str]] = []
    replaced_names: dict[Path, set[str]] = {}
    for path in _files(root / table, foreign):
        if path.name.startswith(TEMPORARY) or path.name.endswith(SET_ASIDE):
            continue
        if not SEGMENT.fullmatch(path.name) or not path.parent.name.startswith("service="):
            foreign.append(path)
            continue
        try:
            fault = _fault(path, path.stat().st_size)
        except FileNotFoundError:
            continue  # deleted after its grace: the merged segment that holds its rows was visible before
        if fault:
            torn.append((path, fault))
            continue
        live.append(path)
        if path.name.endswith(".merged.parquet"):
            replaced_names.setdefault(path.parent, set()).update(_replaces(path))
    out = [path for path in live if path.name in replaced_names.get(path.parent, ())]
    gone = set(out)
    return Listing(
        tuple(sorted(path for path in live if path not in gone)), tuple(out), tuple(sorted(foreign)), tuple(torn)
    )


def _files(folder: Path, foreign: list[Path]) -> Iterator[Path]:
    """Files two levels down (date=…/service=…); anything elsewhere is foreign."""
    for date in _entries(folder):
        if not date.is_dir():
            foreign.append(Path(date.path))
            continue
        for service in _entries(Path(date.path)):
            if not service.is_dir():
                foreign.append(Path(service.path))
                continue
            for entry in _entries(Path(service.path)):
                yield Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


@lru_cache(maxsize=200_000)
def _fault(path: Path, size: int) -> str:
    """What a quick look (size, both magic numbers, footer length) finds wrong; "" if nothing. 10 µs a file."""
    if size < _SMALLEST:
        return f"is {size} bytes long, too short for a Parquet file"
    with path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(size - 8)
        tail = stream.read(8)
    if head != _MAGIC:
        return "does not start as a Parquet file"
    if tail[4:] != _MAGIC or int.from_bytes(tail[:4], "little") > size - _SMALLEST:
        return "ends in the middle: its footer is missing"
    return ""


@lru_cache(maxsize=10_000)
def _replaces(path: Path) -> tuple[str, ...]:
    """Names a merged segment stands for. Segments never change, so the answer is kept."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, OSError):
        return ()  # a damaged footer; `damage` and the query itself report the file
    return tuple(json.loads(metadata.get(REPLACES, b"[]")))


def damage(path: Path, table: str) -> str:
    """What reading every byte of a segment finds wrong; "" if nothing. Its name is the digest of its content."""
    try:
        if _name(path) != path.name.split(".")[0]:
            return "is damaged or foreign: its content does not match the digest in its name"
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {str(error).splitlines()[0][:200]}"
    for field in schema:
        if field.name not in TABLES[table].names or field.type != TABLES[table].field(field.name).type:
            return f"belongs to another version or table: column {field.name!r} of type {field.type} is not known here"
    return ""


def _name(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


@contextmanager
def merge_lock(root: Path) -> Generator[bool]:
    """Whether this process may merge now; False when another one does."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".merge.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def merge(table: str, segments: list[Path]) -> Path:
    """One segment with the rows of all of `segments` (of one partition); they stay on disk until their grace is over.

    The list of replaced names is transitive: merging a merged segment repeats what that one replaced, so deleting
    in any order, or a crash in between, never brings a row back.
    """
    names: set[str] = set()
    for path in segments:
        names.add(path.name)
        names.update(_replaces(path) if path.name.endswith(".merged.parquet") else ())
    rows = pa.concat_tables(
        [pq.read_table(path, partitioning=None) for path in segments],
        promote_options="default",
    )
    known = [field for field in TABLES[table] if field.name in rows.schema.names]
    rows = rows.select([field.name for field in known]).cast(pa.schema(known))
    metadata = {REPLACES: json.dumps(sorted(names)).encode()}
    return write_segment(segments[0].parent, rows, metadata, ".merged.parquet")


def write_segment(
    folder: Path, rows: pa.Table, metadata: Mapping[bytes, bytes] | None = None, suffix: str = ".parquet"
) -> Path:
    """`rows` as a durable segment in `folder`, named by the digest of its content.

    A random mark inside keeps two segments with equal rows apart: both were written, both count.
    """
    rows = rows.replace_schema_metadata({**(metadata or {}), b"agentops.mark": uuid4().hex.encode()})
    return write_atomically(
        folder, lambda path: pq.write_table(rows, path, compression="zstd"), lambda path: _name(path) + suffix
    )


def delete_replaced(listing: Listing, grace_s: float) -> int:
    """Delete replaced segments whose merged one is older than `grace_s` seconds; returns how many."""
    age: dict[str, float] = {}
    for path in listing.live:
        if path.name.endswith(".merged.parquet"):
            old = time.time() - path.stat().st_mtime
            for name in _replaces(path):
                age[str(path.parent / name)] = old
    deleted = 0
    for path in listing.replaced:
        if age.get(str(path), 0.0) >= grace_s:
            path.unlink(missing_ok=True)
            deleted += 1
    return deleted


def delete_stale_temporaries(root: Path, table: str) -> None:
    """Remove what writers left that died before their rename: never acknowledged, an hour old."""
    for path in _files(root / table, []):
        if path.name.startswith(TEMPORARY) and time.time() - path.stat().st_mtime > STALE_TEMPORARY_S:
            path.unlink(missing_ok=True)
