"""Whether arguments are JSON, and small enough to be looked at, before anything copies, encodes or parses them.

Invariant: the work is in proportion to the limit, not to what came in: 50 MB, a million empty lists and a list inside
itself are refused after a bounded number of steps. It changes nothing; whether they fit the tool is not asked here.
"""

import math
from collections.abc import Mapping

from agentops.types import Json

MAX_ARGUMENTS = 64 * 1024  # bytes of JSON
MAX_DEPTH = 64  # lists and objects inside each other


def excess(value: Json) -> str:
    """What is too much about `value`, or that it is not JSON, as a phrase; "" when it may be looked at.

    It never counts more than JSON would need.
    """
    left = MAX_ARGUMENTS
    pending: list[tuple[Json, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            left -= len(item) + 2
            if left >= 0 and not item.isascii() and _broken(item):
                return "not JSON"
        elif isinstance(item, int) and not isinstance(item, bool):
            left -= item.bit_length() * 3 // 10 or 1  # a decimal digit holds 3.3 bits
            if left >= 0 and item.bit_length() > 1024:  # beyond every double: no JSON reader keeps it
                return "not JSON"
        elif isinstance(item, Mapping | list | tuple):
            left -= 2 + len(item)
            if depth >= MAX_DEPTH:
                return f"nested deeper than {MAX_DEPTH}"
            if left > 0:  # so at most 64 k entries are looked at
                if isinstance(item, Mapping):
                    if not all(isinstance(key, str) for key in item):
                        return "not JSON"
                    pending += [(key, depth + 1) for key in item]
                    item = item.values()
                pending += [(one, depth + 1) for one in item]
        elif item is None or isinstance(item, bool) or (isinstance(item, float) and math.isfinite(item)):
            left -= 1
        else:
            return "not JSON"
        if left < 0:
            return f"more than {MAX_ARGUMENTS} bytes"
    return ""


def _broken(text: str) -> bool:
    """Whether half a surrogate pair is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
