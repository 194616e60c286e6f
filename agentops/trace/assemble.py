"""Spans of one trace become a Trajectory, whichever dialect wrote them.

Invariant: the same spans give the same trajectory whatever their order, and hostile ones (cycles, duplicates, clocks
that ran backwards) still give one. What was recorded but not understood is in `unknown`, by attribute name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentops.trace import conversation, dialects, names
from agentops.trace.dialects import Node
from agentops.trace.dialects.node import unquoted
from agentops.trace.jsontext import dumps, loads, text
from agentops.trace.messages import arguments_object
from agentops.trace.rows import SpanRecord
from agentops.types import Assignment, Feedback, Json, ModelCall, Route, StepRecord, Trajectory, Verdict

MAX_UNKNOWN = 200  # attribute names kept
MAX_UNKNOWN_CHARS = 2_000  # of each value
_ASSIGNMENT = TypeAdapter(Assignment)
_ROUTES = TypeAdapter(tuple[Route, ...])


def assemble(
    spans: Iterable[SpanRecord],
    *,
    service: str = "",
    source: str = "",
    tenant: str = "",
    feedback: Sequence[Feedback] = (),
    verdicts: Sequence[Verdict] = (),
) -> Trajectory:
    """The trajectory of one trace; `spans` is not empty."""
    unique = {span.span_id: span for span in sorted(spans, key=lambda span: (span.end_ns, span.start_ns))}
    nodes = [dialects.read(span) for span in sorted(unique.values(), key=_order)]
    parents = _parents(nodes)
    root, last = _roots(nodes, parents)
    of_root = root.span.attributes
    timed = of_root.get(names.TIMED) is not False
    steps = _steps(nodes, parents, timed)
    turns = conversation.conversation(last if last.inputs or last.outputs else root, nodes, steps)
    if not steps:
        steps = _told(turns, nodes)
    failed = root if root.span.status == "error" else last
    error = text(last.span.attributes.get(names.ERROR)) or (failed.error if failed.span.status == "error" else "")
    return Trajectory(
        trace_id=root.span.trace_id,
        service=service or text(root.span.resource.get("service.name")),
        started_at=min(node.span.start_ns for node in nodes) / 1e9,
        ended_at=max(node.span.end_ns for node in nodes) / 1e9,
        messages=tuple(turns),
        tools=_tools(nodes),
        steps=steps,
        model_calls=_model_calls(nodes, timed),
        routes=_parsed(_ROUTES, _first(last, root, names.ROUTES)) or (),
        plan=text(_first(last, root, names.PLAN)),
        answer=_answer(turns),
        status="error" if error or failed.span.status == "error" else "ok",
        error=error,
        session=_field(nodes, root, "session"),
        tenant=tenant or text(of_root.get(names.TENANT)),
        user=_field(nodes, root, "user"),
        agent=_field(nodes, root, "agent"),
        assignment=_parsed(_ASSIGNMENT, of_root.get(names.ASSIGNMENT)),
        policy_digest=text(of_root.get(names.POLICY_DIGEST)),
        project_digest=text(of_root.get(names.PROJECT_DIGEST)),
        feedback=tuple(feedback),
        verdicts=tuple(verdicts),
        source=text(of_root.get(names.SOURCE)) or source or "live",
        timed=timed,
        unknown=_unknown(nodes, root),
    )


def dialect(spans: Iterable[SpanRecord]) -> str:
    """The dialect most of these spans are written in; "otlp" when none is known."""
    found = [node.dialect for node in map(dialects.read, spans) if node.dialect]
    return max(sorted(set(found)), key=found.count) if found else "otlp"


def _order(span: SpanRecord) -> tuple[int, int, str]:
    return span.start_ns, -span.end_ns, span.span_id


def _parents(nodes: Sequence[Node]) -> dict[str, Node]:
    """Parent node of each span id that has one in this trace; a cycle is cut at its earliest span."""
    by_id = {node.span.span_id: node for node in nodes}
    parents = {
        node.span.span_id: by_id[node.span.parent_id]
        for node in nodes
        if node.span.parent_id in by_id and node.span.parent_id != node.span.span_id
    }
    safe: set[str] = set()
    for node in nodes:
        path: dict[str, None] = {}
        here = node.span.span_id
        while here in parents and here not in safe and here not in path:
            path[here] = None
            here = parents[here].span.span_id
        if here in path:
            circle = list(path)[list(path).index(here) :]
            parents.pop(min(circle, key=lambda span_id: _order(by_id[span_id].span)))
        safe.update(path)
    return parents


def _roots(nodes: Sequence[Node], parents: Mapping[str, Node]) -> tuple[Node, Node]:
    """The span of the whole turn, and the one that tells how it ended.

    They differ when a turn waited for an approval: it went on as a second agent span of this engine.
    """
    tops = [node for node in nodes if node.span.span_id not in parents]
    root = next((node for node in tops if node.operation == names.INVOKE_AGENT), tops[0])
    ours = [node for node in nodes if node.operation == names.INVOKE_AGENT and names.STATUS in node.span.attributes]
    return root, ours[-1] if ours else root


def _steps(nodes: Sequence[Node], parents: Mapping[str, Node], timed: bool) -> tuple[StepRecord, ...]:
    """Tool spans as steps, by start; arguments and results that only messages tell of are taken from there."""
    told: dict[str, Mapping[str, Any]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for node in nodes:
        turns = [*node.inputs, *node.outputs, *node.conversation]
        told.update({call["id"]: call["function"] for turn in turns for call in conversation.calls(turn)})
        answers.update(conversation.results(turns))
    waiting = list(told)
    steps: dict[str, StepRecord] = {}
    for node in nodes:
        if node.operation != names.EXECUTE_TOOL:
            continue
        above = parents.get(node.span.span_id)
        call_id = node.call_id or (above.call_id if above is not None and above.tool == node.tool else "")
        if not call_id:  # the first call of this name that no span has claimed
            call_id = next((one for one in waiting if told[one]["name"] == node.tool), node.span.span_id)
        if call_id in waiting:
            waiting.remove(call_id)
        step = _step(node, call_id, told.get(call_id, {}), answers.get(call_id), timed)
        before = steps.get(call_id)
        if before is not None and before.tool != step.tool:
            call_id = node.span.span_id  # two calls under one id: both are kept
        elif before is not None and before.status == "ok" != step.status:
            continue  # several spans for one call (retries, a wait for approval): success is what happened
        steps[call_id] = step
    return tuple(sorted(steps.values(), key=lambda step: step.started_at)) if timed else tuple(steps.values())


def _step(
    node: Node, call_id: str, told: Mapping[str, Any], answer: Mapping[str, Any] | None, timed: bool
) -> StepRecord:
    attributes = node.span.attributes
    arguments = arguments_object(node.arguments) if node.has_arguments else dict(told.get("arguments", {}))
    result = node.result if node.has_result else unquoted(answer["content"]) if answer is not None else None
    given = text(attributes.get(names.CALL_STATUS))
    known = given in ("ok", "error", "timeout", "denied", "pending", "skipped")
    status: Any = given if known else "error" if node.error else "ok"
    policies = attributes.get(names.POLICIES)
    return StepRecord(
        call_id=call_id,
        tool=node.tool or text(told.get("name")),
        arguments=arguments,
        status=status,
        result=None if node.error and not node.has_result else result,
        error=node.error if status != "ok" else "",
        cached=attributes.get(names.CACHED) is True,
        started_at=node.span.start_ns / 1e9 if timed else 0.0,
        ended_at=node.span.end_ns / 1e9 if timed else 0.0,
        policies=tuple(map(text, policies)) if isinstance(policies, list | tuple) else (),
        span_id=node.span.span_id,
        parent_id=node.span.parent_id,
    )


def _told(turns: Sequence[Mapping[str, Any]], nodes: Sequence[Node]) -> tuple[StepRecord, ...]:
    """Calls that only the messages of this trace's model spans tell of: no times."""
    here = {call["id"] for node in nodes for turn in node.outputs for call in conversation.calls(turn)}
    answers = conversation.results([dict(turn) for turn in turns])
    return tuple(
        StepRecord(
            call_id=call["id"],
            tool=call["function"]["name"],
            arguments=call["function"]["arguments"],
            status="ok" if call["id"] in answers else "skipped",
            result=unquoted(answers[call["id"]]["content"]) if call["id"] in answers else None,
        )
        for turn in turns
        for call in conversation.calls(turn)
        if call["id"] in here
    )


def _model_calls(nodes: Sequence[Node], timed: bool) -> tuple[ModelCall, ...]:
    return tuple(
        ModelCall(
            model=node.model,
            input_tokens=node.input_tokens,
            output_tokens=node.output_tokens,
            started_at=node.span.start_ns / 1e9 if timed else 0.0,
            ended_at=node.span.end_ns / 1e9 if timed else 0.0,
            error=node.error,
            span_id=node.span.span_id,
            parent_id=node.span.parent_id,
        )
        for node in nodes
        if node.operation == names.CHAT
    )


def _tools(nodes: Sequence[Node]) -> tuple[Mapping[str, Any], ...]:
    """Every schema offered anywhere in the trace, once by name, the fullest description of its arguments first."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        for schema in node.tools:
            name = schema["function"]["name"]
            if name not in found or _fields(schema) > _fields(found[name]):
                found[name] = schema
    return tuple(found.values())


def _fields(schema: Mapping[str, Any]) -> int:
    properties = schema["function"]["parameters"].get("properties")
    return len(properties) if isinstance(properties, Mapping) else 0


def _answer(turns: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message, when the assistant has the last word."""
    last = turns[-1] if turns else {}
    return last.get("content", "") if last.get("role") == "assistant" and not conversation.calls(last) else ""


def _field(nodes: Sequence[Node], root: Node, field: str) -> str:
    return next((value for node in (root, *nodes) if (value := getattr(node, field))), "")


def _first(last: Node, root: Node, key: str) -> Json:
    return last.span.attributes.get(key) or root.span.attributes.get(key)


def _parsed(adapter: TypeAdapter[Any], value: Json) -> Any:
    """A value of ours that was written as JSON; None when it is not what this version writes."""
    if value is None:
        return None
    try:
        return adapter.validate_python(loads(value))
    except ValidationError:
        return None


def _unknown(nodes: Sequence[Node], root: Node) -> dict[str, Json]:
    """The first value of each attribute nobody understood, and task and trial, which no field of a trajectory holds."""
    found: dict[str, Json] = {
        key: root.span.attributes[key] for key in (names.TASK_ID, names.TRIAL) if key in root.span.attributes
    }
    for node in nodes:
        for key in dialects.unknown(node):
            if key not in found and len(found) < MAX_UNKNOWN:
                value = node.span.attributes[key]
                whole = value if isinstance(value, str) else dumps(value)
                found[key] = value if len(whole) <= MAX_UNKNOWN_CHARS else whole[:MAX_UNKNOWN_CHARS] + names.CUT_MARK
    return found
