"""Traces read back from the lake: trajectories for every later stage, and a row each for lists.

Invariant: a span counts once however often it was written; traces come in order of their start, so the same lake gives
the same sequence. The lake is queried once for the list and once a few thousand traces, never once a trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from agentops.errors import TraceError
from agentops.store import Lake
from agentops.trace.assemble import assemble
from agentops.trace.jsontext import loads
from agentops.trace.records import OutcomeRule, default_outcome, latest_feedback, latest_verdicts
from agentops.trace.rows import SpanRecord
from agentops.types import Trajectory

if TYPE_CHECKING:
    import duckdb

CHUNK = 2_000  # traces fetched by one query
_COLUMNS = (
    "trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "kind", "status", "status_message", "attributes",
    "events", "links", "scope", "resource", "service", "source", "tenant",
)  # fmt: skip
# Rows of one span written twice (an import repeated by two processes at once, a retried write) are the same span.
_SUMMARY = """
WITH chosen AS (SELECT DISTINCT trace_id FROM spans WHERE {where}),
unique_spans AS (
    SELECT DISTINCT ON (trace_id, span_id) * FROM spans WHERE trace_id IN (SELECT trace_id FROM chosen)
    ORDER BY trace_id, span_id, end_ns DESC
),
liked AS (SELECT trace_id, arg_max(score, "at") AS score FROM feedback GROUP BY trace_id)
SELECT s.trace_id AS id,
    coalesce(arg_min(s.service, s.start_ns), '') AS service,
    min(s.start_ns) AS start_ns,
    round((max(s.end_ns) - min(s.start_ns)) / 1e6, 3) AS duration_ms,
    CASE WHEN bool_or(s.status = 'error' AND (s.parent_id = '' OR s.operation = 'invoke_agent'))
        THEN 'error' ELSE 'ok' END AS status,
    coalesce(max(s.route), '') AS route,
    count(*) FILTER (WHERE s.operation = 'chat') AS model_calls,
    count(*) FILTER (WHERE s.operation = 'execute_tool') AS tool_calls,
    count(*) FILTER (WHERE s.status = 'error') AS errors,
    coalesce(sum(s.input_tokens) FILTER (WHERE s.operation = 'chat'), 0)::BIGINT AS input_tokens,
    coalesce(sum(s.output_tokens) FILTER (WHERE s.operation = 'chat'), 0)::BIGINT AS output_tokens,
    any_value(liked.score) AS feedback
FROM unique_spans s LEFT JOIN liked ON liked.trace_id = s.trace_id
GROUP BY s.trace_id ORDER BY start_ns DESC, id LIMIT {limit}
"""


def trajectories(
    lake: Lake, where: str = "", limit: int | None = None, outcome: OutcomeRule = default_outcome
) -> Iterator[Trajectory]:
    """Every trace as a Trajectory with its feedback, verdicts and outcome, oldest first.

    Args:
        lake: where spans are.
        where: SQL condition over the `spans` view; a trace is taken when any of its spans meets it.
        limit: only the newest so many.
        outcome: the project's rule for success.

    Raises:
        TraceError: `where` is not a condition over the view.
        StoreError: a damaged segment.
    """
    with lake.connect() as connection:
        condition = _condition(connection, where)
        newest = f"ORDER BY start DESC, trace_id LIMIT {limit:d}" if limit is not None else ""
        ids = [
            row[0]
            for row in fetch(
                lake,
                connection,
                f"SELECT trace_id FROM (SELECT trace_id, min(start_ns) AS start, bool_or({condition}) AS wanted "  # noqa: S608
                f"FROM spans GROUP BY trace_id HAVING wanted {newest}) ORDER BY start, trace_id",
            )
        ]
        for first in range(0, len(ids), CHUNK):
            yield from _chunk(lake, connection, ids[first : first + CHUNK], outcome)


def trajectory(lake: Lake, trace_id: str, outcome: OutcomeRule = default_outcome) -> Trajectory | None:
    """One trace, or None when the lake has no span of it."""
    with lake.connect() as connection:
        return next(_chunk(lake, connection, [trace_id], outcome), None)


def summaries(lake: Lake, limit: int = 50, where: str = "") -> list[dict[str, Any]]:
    """The newest traces, newest first, a row each: id, service, start (ISO 8601, UTC), duration_ms, status, route,
    model_calls, tool_calls, errors, input_tokens, output_tokens, feedback (-1, 0, 1 or None).

    Raises:
        TraceError: `where` is not a condition over the view.
        StoreError: a damaged segment.
    """
    with lake.connect() as connection:
        query = _SUMMARY.format(where=_condition(connection, where), limit=limit)
        rows = fetch(lake, connection, query)
        columns = [column[0] for column in connection.description or ()]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return [{"start" if key == "start_ns" else key: _shown(key, item) for key, item in row.items()} for row in found]


def _shown(key: str, value: Any) -> Any:
    if key != "start_ns":
        return value
    try:
        return datetime.fromtimestamp(value / 1e9, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a hostile span beyond the year 9999
        return str(value)


def _condition(connection: "duckdb.DuckDBPyConnection", where: str) -> str:
    """`where` as one expression, or a refusal: it may hold no second statement and no comment that hides the rest."""
    import duckdb

    if not where.strip():
        return "true"
    condition = f"({where}\n)"
    # What is one expression in brackets and one element of a list is one expression: no bracket closes early.
    checks = [f"SELECT 1 FROM spans WHERE {condition}", f"SELECT [{condition}] FROM spans"]  # noqa: S608 - checked here
    try:
        for check in checks:
            if [statement.type.name for statement in connection.extract_statements(check)] != ["SELECT"]:
                raise TraceError(f"where = {where!r} is not one condition over the spans view")
            connection.execute(f"EXPLAIN {check}")
    except duckdb.Error as error:
        first = " ".join(str(error).split("\n\n")[0].split())[:300]
        raise TraceError(f"where = {where!r} is not a condition over the spans view: {first}") from None
    return condition


def fetch(
    lake: Lake, connection: "duckdb.DuckDBPyConnection", query: str, parameters: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """All rows of a query of ours; a DuckDB error becomes a StoreError that names a damaged segment."""
    import duckdb

    try:
        return connection.execute(query, list(parameters)).fetchall()
    except duckdb.Error as error:
        raise lake.explained(error) from None


def _chunk(
    lake: Lake, connection: "duckdb.DuckDBPyConnection", ids: Sequence[str], outcome: OutcomeRule
) -> Iterator[Trajectory]:
    """Trajectories of `ids`, in their order."""
    wanted = [list(ids)]
    found = "trace_id IN (SELECT unnest($1))"
    spans = fetch(lake, connection, f"SELECT {', '.join(_COLUMNS)} FROM spans WHERE {found} ORDER BY trace_id", wanted)  # noqa: S608
    by_trace = {trace_id: list(rows) for trace_id, rows in groupby(spans, key=lambda row: row[0])}
    feedback = _keyed(lake, connection, f"SELECT * FROM feedback WHERE {found} ORDER BY trace_id", wanted)  # noqa: S608
    verdicts = _keyed(lake, connection, f"SELECT * FROM verdicts WHERE {found} ORDER BY trace_id", wanted)  # noqa: S608
    for trace_id in ids:
        rows = by_trace.get(trace_id)
        if not rows:
            continue
        service, source, tenant = rows[0][-3:]
        told = assemble(
            [_span(row) for row in rows],
            service=service or "",
            source=source or "",
            tenant=next((row[-1] for row in rows if row[-1]), tenant or ""),
            feedback=latest_feedback(feedback.get(trace_id, ())),
            verdicts=latest_verdicts(verdicts.get(trace_id, ())),
        )
        yield replace(told, outcome=outcome(told))


def _keyed(
    lake: Lake, connection: "duckdb.DuckDBPyConnection", query: str, parameters: Sequence[Any]
) -> dict[str, list[Mapping[str, Any]]]:
    rows = fetch(lake, connection, query, parameters)
    columns = [column[0] for column in connection.description or ()]
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    return {trace_id: list(group) for trace_id, group in groupby(records, key=lambda record: record["trace_id"])}


def _span(row: Sequence[Any]) -> SpanRecord:
    return SpanRecord(
        *(value or "" for value in row[:4]),
        start_ns=row[4] or 0,
        end_ns=row[5] or 0,
        kind=row[6] or "",
        status=row[7] or "",
        status_message=row[8] or "",
        attributes=_object(row[9]),
        events=_objects(row[10]),
        links=_objects(row[11]),
        scope=row[12] or "",
        resource=_object(row[13]),
    )


def _object(value: Any) -> Mapping[str, Any]:
    found = loads(value)
    return found if isinstance(found, dict) else {}


def _objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    found = loads(value)
    return tuple(item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()
