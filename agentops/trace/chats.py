"""Chat logs as spans: OpenAI-style messages with tool calls, and what was thought of them.

Understood: `{"messages": […]}` with optional tools, model, reward, score, feedback, id, session, user; tau-bench's
`{"traj": […], "reward", "task_id", "trial"}`; request/response pairs of a chat API; a bare list of messages.

Invariant: only the fields named here are read. Whatever else a log holds (tau-bench keeps the answer key in `info`)
never reaches a span; the names of such fields are counted. Times are made up and marked so (`agentops.timed` false).
The same log gives the same trace id, so importing it again adds nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentops.trace import messages, names
from agentops.trace.jsontext import dumps, integer, text
from agentops.trace.rows import SpanRecord
from agentops.types import Feedback, Json, Verdict

MAX_MESSAGES = 10_000  # of one conversation
_LISTS = ("conversations", "episodes", "data", "rows", "items", "trajectories", "results")
_READ = frozenset(
    {
        *("messages", "traj", "tools", "functions", "model", "reward", "score", "feedback", "id", "trace_id", "user"),
        *("conversation_id", "session_id", "session", "user_id", "request", "response", "task_id", "trial"),
    }
)


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation as spans with what belongs to it."""

    trace_id: str
    spans: tuple[SpanRecord, ...]
    feedback: tuple[Feedback, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    dialect: str = "chat"
    ignored: frozenset[str] = field(default_factory=frozenset)  # names of fields that were not read


def is_chat(value: Json) -> bool:
    """Whether a parsed JSON value looks like one conversation."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) and "role" in item for item in value)
    return isinstance(value, Mapping) and any(isinstance(_turns(value, key), list) for key in ("messages", "traj", ""))


def conversations(value: Json) -> Iterator[Json]:
    """The conversations inside a parsed JSON document, in order; anything else in it is given as it is."""
    if is_chat(value):
        yield value
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, Mapping):
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        yield from inner if inner is not None else [value]
    else:
        yield value


def chat(value: Json, now: float, refused: Counter[str], noted: Counter[str]) -> Chat | None:
    """One conversation as spans, or None (counted in `refused`) when it is none.

    Args:
        value: a parsed conversation.
        now: seconds since the epoch; made-up times start here.
        refused: counts what was left out, by reason.
        noted: counts what was taken but is not right.
    """
    row = {"messages": value} if isinstance(value, list) else value
    if not isinstance(row, Mapping) or not is_chat(row):
        refused["not a conversation: no messages"] += 1
        return None
    tau = isinstance(row.get("traj"), list)
    given = next(found for key in ("traj", "messages", "") if isinstance(found := _turns(row, key), list))
    if len(given) > MAX_MESSAGES:
        refused[f"more than {MAX_MESSAGES} messages in one conversation"] += 1
        return None
    good = [turn for turn in given if isinstance(turn, Mapping)]
    noted["message is not an object: left out"] += len(given) - len(good)
    turns = _with_ids(messages.normal(good))
    if not any(turn["role"] == "user" for turn in turns):
        refused["no user message"] += 1
        return None
    key = [turns, text(row.get("task_id")), text(row.get("trial")), text(row.get("id") or row.get("trace_id"))]
    trace_id = hashlib.sha256(dumps(key).encode()).hexdigest()[:32]
    dialect = "tau" if tau else "chat"
    spans = tuple(_spans(row, turns, trace_id, now, dialect))
    return Chat(
        trace_id=trace_id,
        spans=spans,
        feedback=_feedback(row, trace_id, now, noted),
        verdicts=_verdicts(row, trace_id, now, noted),
        dialect=dialect,
        ignored=frozenset(text(name) for name in row if name not in _READ),
    )


def _spans(
    row: Mapping[str, Any], turns: Sequence[dict[str, Any]], trace_id: str, now: float, dialect: str
) -> Iterator[SpanRecord]:
    first = next(place for place, turn in enumerate(turns) if turn["role"] == "user") + 1
    model = text(row.get("model") or _inner(row, "request").get("model"))
    schemas = row.get("tools") or row.get("functions") or _inner(row, "request").get("tools")
    offered = [s for item in schemas if (s := messages.tool_schema(item))] if isinstance(schemas, list) else []
    task = next((text(row[key]) for key in ("task_id",) if row.get(key) is not None), "")
    session = text(row.get("conversation_id") or row.get("session_id") or row.get("session"))
    root: dict[str, Json] = {
        names.OPERATION: names.INVOKE_AGENT,
        names.SOURCE: f"import:{dialect}",
        names.TIMED: False,
        names.INPUT_MESSAGES: dumps(turns[:first]),
        names.OUTPUT_MESSAGES: dumps(turns[first:]),
        names.TOOL_DEFINITIONS: dumps(offered) if offered else None,
        names.CONVERSATION: session or None,
        "user.id": text(row.get("user") or row.get("user_id")) or None,
        names.TASK_ID: task or None,
        names.TRIAL: text(row["trial"]) if row.get("trial") is not None else None,
    }
    results = {turn.get("tool_call_id"): turn for turn in turns if turn["role"] == "tool"}
    children: list[tuple[str, dict[str, Json], str]] = []
    usage = _inner(_inner(row, "response"), "usage")
    for place, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        last = place == len(turns) - 1
        children.append(
            (
                f"{names.CHAT} {model}".strip(),
                {
                    names.OPERATION: names.CHAT,
                    names.REQUEST_MODEL: model or None,
                    names.INPUT_TOKENS: integer(usage.get("prompt_tokens")) if last else None,
                    names.OUTPUT_TOKENS: integer(usage.get("completion_tokens")) if last else None,
                },
                "",
            )
        )
        for call in turn.get("tool_calls", ()):
            answer = results.get(call["id"])
            children.append(
                (
                    f"{names.EXECUTE_TOOL} {call['function']['name']}",
                    {
                        names.OPERATION: names.EXECUTE_TOOL,
                        names.TOOL: call["function"]["name"],
                        names.TOOL_CALL_ID: call["id"],
                        names.TOOL_ARGUMENTS: dumps(call["function"]["arguments"]),
                        names.TOOL_RESULT: answer["content"] if answer is not None else None,
                        names.CALL_STATUS: "skipped" if answer is None else None,
                    },
                    _error(answer),
                )
            )
    start = int(now * 1e9)
    root_id = _span_id(trace_id, 0)
    end = start + 1000 * (len(children) + 1)
    yield _span(trace_id, root_id, "", "invoke_agent", start, end, root, "")
    for place, (name, attributes, error) in enumerate(children, 1):
        at = start + 1000 * place  # a microsecond apart: only their order means something
        yield _span(trace_id, _span_id(trace_id, place), root_id, name, at, at + 1000, attributes, error)


def _span(
    trace_id: str,
    span_id: str,
    parent: str,
    name: str,
    start: int,
    end: int,
    attributes: Mapping[str, Json],
    error: str,
) -> SpanRecord:
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent,
        name=name,
        start_ns=start,
        end_ns=end,
        status="error" if error else "unset",
        status_message=error,
        attributes={key: value for key, value in attributes.items() if value is not None},
        scope="agentops.trace.chats",
    )


def _with_ids(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every call with an id of its own, and results paired with calls by order where ids are missing or repeated.

    Logs exist in which a conversation uses one call id several times; a trainer would pair the wrong results.
    """
    used: set[str] = set()
    waiting: list[tuple[str, str, str]] = []  # id in the log, name, new id
    out = []
    for place, turn in enumerate(turns):
        turn = dict(turn)
        if "tool_calls" in turn:
            renamed = []
            for number, call in enumerate(turn["tool_calls"]):
                given = call["id"]
                new = given if given and given not in used else f"{given or 'call'}_{place}_{number}"
                used.add(new)
                waiting.append((given, call["function"]["name"], new))
                renamed.append({**call, "id": new})
            turn["tool_calls"] = renamed
        elif turn["role"] == "tool":
            given, name = turn.get("tool_call_id", ""), turn.get("name", "")
            match = next((one for one in waiting if given and one[0] == given), None)
            match = match or next((one for one in waiting if not given and name in ("", one[1])), None)
            if match is not None:
                waiting.remove(match)
                turn["tool_call_id"] = match[2]
                turn.setdefault("name", match[1])
        out.append(turn)
    return out


def _feedback(row: Mapping[str, Any], trace_id: str, now: float, noted: Counter[str]) -> tuple[Feedback, ...]:
    given = row.get("feedback")
    if given is None:
        return ()
    comment = corrected = ""
    if isinstance(given, Mapping):
        comment, corrected = text(given.get("comment")), text(given.get("corrected_answer"))
        given = given.get("score", given.get("value", 0))
    score = _thumb(given)
    if score is None:
        noted["feedback is neither -1, 0, 1 nor up or down: left out"] += 1
        return ()
    return (Feedback(trace_id, score, now, comment=comment, corrected_answer=corrected),)


def _thumb(value: Json) -> Literal[-1, 0, 1] | None:
    words: dict[str, Literal[-1, 0, 1]] = {
        **dict.fromkeys(("up", "thumbs_up", "positive", "good", "like", "1", "+1", "true"), 1),
        **dict.fromkeys(("down", "thumbs_down", "negative", "bad", "dislike", "-1", "false"), -1),
        **dict.fromkeys(("0", "neutral", "none", ""), 0),
    }  # fmt: skip
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return words.get(str(value).strip().lower())


def _verdicts(row: Mapping[str, Any], trace_id: str, now: float, noted: Counter[str]) -> tuple[Verdict, ...]:
    found = []
    for key in ("reward", "score"):
        value = row.get(key)
        if value is None:
            continue
        if isinstance(value, bool):
            value = float(value)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            noted[f"{key} is not a number from 0 to 1: left out"] += 1
            continue
        success = True if value == 1 else False if value == 0 else None
        found.append(Verdict(trace_id, f"import:{key}", success, float(value), at=now))
    return tuple(found)


def _error(answer: Mapping[str, Any] | None) -> str:
    """tau-bench and others write a failed call's result as text that starts with "Error"."""
    content = text(answer.get("content")) if answer is not None else ""
    return content[:500] if content.lstrip()[:6].lower() in ("error:", "error ") else ""


def _turns(row: Mapping[str, Any], key: str) -> Json:
    """Messages under `key`; "" = of a request with its response."""
    if key:
        return row.get(key)
    asked = _inner(row, "request").get("messages")
    choices = _inner(row, "response").get("choices")
    if not isinstance(asked, list):
        return None
    said = [choice.get("message") for choice in choices[:1] if isinstance(choice, Mapping)] if choices else []
    return [*asked, *said]


def _inner(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def _span_id(trace_id: str, place: int) -> str:
    return hashlib.sha256(f"{trace_id}/{place}".encode()).hexdigest()[:16]
