"""Where two episodes of one task that began in different words came to the same point and went on differently.

Simulated and real customers word the same wish differently, so recorded trials of a task seldom share a literal prefix
(2 of 88 better/worse pairs in tau-bench airline). They do share states: the same calls made, with the same results.

Invariant: a step is moved into another episode's conversation only if both had made the same calls with the same
results, and every value among its arguments is already written in that conversation: the step could have been taken
there. It compares calls, not wording, and judges nothing.
"""

from collections.abc import Iterator, Sequence

import orjson

from agentops.harvest.messages import Turn
from agentops.types import Json


def fork(better: Sequence[Turn], worse: Sequence[Turn]) -> tuple[int, int] | None:
    """Positions of the first calling messages in which the two differ after equal calls and results; None without."""
    mine, theirs = list(_calling(better)), list(_calling(worse))
    for (at, calls, results), (other_at, other_calls, other_results) in zip(mine, theirs, strict=False):
        if calls != other_calls:
            return at, other_at
        if results != other_results:
            return None  # same step, another world: what follows is not comparable
    return None


def grounded(step: Turn, prompt: Sequence[Turn]) -> bool:
    """Whether every text and number among the step's arguments occurs in the prompt."""
    seen = "\n".join(
        orjson.dumps([call["function"]["arguments"] for call in turn["tool_calls"]]).decode()
        if turn.get("tool_calls")
        else turn["content"]
        for turn in prompt
    ).casefold()
    values = [value for call in step["tool_calls"] for value in _values(call["function"]["arguments"])]
    return all(value.casefold() in seen for value in values)


def _calling(messages: Sequence[Turn]) -> Iterator[tuple[int, list[Json], list[str]]]:
    for at, message in enumerate(messages):
        if message.get("tool_calls"):
            count = len(message["tool_calls"])
            results = [one["content"] for one in messages[at + 1 : at + 1 + count]]
            yield at, [call["function"] for call in message["tool_calls"]], results


def _values(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
