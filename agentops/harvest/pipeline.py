"""harvest(): from trajectories to a data set whose every row can be explained.

Invariant: the filters run in one order (decidable, outcome, denied, inaction, consent, rows, pairs or merging, personal
data, duplicates, contamination, split), each counted; the result depends on the set of trajectories, not their order.
Trajectories are streamed: memory holds an index and shingles, never the episodes. It decides nothing about release.
"""

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import orjson

from agentops import __version__
from agentops.errors import HarvestError
from agentops.harvest import dpo, options, prompts, router, sft, split, write
from agentops.harvest.exclusion import RULE, Exclusion
from agentops.harvest.funnel import Funnel
from agentops.harvest.personal import Cleaner
from agentops.harvest.rows import Kind, Row
from agentops.harvest.screen import screen
from agentops.harvest.similar import Shingles, keep_first, normal, shingles
from agentops.harvest.spool import Spool
from agentops.redact import Redactor
from agentops.types import Dataset, Trajectory

KINDS: Mapping[str, Kind] = {
    "sft": sft.KIND,
    "dpo": dpo.KIND,
    "grpo": prompts.GRPO,
    "distill": prompts.DISTILL,
    "router": router.KIND,
}
COUNTED = ("source", "prefix", "label", "outcome", "band")  # columns whose values the card counts


@dataclass(slots=True)
class _Kept:
    """What the last filters need to know of a row that waits on disk."""

    offset: int
    length: int
    request: str
    sessions: tuple[str, ...]
    task: str
    traces: tuple[str, ...]
    protected: str  # the evaluation set it overlaps with, "" when none


def harvest(
    kind: str,
    trajectories: Iterable[Trajectory],
    out: Path,
    *,
    exclude: Exclusion,
    redactor: Redactor,
    options: Mapping[str, Any] = {},
) -> Dataset:
    """Make the data set `kind` ("sft", "dpo", "grpo", "distill", "router") of `trajectories` in the new folder `out`.

    Args:
        kind: which of KINDS.
        trajectories: read once, in any order.
        out: rows.jsonl (training), validation.jsonl, manifest.json and card.md appear here together, or nothing does.
        exclude: evaluation sets whose texts may not appear; Exclusion({}) only where nothing is measured.
        redactor: replaces personal data that got past the first redaction.
        options: see harvest.options.Options.

    Returns:
        The data set; `rows` counts training rows.

    Raises:
        HarvestError: unknown kind or option, nothing left after the filters (with where it went), or `out` holds a
            different data set.
    """
    if kind not in KINDS:
        raise HarvestError(f"data set kind {kind!r} is not known; kinds: {', '.join(sorted(KINDS))}")
    settings = _options(options)
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise HarvestError(f"{str(out)!r} is a file: give a folder for the data set")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise HarvestError(f"{str(out)!r} cannot be made: {error.strerror}; give a folder you may write in") from None
    try:
        built = work / "out"
        built.mkdir()
        manifest = _build(kind, trajectories, work, built, exclude, redactor, settings)
        write.publish(built, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Dataset(cast(Any, kind), out, manifest["rows"]["train"], manifest["digest"], manifest)


def _options(given: Mapping[str, Any]) -> options.Options:
    return options.read(given)


def _build(
    name: str,
    trajectories: Iterable[Trajectory],
    work: Path,
    built: Path,
    exclude: Exclusion,
    redactor: Redactor,
    settings: options.Options,
) -> dict[str, Any]:
    kind, funnel = KINDS[name], Funnel()
    cleaner = Cleaner(redactor, kind.content)
    with (work / "rows").open("w+b") as file:
        with Spool(work / "candidates") as waiting:
            _collect(name, kind, trajectories, waiting, settings, funnel)
            rows = _assembled(kind, waiting, settings, funnel)
            kept, texts = _store(rows, kind, cleaner, exclude.matcher(redactor.text), file, funnel)
        kept = _without_copies(kept, texts, funnel)
        del texts
        train, validation, count = _split(kept, kind, settings, funnel)
        if not train:
            raise HarvestError(f"no {name} rows are left of the episodes: {funnel.sentence()}")
        counts: dict[str, Counter[str]] = {}
        write.write_rows(built / "rows.jsonl", _lines(file, train, counts))
        write.write_rows(built / "validation.jsonl", _lines(file, validation, {}))
    manifest = {
        "kind": name,
        "digest": write.digest(built),
        "engine": __version__,
        "rows": {"train": len(train), "validation": len(validation)},
        "funnel": funnel.describe(),
        "counts": {column: dict(sorted(found.items())) for column, found in counts.items()},
        "redaction": cleaner.describe(),
        "excluded": exclude.describe(),
        "exclusion_rule": RULE,
        "split": {"rule": split.RULE, "share": settings.validation, "groups": count},
        "options": settings.describe(),
        "sources": sorted({trace for one in [*train, *validation] for trace in one.traces}),
    }
    write.write_about(built, manifest)
    return manifest


def _collect(
    name: str,
    kind: Kind,
    trajectories: Iterable[Trajectory],
    waiting: Spool,
    settings: options.Options,
    funnel: Funnel,
) -> None:
    """Screen every episode and put what it offers on disk."""
    for trajectory in trajectories:
        if not screen(name, trajectory, settings, funnel):
            continue
        stage = funnel.stage("rows", "episodes", "candidates")
        stage.entered += 1
        try:
            for candidate in kind.extract(trajectory, settings, stage):
                waiting.add(candidate)
        except TypeError as error:
            if not isinstance(error, orjson.JSONEncodeError):
                raise
            stage.left -= 1
            stage.drop("holds what JSON cannot express")


def _assembled(kind: Kind, waiting: Spool, settings: options.Options, funnel: Funnel) -> Iterator[Row]:
    stage = funnel.stage("merge" if kind.makes != "pairs" else "pair", "candidates", kind.makes)
    stage.entered = len(waiting)
    for group in waiting.groups():
        yield from kind.assemble(group, settings, stage)


def _store(
    rows: Iterable[Row],
    kind: Kind,
    cleaner: Cleaner,
    match: Callable[[str], str],
    file: IO[bytes],
    funnel: Funnel,
) -> tuple[list[_Kept], list[Shingles]]:
    """Redact each row, drop exact copies, put the rest on disk; near copies and protected texts are judged later."""
    kept: list[_Kept] = []
    texts: list[Shingles] = []
    seen: set[bytes] = set()
    for row in rows:
        columns, reason = cleaner.clean(row.columns, row.tenant)
        if not funnel.stage("personal data", kind.makes).judge(reason):
            continue
        form = normal(kind.similar(columns))
        fingerprint = hashlib.blake2b(form.encode("utf-8", "replace"), digest_size=16).digest()
        stage = funnel.stage("duplicates", kind.makes)
        if fingerprint in seen:
            stage.judge("same text")
            continue
        seen.add(fingerprint)
        data = orjson.dumps(columns)
        offset = file.tell()
        file.write(data)
        protected = next(filter(None, map(match, kind.texts(columns))), "")
        kept.append(_Kept(offset, len(data), row.request, row.sessions, row.task, row.traces, protected))
        texts.append(shingles(form))
    return kept, texts


def _without_copies(kept: list[_Kept], texts: list[Shingles], funnel: Funnel) -> list[_Kept]:
    """Drop near copies of earlier rows, then what overlaps with a protected set."""
    if not kept:
        return kept
    stages = funnel.stages
    unit = stages["personal data"].unit
    first = [
        one
        for one, copy_of in zip(kept, keep_first(texts), strict=True)
        if stages["duplicates"].judge("near copy (Jaccard >= .8)" if copy_of >= 0 else "")
    ]
    stage = funnel.stage("contamination", unit)
    return [one for one in first if stage.judge(f"in the protected set {one.protected!r}" if one.protected else "")]


def _split(
    kept: list[_Kept], kind: Kind, settings: options.Options, funnel: Funnel
) -> tuple[list[_Kept], list[_Kept], int]:
    """Training rows, validation rows, number of groups."""
    groups = split.groups([one.request for one in kept], [one.task for one in kept])
    chosen = {group for group in groups if split.in_validation(group, settings.validation)}
    if len(chosen) == len(set(groups)):
        chosen = set()  # too few groups to set any aside
    pairs = list(zip(kept, groups, strict=True))
    validation = [one for one, group in pairs if group in chosen]
    taken = {session for one in validation for session in one.sessions} if kind.by_session else set()
    train: list[_Kept] = []
    for one, group in pairs:
        if group in chosen:
            funnel.stage("split", kind.makes).judge("")
        elif funnel.stage("split", kind.makes).judge(
            "its session is in validation" if not taken.isdisjoint(one.sessions) else ""
        ):
            train.append(one)
    return train, validation, len(set(groups))


def _lines(file: IO[bytes], rows: list[_Kept], counts: dict[str, Counter[str]]) -> Iterator[bytes]:
    """The stored rows, and how often each value of the counted columns occurs."""
    for one in rows:
        file.seek(one.offset)
        data = file.read(one.length)
        columns = orjson.loads(data)
        for name in COUNTED:
            if name in columns:
                counts.setdefault(name, Counter())[str(columns[name])] += 1
        yield data
