"""A span read: its part in the conversation, in the engine's terms.

Invariant: fields are filled once, by the first dialect that knows; `used` names every attribute that was understood.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentops.trace import messages, names
from agentops.trace.jsontext import integer, loads, parse, text
from agentops.trace.rows import SpanRecord
from agentops.types import Json

Turn = dict[str, Any]
_MISSING = object()
MAX_INDEXED = 10_000  # messages, calls or tools written as name.0.…, name.1.…


class Node:
    """Filled by the readers, then read by `agentops.trace.assemble`."""

    __slots__ = (
        "agent", "arguments", "call_id", "conversation", "dialect", "error", "input_tokens", "inputs", "model",
        "operation", "output_tokens", "outputs", "result", "session", "span", "system", "tool", "tools", "used", "user",
    )  # fmt: skip

    def __init__(self, span: SpanRecord, operation: str) -> None:
        self.span = span
        self.operation = operation  # invoke_agent, chat, execute_tool, another, or ""
        self.dialect = ""
        self.used: set[str] = {names.OPERATION} if operation else set()
        self.conversation: list[Turn] = []  # whole, when one attribute gives it
        self.inputs: list[Turn] = []
        self.outputs: list[Turn] = []
        self.system = ""
        self.tools: list[dict[str, Any]] = []
        self.agent = self.session = self.user = self.model = ""
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.tool = self.call_id = self.error = ""
        self.arguments: Json = _MISSING
        self.result: Json = _MISSING

    @property
    def has_arguments(self) -> bool:
        return self.arguments is not _MISSING

    @property
    def has_result(self) -> bool:
        return self.result is not _MISSING

    def get(self, *keys: str) -> Json:
        """The first of these attributes that is set; all of them count as understood."""
        found = None
        for key in keys:
            if key in self.span.attributes:
                self.used.add(key)
                if found is None:
                    found = self.span.attributes[key]
        return found

    def fill(self, field: str, value: Json) -> None:
        """Set a text or number field unless an earlier reader did."""
        if value not in (None, "") and getattr(self, field) in (None, ""):
            setattr(self, field, integer(value) if field.endswith("_tokens") else text(value))

    def argue(self, value: Json) -> None:
        """Arguments of a tool call, parsed when they are JSON text."""
        if value is not None and not self.has_arguments:
            self.arguments = loads(value)

    def answer(self, value: Json) -> None:
        """Result of a tool call, parsed when it is the JSON text of an object, a list or a string."""
        if value is not None and not self.has_result:
            self.result = unquoted(value)

    def offer(self, schemas: Iterable[Json]) -> None:
        """Tool schemas, unless an earlier reader gave some."""
        if not self.tools:
            self.tools = [schema for item in schemas if (schema := messages.tool_schema(item)) is not None]

    def indexed(self, prefix: str) -> list[Any]:
        """Attributes `prefix.0.a.b`, `prefix.1.…` as a list of nested values; digits are positions at any depth."""
        root: dict[str, Any] = {}
        for key, value in self.span.attributes.items():
            if not key.startswith(prefix + "."):
                continue
            self.used.add(key)
            here = root
            parts = key[len(prefix) + 1 :].split(".")
            for part in parts[:-1]:
                following = here.setdefault(part, {})
                if not isinstance(following, dict):
                    following = here[part] = {"": following}
                here = following
            here[parts[-1]] = value
        found = _listed(root)
        return found if isinstance(found, list) else []

    def finish(self) -> None:
        """What every dialect has in common: the error."""
        if self.span.status == "error" or self.error:
            self.fill("error", exception(self.span) or "error")


def exception(span: SpanRecord) -> str:
    """The message of a failed span: its exception event's, else the first line of its status."""
    for event in reversed(span.events):
        attributes = event.get("attributes")
        if event.get("name") == "exception" and isinstance(attributes, Mapping):
            message = text(attributes.get("exception.message")) or text(attributes.get("exception.type"))
            if message:
                return message
    return re.split(r"Traceback \(most recent call last\)|\n", span.status_message, maxsplit=1)[0].strip()


def unquoted(value: Json) -> Json:
    """As `loads`, and a JSON string as what it says. Numbers stay text: "1042" may be an order's id."""
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return parse(value)
        except ValueError:
            return value
    return loads(value)


def _listed(value: Any) -> Any:
    """Dictionaries whose keys are all digits as lists, in order of the digits."""
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(item) for key, item in value.items()}
    if inner and len(inner) <= MAX_INDEXED and all(key.isascii() and key.isdigit() and len(key) < 9 for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
