"""Columns of the lake's tables, and rows turned into Arrow columns.

Invariant: a column is identified by its field id, never by its position: adding one at the end with the next id keeps
every old segment readable (it reads as NULL there). Never reuse or renumber an id. No file is touched here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from agentops.errors import StoreError

_DUCKDB_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})
            for number, (name, kind) in enumerate(columns.items(), 1)
        ]
    )


SPAN_SCHEMA = _schema(
    trace_id=pa.string(),  # 32 hex digits
    span_id=pa.string(),  # 16 hex digits
    parent_id=pa.string(),  # "" at a root
    name=pa.string(),
    kind=pa.string(),  # internal, server, client, producer, consumer
    service=pa.string(),
    start_ns=pa.int64(),  # nanoseconds since the epoch
    end_ns=pa.int64(),
    status=pa.string(),  # unset, ok, error
    status_message=pa.string(),
    attributes=pa.string(),  # JSON object
    events=pa.string(),  # JSON list of {name, time_ns, attributes}
    links=pa.string(),  # JSON list of {trace_id, span_id, attributes}
    scope=pa.string(),  # instrumentation library
    resource=pa.string(),  # JSON object
    tenant=pa.string(),
    operation=pa.string(),  # invoke_agent, chat, execute_tool, route, plan; "" otherwise
    agent=pa.string(),
    tool=pa.string(),
    session=pa.string(),
    model=pa.string(),
    route=pa.string(),  # labels joined by "," in order of mention
    source=pa.string(),  # live, import:<dialect>
    input_tokens=pa.int64(),
    output_tokens=pa.int64(),
    cached=pa.bool_(),
)

FEEDBACK_SCHEMA = _schema(
    trace_id=pa.string(),
    score=pa.int64(),  # -1, 0, 1
    at=pa.float64(),  # seconds since the epoch
    user=pa.string(),
    comment=pa.string(),
    corrected_answer=pa.string(),
    corrected_labels=pa.list_(pa.string()),
)

VERDICT_SCHEMA = _schema(
    trace_id=pa.string(),
    verifier=pa.string(),
    success=pa.bool_(),  # NULL: could not tell
    score=pa.float64(),
    evidence=pa.string(),
    at=pa.float64(),
)

TABLES: Mapping[str, pa.Schema] = {"spans": SPAN_SCHEMA, "feedback": FEEDBACK_SCHEMA, "verdicts": VERDICT_SCHEMA}


def duckdb_type(kind: pa.DataType) -> str:
    """The DuckDB name of a column type used above."""
    if pa.types.is_list(kind):
        return duckdb_type(kind.value_type) + "[]"
    return _DUCKDB_TYPES[kind]


def schema_parameter(schema: pa.Schema, prefix: str) -> str:
    """The `schema=` argument of DuckDB's read_parquet: columns by field id, named `prefix` + name.

    Absent ones are NULL.

    With it DuckDB binds without opening every footer (3,000 segments: 0.07 s; `union_by_name` took 0.6 s).
    """
    columns = ", ".join(
        f"{int((field.metadata or {})[b'PARQUET:field_id'])}: "
        f"{{name: '{prefix}{field.name}', type: '{duckdb_type(field.type)}', default_value: NULL}}"
        for field in schema
    )
    return f"MAP {{{columns}}}"


def to_arrow(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """`rows` as an Arrow table with the schema of `table`; keys a row lacks are NULL.

    Raises:
        StoreError: a key that is no column, or a value of another type; names the column and the type given.
    """
    schema = TABLES[table]
    known = set(schema.names)
    for row in rows:
        if not known.issuperset(row):
            unknown = ", ".join(sorted(map(str, set(row) - known)))
            raise StoreError(f"a row for {table!r} has unknown column(s) {unknown}; columns: {', '.join(schema.names)}")
    columns = []
    for field in schema:
        name = field.name
        try:
            columns.append(pa.array([row.get(name) for row in rows], type=field.type))
        except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError):
            kinds = sorted({type(row.get(name)).__name__ for row in rows})
            raise StoreError(
                f"column {name!r} of {table!r} takes {field.type} (64-bit, valid UTF-8), got {', '.join(kinds)}"
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)
