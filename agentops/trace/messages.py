"""Chat messages in their two written forms: OpenAI's, used inside the engine, and the parts of OpenTelemetry's GenAI.

Invariant: `decode(encode(messages)) == normal(messages)`, with tool arguments as objects, content "" instead of None,
and keys in one order. Unknown parts are kept as text, never dropped silently.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentops.trace.jsontext import dumps, loads, text
from agentops.types import Json

ROLES = ("system", "developer", "user", "assistant", "tool")
_CALL_PARTS = ("tool_use", "tool_call", "tool-call", "function_call")
_RESULT_PARTS = ("tool_result", "tool-result")
_ROLE_NAMES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "developer": "system"}


def encode(messages: Iterable[Mapping[str, Any]]) -> str:
    """OpenAI messages as the JSON of `gen_ai.input.messages` (role and parts)."""
    return dumps([_encoded(message) for message in messages])


def decode(value: Json) -> list[dict[str, Any]]:
    """Messages from a JSON string or list in either form; [] when it is neither.

    One GenAI message can hold several tool responses; each becomes a `tool` message of its own.
    """
    found = loads(value)
    if isinstance(found, Mapping):
        found = found.get("messages", [found])
    messages: list[dict[str, Any]] = []
    for item in found if isinstance(found, list) else []:
        if isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item):
            messages.extend(normal([{"role": item[0], "content": item[1]}]))  # ["user", "text"]
        elif isinstance(item, list):
            messages.extend(decode(item))
        elif isinstance(item, Mapping) and isinstance(item.get("parts"), list):
            messages.extend(_from_parts(item))
        elif isinstance(item, Mapping):
            messages.extend(normal([_unwrapped(item)]))
    return messages


def normal(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI or Anthropic messages in the engine's one form; a message with tool results becomes one for each."""
    return [part for message in messages for part in _split(message)]


def normal_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """One message: role, content as text, tool_calls with arguments as objects, tool_call_id, name."""
    role = text(message.get("role")) or "assistant"
    out: dict[str, Any] = {"role": _ROLE_NAMES.get(role, role), "content": content_text(message.get("content"))}
    calls = [tool_call(call) for call in _list(message.get("tool_calls"))]
    calls += [tool_call(part) for part in _list(message.get("content")) if _kind(part) in _CALL_PARTS]
    function = message.get("function_call")
    if isinstance(function, Mapping):
        calls.append(tool_call({"function": function}))
    if calls:
        out["tool_calls"] = calls
    for key in ("tool_call_id", "name"):
        if message.get(key):
            out[key] = text(message[key])
    return out


def tool_call(call: Json) -> dict[str, Any]:
    """A tool call as {"id", "type": "function", "function": {"name", "arguments": object}}."""
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else call
    arguments = next((function[key] for key in ("arguments", "args", "input") if key in function), {})
    return {
        "id": text(call.get("id") or call.get("tool_call_id") or call.get("toolCallId")),
        "type": "function",
        "function": {
            "name": text(function.get("name") or function.get("toolName")),
            "arguments": arguments_object(arguments),
        },
    }


def arguments_object(value: Json) -> dict[str, Json]:
    """Tool arguments as an object; text that is no JSON object is kept under "_raw"."""
    found = loads(value)
    if isinstance(found, Mapping):
        return {text(key): item for key, item in found.items()}
    return {} if found in (None, "") else {"_raw": found}


def content_text(content: Json) -> str:
    """Message content as text: strings as they are, text parts joined by newlines, anything else as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        pieces = []
        for part in content:
            inner = part.get("text", part.get("content")) if isinstance(part, Mapping) else part
            kind = part.get("type") if isinstance(part, Mapping) else "text"
            if isinstance(inner, str) and kind in (None, "text", "input_text", "output_text"):
                pieces.append(inner)
            elif kind not in _CALL_PARTS:  # these are in tool_calls
                pieces.append(dumps(part))
        return "\n".join(pieces)
    return dumps(content)


def tool_schema(value: Json) -> dict[str, Any] | None:
    """A tool definition of any dialect as an OpenAI function schema, or None."""
    value = loads(value)
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    function = function if isinstance(function, Mapping) else value
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return None
    keys = ("parameters", "input_schema", "inputSchema", "parameters_json_schema")
    parameters = next((loads(function[key]) for key in keys if key in function), None)
    if not isinstance(parameters, Mapping):
        parameters = {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": name, "description": text(function.get("description")), "parameters": dict(parameters)},
    }


def _encoded(message: Mapping[str, Any]) -> dict[str, Any]:
    message = normal_message(message)
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id", ""), "result": message["content"]}
        if "name" in message:
            part["name"] = message["name"]
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = []
    if message["content"] or not message.get("tool_calls"):
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(
            {"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": function["arguments"]}
        )
    encoded = {"role": message["role"], "parts": parts}
    if "name" in message:
        encoded["name"] = message["name"]
    return encoded


def _from_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role = _ROLE_NAMES.get(text(message.get("role")), text(message.get("role"))) or "assistant"
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    for part in message["parts"]:
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        if kind == "tool_call":
            calls.append(tool_call(part))
        elif kind == "tool_call_response":
            result = next((part[key] for key in ("result", "response", "content") if key in part), "")
            response = {"role": "tool", "content": result if isinstance(result, str) else dumps(result)}
            response["tool_call_id"] = text(part.get("id"))
            if part.get("name"):
                response["name"] = text(part["name"])
            responses.append(response)
        elif kind == "text":
            texts.append(text(part.get("content", part.get("text"))) if isinstance(part, Mapping) else text(part))
        elif kind not in ("thinking", "reasoning"):  # a model's private notes are no part of the conversation
            texts.append(dumps(part))
    out: list[dict[str, Any]] = list(responses)
    if texts or calls or not responses:
        main: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if calls:
            main["tool_calls"] = calls
        if message.get("name"):
            main["name"] = text(message["name"])
        # Responses answer the assistant's message before this one, so they come first.
        out.append(main)
    return out


def _unwrapped(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """LangChain's serialised messages ({"type": "human", "data": {…}} and {"lc": 1, "kwargs": {…}}) as plain ones."""
    inner = item.get("data") if isinstance(item.get("data"), Mapping) else item.get("kwargs")
    if not isinstance(inner, Mapping):
        if "role" not in item and isinstance(item.get("type"), str):
            return {**item, "role": item["type"]}
        return item
    return {**inner, "role": inner.get("role") or inner.get("type") or item.get("type")}


def _split(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message whose content has tool results (Anthropic, Vercel) as `tool` messages and the rest."""
    content = _list(message.get("content"))
    results = [part for part in content if _kind(part) in _RESULT_PARTS]
    if not results:
        return [normal_message(message)]
    out = []
    for part in results:
        value = next((part[key] for key in ("content", "output", "result") if key in part), "")
        if isinstance(value, Mapping) and set(value) == {"type", "value"}:  # Vercel: {"type": "json", "value": …}
            value = value["value"]
        answer: dict[str, Any] = {"role": "tool", "content": content_text(value)}
        answer["tool_call_id"] = text(part.get("tool_use_id") or part.get("toolCallId"))
        if part.get("toolName"):
            answer["name"] = text(part["toolName"])
        out.append(answer)
    rest = [part for part in content if part not in results]
    return [*out, normal_message({**message, "content": rest})] if rest else out


def _kind(part: Json) -> str:
    return text(part.get("type")) if isinstance(part, Mapping) else ""


def _list(value: Json) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
