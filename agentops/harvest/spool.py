"""Candidates on disk while their groups are found: the harvest keeps an index in memory, not the episodes.

Invariant: groups come out ordered by key and their members by `order`, whatever the order they went in, so a data set
does not depend on how the lake listed its segments. The file belongs to one harvest and dies with its folder.
"""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from agentops.harvest.rows import Candidate, Row


class Spool:
    """A file of candidates with an index of (key digest, order, offset, length); about 150 bytes each in memory."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._index: list[tuple[bytes, str, int, int]] = []
        self._end = 0

    def add(self, candidate: Candidate) -> None:
        """Raises: TypeError (orjson): the candidate holds what JSON cannot, for example half a surrogate pair."""
        data = orjson.dumps(candidate)
        key = hashlib.blake2b(candidate.key.encode("utf-8", "replace"), digest_size=16).digest()
        self._index.append((key, candidate.order, self._end, len(data)))
        self._file.write(data)
        self._end += len(data)

    def groups(self) -> Iterator[Iterator[Candidate]]:
        """Each key's candidates, read as they are consumed."""
        self._file.flush()
        self._index.sort()
        for _, entries in itertools.groupby(self._index, key=lambda entry: entry[0]):
            yield (self._read(offset, length) for _, _, offset, length in entries)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._index)

    def _read(self, offset: int, length: int) -> Candidate:
        self._file.seek(offset)
        found: dict[str, Any] = orjson.loads(self._file.read(length))
        row = found["row"]
        about = (row["columns"], row["request"], tuple(row["sessions"]), row["task"], row["tenant"])
        return Candidate(found["key"], found["order"], Row(*about, tuple(row["traces"])), found["facts"])
