"""Whether arguments are small enough to be looked at, before anything copies, encodes or parses them.

Invariant: the work is in proportion to the limit, not to what came in: 50 MB, a million empty lists and a list inside
itself are refused after a bounded number of steps. It changes nothing and does not validate.
"""

from collections.abc import Mapping

from agentops.types import Json

MAX_ARGUMENTS = 64 * 1024  # bytes of JSON
MAX_DEPTH = 64  # lists and objects inside each other


def excess(value: Json) -> str:
    """What is too much about `value`, as a phrase, or "". It never counts more than JSON would need."""
    left = MAX_ARGUMENTS
    pending: list[tuple[Json, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            left -= len(item) + 2
        elif isinstance(item, int) and not isinstance(item, bool):
            left -= item.bit_length() * 3 // 10 or 1  # a decimal digit holds 3.3 bits
        elif isinstance(item, Mapping | list | tuple):
            left -= 2 + len(item)
            if depth >= MAX_DEPTH:
                return f"nested deeper than {MAX_DEPTH}"
            if left > 0:  # so at most 64 k entries are looked at
                inner = [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
                pending += [(one, depth + 1) for one in inner]
        else:
            left -= 1
        if left < 0:
            return f"more than {MAX_ARGUMENTS} bytes"
    return ""
