"""The conversation of one trace, put together from what its spans say of it.

Invariant: nothing is invented: every message comes from a span's attributes, a tool call's span or its recorded result.
A call that was made but never answered gets its error (or nothing) as its result, so that every call has one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentops.trace import names
from agentops.trace.dialects import Node
from agentops.trace.jsontext import dumps
from agentops.types import StepRecord

Turn = dict[str, Any]


def conversation(root: Node, nodes: Sequence[Node], steps: Sequence[StepRecord]) -> list[Turn]:
    """Messages from the first to the last, with tool calls and results.

    Args:
        root: the span of the whole turn.
        nodes: every span of the trace, by start.
        steps: the tool calls of this trace, by start.
    """
    turns = _longest(root, nodes)
    if not any(turn["role"] == "system" for turn in turns):
        # A planner's prompt under a turn of this engine is not the agent's.
        told = (root,) if root.dialect == "agentops" else (root, *nodes)
        system = next((said for node in told if (said := _system(node))), "")
        turns = [{"role": "system", "content": system}, *turns] if system else turns
    if steps and not any(call["id"] in {step.call_id for step in steps} for turn in turns for call in calls(turn)):
        turns = _with_steps(turns, steps)
    return _answered(turns, {step.call_id: step for step in steps})


def calls(turn: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tool calls an assistant message makes."""
    return turn.get("tool_calls") or ()


def results(turns: Sequence[Turn]) -> dict[str, Turn]:
    """Tool messages by the id of the call they answer."""
    return {turn.get("tool_call_id", ""): turn for turn in turns if turn["role"] == "tool"}


def content(step: StepRecord) -> str:
    """A step's result as the text of its tool message."""
    if step.status == "ok":
        return step.result if isinstance(step.result, str) else dumps(step.result)
    return dumps({"status": step.status, "error": step.error})


def _system(node: Node) -> str:
    """What a model was told to be, where this span tells."""
    return node.system or next((turn["content"] for turn in node.inputs if turn["role"] == "system"), "")


def _longest(root: Node, nodes: Sequence[Node]) -> list[Turn]:
    """Whoever tells most of it: the root's own account, or what a model was last shown and said.

    A root of this engine always wins: model calls under it are its planner's, a conversation of their own.
    """
    own = max(_chain(root.inputs, root.outputs), root.conversation, key=_length)
    if root.dialect == "agentops" and own:
        return own
    depth = _agents_above(nodes)
    best, rank = own, (_length(own), 1, 0)
    for place, node in enumerate(nodes):
        if node.operation == names.CHAT and (node.inputs or node.outputs):
            turns = _chain(node.inputs, node.outputs)
            # A sub-agent's conversation counts only when no other is there.
            mine = (0 if depth[node.span.span_id] > 1 else _length(turns), 0, place)
            if mine > rank:
                best, rank = turns, mine
        elif node.operation == names.INVOKE_AGENT and not best:
            best = max(_chain(node.inputs, node.outputs), node.conversation, key=_length)
    if not best:
        best = next((_chain(node.inputs, node.outputs) for node in nodes if node.inputs or node.outputs), [])
    return best


def _chain(inputs: list[Turn], outputs: list[Turn]) -> list[Turn]:
    """Input and output as one conversation; an output that repeats the input's end (or all of it) is not doubled."""
    if outputs[: len(inputs)] == inputs:
        return list(outputs)
    return [*inputs, *outputs]


def _length(turns: Sequence[Turn]) -> int:
    return sum(turn["role"] != "system" for turn in turns)


def _agents_above(nodes: Sequence[Node]) -> dict[str, int]:
    """How many agent spans each span lies under (cycles of parents end the count)."""
    by_id = {node.span.span_id: node for node in nodes}
    depth: dict[str, int] = {}
    for node in nodes:
        path: list[str] = []
        here: Node | None = node
        while here is not None and here.span.span_id not in depth and here.span.span_id not in path:
            path.append(here.span.span_id)
            here = by_id.get(here.span.parent_id)
        above = depth.get(here.span.span_id, 0) if here is not None else 0
        for span_id in reversed(path):
            above += by_id[span_id].operation == names.INVOKE_AGENT
            depth[span_id] = above
    return depth


def _with_steps(turns: list[Turn], steps: Sequence[StepRecord]) -> list[Turn]:
    """Tool calls no message tells of (a planner without a chat model), before the final answer.

    Calls that ran at the same time are one assistant message.
    """
    told: list[Turn] = []
    group: list[StepRecord] = []
    for step in [*steps, None]:
        if group and (step is None or step.started_at >= min(one.ended_at for one in group)):
            told.append({"role": "assistant", "content": "", "tool_calls": [_call(one) for one in group]})
            told += [
                {"role": "tool", "content": content(one), "tool_call_id": one.call_id, "name": one.tool}
                for one in group
            ]
            group = []
        if step is not None:
            group.append(step)
    at = len(turns) - 1 if turns and turns[-1]["role"] == "assistant" else len(turns)
    return [*turns[:at], *told, *turns[at:]]


def _call(step: StepRecord) -> dict[str, Any]:
    return {
        "id": step.call_id,
        "type": "function",
        "function": {"name": step.tool, "arguments": dict(step.arguments)},
    }


def _result(call_id: str, tool: str, step: StepRecord) -> Turn:
    return {"role": "tool", "content": content(step), "tool_call_id": call_id, "name": tool}


def _answered(turns: list[Turn], steps: Mapping[str, StepRecord]) -> list[Turn]:
    """Every call followed by its result: where a message with it is missing, the step's."""
    have = results(turns)
    out: list[Turn] = []
    for place, turn in enumerate(turns):
        out.append(turn)
        following = turns[place + 1] if place + 1 < len(turns) else {"role": ""}
        asked = [call for earlier in _open(turns, place) for call in calls(earlier)]
        if turn["role"] in ("assistant", "tool") and following["role"] != "tool" and asked:
            for call in asked:
                step = steps.get(call["id"])
                if call["id"] and call["id"] not in have and step is not None:
                    out.append(_result(call["id"], call["function"]["name"], step))
    return out


def _open(turns: Sequence[Turn], place: int) -> Sequence[Turn]:
    """The assistant message whose calls the messages up to `place` answer."""
    while place >= 0 and turns[place]["role"] == "tool":
        place -= 1
    return turns[place : place + 1] if place >= 0 else ()
