"""The lake: append-only tables of immutable Parquet segments, read with DuckDB.

Invariant: `write` makes one segment visible whole and durable, without a lock, whatever other processes do; readers see
each row once, also while segments are merged. A damaged segment stops readers with its name, it is never skipped.
It does not interpret rows, and it does not deduplicate spans: `agentops.trace` does when it assembles trajectories.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentops.errors import StoreError
from agentops.store import segments
from agentops.store.schemas import TABLES, duckdb_type, schema_parameter, to_arrow
from agentops.types import Problem

if TYPE_CHECKING:
    import duckdb

MAX_ROWS = 100_000  # of one `sql` answer
SQL_TIMEOUT_S = 60.0
SQL_MEMORY = "1GB"
MERGE_BELOW_BYTES = 16 * 1024 * 1024  # larger segments are left as they are
MERGE_TARGET_BYTES = 64 * 1024 * 1024


class Lake:
    """Spans, feedback and verdicts of one project.

    Args:
        root: folder of the lake; created by the first write. Several processes may use it at once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def write(self, table: str, rows: Sequence[Mapping[str, Any]], service: str) -> Path | None:
        """Append `rows` as one segment under today's date (UTC, when it was written, not when it happened).

        Returns:
            The segment, durable on disk; None when there are no rows.

        Raises:
            StoreError: unknown table or column, a value of the wrong type, or the disk refuses.
        """
        if table not in TABLES:
            raise StoreError(f"the lake has no table {table!r}; tables: {', '.join(TABLES)}")
        if not rows:
            return None
        columns = to_arrow(table, rows)
        date = datetime.now(UTC).date().isoformat()
        folder = segments.partition(self.root, table, date, service)
        try:
            return segments.write_segment(folder, columns)
        except OSError as error:
            raise StoreError(f"cannot write a segment in {str(folder)!r}: {error.strerror or error}") from None

    def connect(self) -> "duckdb.DuckDBPyConnection":
        """An in-memory DuckDB with views `spans`, `feedback` and `verdicts` over the segments of this moment.

        The connection reads no file outside the lake, loads no extension and cannot change its settings. The views
        also have `date`, the day a row was written. They stay valid for at least ten minutes (see `segments.GRACE_S`).

        Raises:
            StoreError: a torn segment; names it and how to move it aside.
        """
        import duckdb

        listings = {table: segments.list_segments(self.root, table) for table in TABLES}
        for table, listing in listings.items():
            for path, fault in listing.torn:
                raise _torn(table, path, fault)
        connection = duckdb.connect(":memory:")
        try:
            # Settings first: `getvariable` in a view is evaluated when the view is used, under these settings.
            connection.execute("SET python_enable_replacements = false")
            connection.execute("SET autoinstall_known_extensions = false")
            connection.execute("SET autoload_known_extensions = false")
            connection.execute("SET temp_directory = ''")
            connection.execute(f"SET memory_limit = '{SQL_MEMORY}'")
            connection.execute(f"SET allowed_directories = [{_literal(str(self.root) + '/')}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            for table, listing in listings.items():
                connection.execute(_view(table, listing.live))
        except duckdb.Error as error:
            connection.close()
            raise self.explained(error) from None
        return connection

    def sql(self, query: str, parameters: Sequence[Any] = (), *, max_rows: int = MAX_ROWS) -> list[dict[str, Any]]:
        """Run one SELECT a user wrote and return its rows as dictionaries.

        Only reads of the three views (and of files inside the lake) are possible: no other statement, file, network
        address, Python variable or setting. Bounded in time (60 s), memory (1 GB) and rows.

        Raises:
            StoreError: not a single SELECT, a SQL error, a torn segment, or a bound was hit.
        """
        import duckdb

        with self.connect() as connection:
            try:
                statements = connection.extract_statements(query)
            except duckdb.Error as error:
                raise StoreError(_first_lines(error)) from None
            kinds = [statement.type.name for statement in statements]
            if kinds != ["SELECT"]:  # not EXPLAIN either: EXPLAIN ANALYZE COPY writes a file
                shown = ", ".join(kinds) or "nothing"
                raise StoreError(f"the lake answers one SELECT at a time, got {shown}: it cannot be changed with SQL")
            timer = threading.Timer(SQL_TIMEOUT_S, connection.interrupt)
            timer.daemon = True
            timer.start()
            try:
                result = connection.execute(query, list(parameters))
                names = [column[0] for column in result.description or ()]
                rows = result.fetchmany(max_rows + 1)
            except duckdb.InterruptException:
                raise StoreError(
                    f"the query ran longer than {SQL_TIMEOUT_S:.0f} s: narrow it, for example by date"
                ) from None
            except duckdb.Error as error:
                raise self.explained(error) from None
            finally:
                timer.cancel()
        if len(rows) > max_rows:
            raise StoreError(f"the query returns more than {max_rows} rows: add LIMIT or aggregate")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def check(self) -> list[Problem]:
        """Read every segment to its end; every torn, damaged or foreign file as a Problem, nothing is changed."""
        problems = []
        for table in TABLES:
            listing = segments.list_segments(self.root, table)
            for path, fault in listing.torn:
                problems.append(self._problem(path, f"{fault}; {_move_aside(path)}"))
            for path in listing.foreign:
                problems.append(self._problem(path, "was not written by the lake and is not read; move it elsewhere"))
            for path in (*listing.live, *listing.replaced):
                fault = segments.damage(path, table)
                if fault:
                    problems.append(self._problem(path, f"{fault}; {_move_aside(path)}"))
        return problems

    def compact(self, table: str, *, grace_s: float = segments.GRACE_S) -> int:
        """Merge the small segments of each day and service, and delete those whose merged one is old enough.

        Safe beside writers, readers and other compactions (a second one does nothing). A reader sees each row once
        throughout.

        Args:
            table: "spans", "feedback" or "verdicts".
            grace_s: seconds a replaced segment stays on disk for readers that listed it before the merge.

        Returns:
            How many segments were merged into others by this call.

        Raises:
            StoreError: unknown table, or a segment cannot be read: nothing is merged or deleted in its partition.
        """
        if table not in TABLES:
            raise StoreError(f"the lake has no table {table!r}; tables: {', '.join(TABLES)}")
        merged = 0
        with segments.merge_lock(self.root) as mine:
            if not mine:
                return 0
            listing = segments.list_segments(self.root, table)
            for path, fault in listing.torn:
                raise _torn(table, path, fault)
            segments.delete_replaced(listing, grace_s)
            segments.delete_stale_temporaries(self.root, table)
            folders: dict[Path, list[Path]] = {}
            for path in listing.live:
                folders.setdefault(path.parent, []).append(path)
            for paths in folders.values():
                for group in _groups(paths):
                    for path in group:
                        fault = segments.damage(path, table)
                        if fault:
                            raise _torn(table, path, fault)
                    segments.merge(table, group)
                    merged += len(group)
        return merged

    def _problem(self, path: Path, message: str) -> Problem:
        return Problem(str(path.relative_to(self.root.parent)), 0, message)

    def explained(self, error: Exception) -> StoreError:
        """A DuckDB error as ours; when it came from reading, the damaged segment is looked for and named."""
        import duckdb

        reading = (
            duckdb.IOException,
            duckdb.InvalidInputException,
            duckdb.SerializationException,
            duckdb.HTTPException,
        )
        if isinstance(error, (*reading, duckdb.InternalException, duckdb.FatalException, duckdb.ConversionException)):
            for table in TABLES:
                for path in segments.list_segments(self.root, table).live:
                    fault = segments.damage(path, table)
                    if fault:
                        return _torn(table, path, fault)
        return StoreError(_first_lines(error))


def _groups(paths: list[Path]) -> list[list[Path]]:
    """Small segments packed into groups of at most the target size; a group of one is left alone."""
    groups: list[list[Path]] = [[]]
    size = 0
    for path in sorted(paths):
        bytes_ = path.stat().st_size
        if bytes_ >= MERGE_BELOW_BYTES:
            continue
        if size + bytes_ > MERGE_TARGET_BYTES and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += bytes_
    return [group for group in groups if len(group) > 1]


def _view(table: str, paths: Sequence[Path]) -> str:
    schema = TABLES[table]
    if not paths:
        columns = ", ".join(f'CAST(NULL AS {duckdb_type(field.type)}) AS "{field.name}"' for field in schema)
        return f"CREATE VIEW {table} AS SELECT {columns}, CAST(NULL AS DATE) AS date WHERE false"
    files = ", ".join(_literal(str(path)) for path in paths)
    # Columns are read under `prefix` + name: a folder's `service=…` would hide the column of the same name, and is
    # only an encoded form of it.
    prefix = "c_"
    columns = ", ".join(f'{prefix}{name} AS "{name}"' for name in schema.names)
    source = (
        f"read_parquet([{files}], hive_partitioning = true, hive_types = {{'date': DATE}}, "
        f"schema = {schema_parameter(schema, prefix)})"
    )
    return f"CREATE VIEW {table} AS SELECT {columns}, date FROM {source}"  # noqa: S608 - our names, escaped paths


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_lines(error: Exception) -> str:
    """DuckDB's message without the echoed query and hints; bounded."""
    return "SQL: " + " ".join(str(error).split("\n\n")[0].split())[:500]


def _move_aside(path: Path) -> str:
    return f"to go on without it, move it aside: mv '{path}' '{path}{segments.SET_ASIDE}' (the others are not affected)"


def _torn(table: str, path: Path, fault: str) -> StoreError:
    return StoreError(f"a segment of {table!r} {fault}: {str(path)!r}; {_move_aside(path)}")
