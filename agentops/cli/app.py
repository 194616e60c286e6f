"""The command tree and what every command shares: output as a table or JSON, errors as one sentence, exit codes.

Invariant: exit 0 ok, 1 a gate or check failed, 2 the user's mistake; with --json standard output is one JSON value.
Heavy imports happen inside commands: `agentops --help` loads no model library.
"""

import dataclasses
import datetime
import decimal
import importlib
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentops import __version__
from agentops.errors import AgentopsError, ConfigError

app = typer.Typer(
    name="agentops",
    help="Deploy a governed agent, turn its traces into training data, retrain its small models, release them safely.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # ":secret:" in a help text is not an emoji
)
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

_AGO = re.compile(r"([1-9]\d{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Since = Annotated[str, typer.Option(help="From this time: 24h, 30d, or 2026-12-01[T10:00] (UTC).")]
Until = Annotated[str, typer.Option(help="Up to, not including, this time.")]


def _project(given: Path | None) -> Path | None:
    if given is None:
        return None
    from agentops.project import find

    return find(given)


ProjectDir = Annotated[
    Path | None,
    typer.Option("--project", callback=_project, help="A folder of the project; default: found from here."),
]


def instant(text: str) -> float:
    """Unix time of an age (24h, 30d) or a time (2026-12-01, 2026-12-01T10:00; UTC).

    Raises:
        ConfigError: it is neither.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        given = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text[:40]!r} is not a time: use 24h, 30d, 2026-12-01 or 2026-12-01T10:00") from None
    return (given if given.tzinfo else given.replace(tzinfo=datetime.UTC)).timestamp()


def show(value: Any, as_json: bool, lines: Iterable[Any] = ()) -> None:
    """Print `value` as JSON, or the given lines (strings, tables) for a person."""
    if as_json:
        sys.stdout.write(
            orjson.dumps(value, default=plain, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode() + "\n"
        )
        return
    for line in lines:
        console.print(printable(line) if isinstance(line, str) else line, markup=False)


def printable(text: str) -> str:
    """`text` of others for a terminal: what could forge what an operator sees (control characters, changes of the
    writing direction) made visible.
    """
    return _CONTROL.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(value: Any) -> Any:
    """JSON for what orjson does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; numbers to the right."""
    rows = [list(row) for row in rows]
    made = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(
            *("" if cell is None else f"{cell:,.1f}" if isinstance(cell, float) else _cell(cell) for cell in row)
        )
    return made


def _cell(cell: Any) -> str | Text:
    return cell if isinstance(cell, Text) else printable(str(cell))


def moment(seconds: float | None) -> str:
    """A time as UTC text, "" when there is none."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def version(value: bool) -> None:
    if value:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def top(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Commands; each has --help."""


def main() -> None:
    """Entry point: run a command; a deliberate error is one sentence on standard error."""
    importlib.import_module("agentops.cli.commands")
    try:
        app()
    except AgentopsError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except OSError as error:
        place = f": {error.filename!r}" if error.filename else ""
        errors.print(f"error: {error.strerror or error}{place}", style="red", markup=False)
        sys.exit(2)
