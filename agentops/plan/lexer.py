"""Tokens of the plan language, with their place, and the errors that name it.

Invariant: one regular expression without nested repetition reads a line left to right once. No meaning is decided here.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentops.errors import PlanError

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
      | (?P<comment>\#.*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))
      | (?P<slot>\$[a-z_][a-z0-9_]*)
      | (?P<name>[a-z][a-z0-9_]*(?:\.[A-Za-z0-9_]+)*)
      | (?P<mark>[()\[\]{},:=&])""",
    re.VERBOSE,
)
_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a line. `line` and `column` are 1-based."""

    kind: str  # string, number, name, slot, mark, end
    text: str
    line: int
    column: int

    @property
    def shown(self) -> str:
        short = self.text if len(self.text) <= 40 else self.text[:40] + "…"
        return short if self.kind == "end" else repr(short)


def error(token: Token, message: str) -> PlanError:
    return PlanError(f"line {token.line}, column {token.column}: {message}")


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Names for an error message, at most `limit` of them."""
    known = list(names)
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "") or "none"


def tokens(line: str, number: int) -> list[Token]:
    """The tokens of one line, without spaces and comments.

    Raises:
        PlanError: a character no token begins with.
    """
    found: list[Token] = []
    at = 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            here = Token("bad", line[at], number, at + 1)
            if line[at] == '"':
                raise error(here, "a text that begins here has no closing double quote")
            rest = re.split(r"[\s,()&\[\]{}]", line[at : at + 60], maxsplit=1)[0] or line[at]
            raise error(here, f"{rest[:40]!r} is not understood: a text goes in double quotes")
        kind = match.lastgroup or ""
        if kind not in ("space", "comment"):
            found.append(Token(kind, match[0], number, at + 1))
        at = match.end()
    return found


def string(token: Token) -> str:
    """The text a string token stands for (JSON escapes).

    Raises:
        PlanError: a bad escape, a control character or half a surrogate pair.
    """
    try:
        value = json.loads(token.text)
        value.encode()
    except UnicodeEncodeError:
        raise error(token, "the text holds half a surrogate pair") from None
    except ValueError as problem:
        raise error(token, f"not a JSON text: {str(problem).partition(':')[0]}") from None
    return value


def number(token: Token) -> int | float:
    """The number a token stands for: an integer within 64 bits, or a finite float.

    Raises:
        PlanError: out of range.
    """
    if len(token.text) <= 400:
        value = json.loads(token.text)
        if (isinstance(value, int) and -_LIMIT <= value < _LIMIT) or (
            isinstance(value, float) and math.isfinite(value)
        ):
            return value
    raise error(token, f"{token.shown} is out of range: integers fit in 64 bits, other numbers are finite")
