"""Bring traces and chat logs of other systems into the lake.

Invariant: every span and conversation of a file ends in exactly one count: taken, already there, or refused with a
reason; one bad file stops no other. Everything is redacted on the way; importing the same thing again adds nothing.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentops.errors import TraceError
from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import chats, dialects, names, otlp
from agentops.trace.assemble import dialect
from agentops.trace.reading import fetch
from agentops.trace.records import write_feedback, write_verdicts
from agentops.trace.rows import SpanRecord, redacted, row, text
from agentops.types import Feedback, Json, Verdict

MAX_FILE_BYTES = 1024 * 1024 * 1024
BATCH_ROWS = 20_000  # spans in one segment
FUTURE_S = 86_400.0  # a clock may be this much ahead
SUFFIXES = (".pb", ".bin", ".otlp", ".json", ".jsonl", ".ndjson")


@dataclass(slots=True)
class ImportReport:
    """What became of the files. Counts by reason or name are plain dictionaries, ready for JSON."""

    files: int = 0
    trajectories: int = 0  # new traces
    spans: int = 0  # new spans
    duplicates: int = 0  # spans that were there already, in the lake or twice in the files
    feedback: int = 0
    verdicts: int = 0
    dialects: dict[str, int] = field(default_factory=dict)  # new traces by dialect
    understood: int = 0  # attributes and fields that a dialect read
    unknown: dict[str, int] = field(default_factory=dict)  # attributes nobody read (kept), fields not read (dropped)
    noted: dict[str, int] = field(default_factory=dict)  # taken, but mended or odd
    refused: dict[str, int] = field(default_factory=dict)  # left out
    truncated: int = 0  # attribute values cut to their cap
    failed: dict[str, str] = field(default_factory=dict)  # files that could not be read: name -> why

    def summary(self) -> str:
        """One line."""
        parts = [f"{self.trajectories} traces, {self.spans} spans from {self.files} files"]
        parts += [f"{self.duplicates} already there"] if self.duplicates else []
        parts += [f"{self.verdicts} verdicts"] if self.verdicts else []
        parts += [f"{self.feedback} feedback"] if self.feedback else []
        parts += [f"refused: {why} ({count})" for why, count in self.refused.items()]
        parts += [f"failed: {name}: {why}" for name, why in self.failed.items()]
        return "; ".join(parts)

    def lines(self) -> list[str]:
        """The report for a person."""
        out = [f"{self.trajectories} traces, {self.spans} spans from {self.files} files"]
        out += [f"  {name}: {count} traces" for name, count in sorted(self.dialects.items())]
        for label, count in (
            ("already there", self.duplicates),
            ("verdicts", self.verdicts),
            ("feedback", self.feedback),
            ("values cut", self.truncated),
        ):
            out += [f"  {label}: {count}"] if count else []
        for label, counts in (("noted", self.noted), ("refused", self.refused)):
            out += [f"  {label}: {why}: {count}" for why, count in sorted(counts.items())]
        if self.unknown:
            shown = sorted(self.unknown, key=lambda name: (-self.unknown[name], name))
            more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
            out.append(f"  not understood: {', '.join(shown[:8])}{more}")
        return out + [f"  failed: {name}: {why}" for name, why in self.failed.items()]


def import_files(
    lake: Lake, redactor: Redactor, paths: Sequence[Path], service: str = "", *, tenant: str = ""
) -> ImportReport:
    """Import OTLP exports (protobuf, JSON, JSON lines) and chat logs (JSON, JSON lines); the content decides which.

    Args:
        lake: where to.
        redactor: sees every text before it is written.
        paths: files; a folder means the files with a known suffix in it.
        service: stored under this service; "" = the one each trace names, "imported" without one.
        tenant: whose data it is: part of the pseudonyms and of every row; "" = the one each span names.

    Returns:
        Counts of everything, also of what failed.

    Raises:
        TraceError: a path does not exist.
        StoreError: the lake is damaged or cannot be written.
    """
    files = list(_files(paths))
    task = _Import(lake, redactor, service, tenant)
    for file in files:
        task.report.files += 1
        try:
            task.take(file)
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            task.report.failed[file.name] = _why(error)
    task.finish()
    return task.report


class _Import:
    def __init__(self, lake: Lake, redactor: Redactor, service: str, tenant: str) -> None:
        self.lake, self.redactor, self.service, self.tenant = lake, redactor, service, tenant
        self.report = ImportReport()
        self.refused: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.dialects: Counter[str] = Counter()
        self.traces: dict[str, list[SpanRecord]] = {}
        self.chats: dict[str, chats.Chat] = {}
        self.seen: set[tuple[str, str]] = set()
        self.count = self.told = 0
        self.now = time.time()

    def take(self, file: Path) -> None:
        """Everything in one file, written in batches."""
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"has {size} bytes, at most {MAX_FILE_BYTES} are read: split it")
        data = file.read_bytes()
        if not data:
            raise ValueError("is empty")
        before = self.count + len(self.chats), self.refused.total(), self.report.duplicates
        if data.lstrip()[:1] in (b"{", b"["):
            self._take_json(data)
        else:
            for span in otlp.from_protobuf(data, self.refused, self.noted):
                self._add(span)
        if (self.count + len(self.chats), self.refused.total(), self.report.duplicates) == before:
            raise ValueError("holds no span and no conversation")

    def finish(self) -> None:
        """Write what waits and close the counts."""
        self._write()
        report = self.report
        report.refused, report.noted = dict(+self.refused), dict(+self.noted)
        report.unknown, report.dialects = dict(self.unknown), dict(self.dialects)

    def _take_json(self, data: bytes) -> None:
        for document in _documents(data, self.refused):
            if isinstance(document, Mapping) and ("resourceSpans" in document or "resource_spans" in document):
                for span in otlp.from_json(document, self.refused, self.noted):
                    self._add(span)
                continue
            for value in chats.conversations(document):
                # A millisecond apart, so that traces come back in the order of the log.
                found = chats.chat(value, self.now + self.told / 1000, self.refused, self.noted)
                self.told += 1
                if found is None:
                    continue
                self.chats[found.trace_id] = found
                self.unknown.update(f"{found.dialect}:{name}" for name in found.ignored)
                for span in found.spans:
                    self._add(span)

    def _add(self, span: SpanRecord) -> None:
        key = (span.trace_id, span.span_id)
        if key in self.seen:
            self.report.duplicates += 1
            return
        self.seen.add(key)
        if span.start_ns > (self.now + FUTURE_S) * 1e9:
            self.noted["start time is in the future"] += 1
        self.traces.setdefault(span.trace_id, []).append(span)
        self.count += 1
        if self.count % BATCH_ROWS == 0:
            self._write()

    def _write(self) -> None:
        known = self._known(list(self.traces))
        rows: dict[str, list[dict[str, Any]]] = {}
        feedback: dict[str, list[Feedback]] = {}
        verdicts: dict[str, list[Verdict]] = {}
        for trace_id, spans in self.traces.items():
            there = known.get(trace_id, set())
            new = [span for span in spans if span.span_id not in there]
            self.report.duplicates += len(spans) - len(new)
            if not new:
                continue
            self._circles(new)
            source = f"import:{dialect(new)}"
            service = self.service or next((s for span in new if (s := _service(span))), "imported")
            tenant = self.tenant or next((t for span in new if (t := text(span.attributes.get(names.TENANT)))), "")
            for span in new:
                clean = redacted(_sourced(span, source), self.redactor, tenant)
                self.report.truncated += clean.attributes.get(names.TRUNCATED, 0)
                self._describe(clean)
                rows.setdefault(service, []).append(row(clean, service, source, tenant))
            if not there:
                self.report.trajectories += 1
                told = self.chats.get(trace_id)
                self.dialects[told.dialect if told else source.removeprefix("import:")] += 1
                if told is not None:
                    feedback.setdefault(service, []).extend(told.feedback)
                    verdicts.setdefault(service, []).extend(told.verdicts)
        # Spans last: a crash in between repeats feedback and verdicts (the newest counts) but loses none.
        for service, given in feedback.items():
            write_feedback(self.lake, given, service, self.redactor, self.tenant)
            self.report.feedback += len(given)
        for service, found in verdicts.items():
            write_verdicts(self.lake, found, service, self.redactor, self.tenant)
            self.report.verdicts += len(found)
        for service, of_service in rows.items():
            self.lake.write("spans", of_service, service)
            self.report.spans += len(of_service)
        self.traces, self.chats = {}, {}

    def _known(self, trace_ids: list[str]) -> dict[str, set[str]]:
        """Span ids the lake already has of these traces."""
        if not trace_ids:
            return {}
        known: dict[str, set[str]] = {}
        with self.lake.connect() as connection:
            query = "SELECT trace_id, span_id FROM spans WHERE trace_id IN (SELECT unnest($1))"
            for trace_id, span_id in fetch(self.lake, connection, query, [trace_ids]):
                known.setdefault(trace_id, set()).add(span_id)
        return known

    def _describe(self, span: SpanRecord) -> None:
        unknown = dialects.unknown(dialects.read(span))
        self.unknown.update(unknown)
        self.report.understood += len(span.attributes) - len(unknown)

    def _circles(self, spans: Iterable[SpanRecord]) -> None:
        """Count spans whose parents lead in a circle; reading cuts it at the earliest."""
        parents = {span.span_id: span.parent_id for span in spans}
        state: dict[str, int] = {}
        for start in parents:
            path = []
            here = start
            while here in parents and here not in state:
                state[here] = 1
                path.append(here)
                here = parents[here]
            if state.get(here) == 1:
                self.noted["parents lead in a circle"] += 1
            for span_id in path:
                state[span_id] = 2


def _sourced(span: SpanRecord, source: str) -> SpanRecord:
    """The span marked with where it came from, so that it stays known after an export and another import."""
    if span.parent_id or names.SOURCE in span.attributes:
        return span
    return replace(span, attributes={**span.attributes, names.SOURCE: source})


def _service(span: SpanRecord) -> str:
    return text(span.resource.get("service.name"))


def _documents(data: bytes, refused: Counter[str]) -> Iterator[Json]:
    """One JSON document, or one a line."""
    whole = data.decode("utf-8", "replace")
    try:
        yield json.loads(whole)
        return
    except ValueError as error:
        lines = [line for line in whole.splitlines() if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0]):
            raise ValueError(f"is not valid JSON: {error}") from None
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            refused["line is not valid JSON"] += 1


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        elif path.is_file():
            yield path
        else:
            raise TraceError(
                f"{str(path)!r} is not a file: give OTLP exports (.pb, .json) or chat logs (.json, .jsonl)"
            )


def _why(error: BaseException) -> str:
    """The reason without any content of the file."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return str(error).split("\n")[0][:200] or type(error).__name__
