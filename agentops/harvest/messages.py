"""A trajectory's messages in the one form that chat templates and trainers accept.

Invariant: what `conversation` returns has only string contents, tool arguments that are objects, and for every tool
call exactly one result before the next turn. What cannot be brought into that form is refused with a reason, never
repaired by inventing or dropping a message. It judges form, not whether the episode was any good.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentops.types import CallStatus, Json, StepRecord, Trajectory

Turn = dict[str, Any]


class Unusable(Exception):
    """This episode cannot become a row; the text is the reason that is counted."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in trainer form, and for each the statuses of the tool calls it makes (() when it makes none)."""

    messages: list[Turn]
    statuses: list[tuple[CallStatus, ...]]


def conversation(trajectory: Trajectory) -> Conversation:
    """The whole episode, up to its last assistant or tool message.

    Raises:
        Unusable: with the reason.
    """
    messages = [_turn(message) for message in trajectory.messages]
    if trajectory.plan and trajectory.timed:
        messages = _rounds(messages, trajectory.steps)
    while messages and messages[-1]["role"] in ("user", "system"):
        messages.pop()  # nothing after it was learnt from: no answer followed
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no user message with an answer")
    if not any(message["role"] == "assistant" for message in messages):
        raise Unusable("no assistant message")
    _check_calls(messages)
    statuses = _statuses(messages, trajectory.steps)
    return Conversation(messages, statuses)


def opening(trajectory: Trajectory) -> list[Turn]:
    """What the agent was asked: system and user messages, before it first answered.

    In an imported chat log the episode is the whole conversation, so this is its beginning. A live or simulated episode
    is one turn of a conversation: earlier turns are its context and stay.

    Raises:
        Unusable: with the reason.
    """
    messages = [_turn(message) for message in trajectory.messages]
    if trajectory.source.startswith("import"):
        first = next((at for at, one in enumerate(messages) if one["role"] in ("assistant", "tool")), len(messages))
        asked = messages[:first]
    else:
        last = max((at for at, one in enumerate(messages) if one["role"] == "user"), default=-1)
        asked = messages[: last + 1]
        _check_calls(asked)
    if not asked or asked[-1]["role"] != "user" or not asked[-1]["content"].strip():
        raise Unusable("no user message with text")
    return asked


def last_request(trajectory: Trajectory) -> str:
    """Text of the last user message, "" when there is none that is text."""
    for message in reversed(trajectory.messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            try:
                return _text(message.get("content")).strip()
            except Unusable:
                return ""
    return ""


def schemas(trajectory: Trajectory) -> list[Turn]:
    """The tool schemas that were offered, as plain objects.

    Raises:
        Unusable: one is not an OpenAI function schema.
    """
    found = []
    for tool in trajectory.tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise Unusable("a tool schema is not an OpenAI function schema")
        found.append({"type": "function", "function": dict(function)})
    return found


def users(messages: Sequence[Turn]) -> list[str]:
    """Texts of the user messages."""
    return [message["content"] for message in messages if message["role"] == "user"]


def called(messages: Sequence[Turn]) -> list[str]:
    """Names of the tools called, in order."""
    return [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]


def spoken(messages: Sequence[Turn]) -> str:
    """What user and assistant said and did, as one text: what makes two episodes the same."""
    parts: list[str] = []
    for message in messages:
        if message["role"] in ("user", "assistant"):
            parts.append(message["content"])
            for call in message.get("tool_calls", ()):
                parts.append(call["function"]["name"])
                parts.append(orjson.dumps(call["function"]["arguments"], option=orjson.OPT_SORT_KEYS).decode())
    return "\n".join(parts)


def same(one: Turn, other: Turn) -> bool:
    """Whether two messages say the same; call ids differ between episodes and do not count."""
    return (
        one["role"] == other["role"]
        and one["content"] == other["content"]
        and [call["function"] for call in one.get("tool_calls", ())]
        == [call["function"] for call in other.get("tool_calls", ())]
    )


def _turn(message: Any) -> Turn:
    role = message.get("role") if isinstance(message, Mapping) else None
    role = "system" if role == "developer" else role
    if role not in ("system", "user", "assistant", "tool"):
        raise Unusable("a message has an unknown role")
    turn: Turn = {"role": role, "content": _text(message.get("content"))}
    if role == "assistant":
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        if calls:
            turn["tool_calls"] = calls
        elif not turn["content"].strip():
            raise Unusable("an assistant message is empty")
    elif role == "tool":
        turn["tool_call_id"] = str(message.get("tool_call_id") or "")
        if message.get("name"):
            turn["name"] = str(message["name"])
    return turn


def _text(content: Json) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "\n".join(part["text"] for part in content)
    if isinstance(content, list | tuple) and any(isinstance(part, Mapping) and "type" in part for part in content):
        raise Unusable("a message is not text only")
    return orjson.dumps(content, default=dict).decode()  # a tool result recorded as a value


def _call(call: Any) -> Turn:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Unusable("a tool call names no function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments) if arguments.strip() else {}
        except orjson.JSONDecodeError:
            raise Unusable("tool arguments are not a JSON object") from None
    if not isinstance(arguments, Mapping):
        raise Unusable("tool arguments are not a JSON object")
    return {
        "type": "function",
        "id": str(call.get("id") or ""),
        "function": {"name": function["name"], "arguments": dict(arguments)},
    }


def _check_calls(messages: Sequence[Turn]) -> None:
    """Every call has its result before the next turn, and every result its call. Ids may repeat between turns."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                raise Unusable("a tool result answers no call")
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise Unusable("a tool call has no result")
        waiting = [call["id"] for call in message.get("tool_calls", ())]
    if waiting:
        raise Unusable("a tool call has no result")


def _rounds(messages: Sequence[Turn], steps: Sequence[StepRecord]) -> list[Turn]:
    """A planned turn's calls as the rounds in which they could be known.

    A plan's calls are recorded as one turn although later ones use results of earlier ones. Learnt like that, a model
    would write amounts before it has seen them: a call that started after another had ended goes into a later turn.
    """
    times = {
        step.call_id: (step.started_at, step.ended_at) if step.status != "skipped" else (math.inf, math.inf)
        for step in steps
    }
    found: list[Turn] = []
    written = 0  # results up to here are in `found` with their round
    for at, message in enumerate(messages):
        if at < written:
            continue
        calls = message.get("tool_calls", [])
        if len({call["id"] for call in calls}) < 2 or not all(call["id"] in times for call in calls):
            found.append(message)
            continue
        written = at + 1 + len(calls)
        results = {one.get("tool_call_id", ""): one for one in messages[at + 1 : written]}
        if not all(call["id"] in results for call in calls):
            raise Unusable("a tool call has no result")
        content, rest = message["content"], sorted(calls, key=lambda call: times[call["id"]])
        while rest:
            first_end = min(times[call["id"]][1] for call in rest)
            together = [call for call in rest if times[call["id"]][0] < first_end] or rest[:1]
            found.append({"role": "assistant", "content": content, "tool_calls": together})
            found += [results[call["id"]] for call in together]
            content, rest = "", [call for call in rest if call not in together]
    return found


def _statuses(messages: Sequence[Turn], steps: Sequence[StepRecord]) -> list[tuple[CallStatus, ...]]:
    """Status of each call by its id, and by order where an id repeats; a call nobody recorded has "error"."""
    recorded: dict[str, list[CallStatus]] = {}
    for step in steps:
        recorded.setdefault(step.call_id, []).append(step.status)
    found: list[tuple[CallStatus, ...]] = []
    for message in messages:
        statuses: list[CallStatus] = []
        for call in message.get("tool_calls", ()):
            known = recorded.get(call["id"])
            statuses.append("error" if not known else known.pop(0) if len(known) > 1 else known[0])
        found.append(tuple(statuses))
    return found
