"""Rows of a data set, read and checked before a trainer sees them.

Invariant: a row that passes applies to the chat template without loss: arguments are objects, content is text, roles
are known, nothing is cut. Anything else is a TrainError that names the row and the rule. Repair is harvest's job.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentops.errors import TrainError
from agentops.types import Dataset

FILE = "rows.jsonl"
SYSTEM = "You are a helpful assistant."  # templates put a stranger's name in when there is no system message
TOO_LONG_SHARE = 0.01  # more rows than this over max_length means that max_length is wrong
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one data set, and what identifies them."""

    kind: str
    rows: tuple[dict[str, Any], ...]
    digest: str

    def about(self, **more: Any) -> dict[str, Any]:
        """What a manifest says of the data."""
        return {"kind": self.kind, "digest": self.digest, "rows": len(self.rows), **more}


def read(dataset: Dataset | Path, kind: str) -> Rows:
    """Rows of a harvested data set: its folder, its rows.jsonl, or the Dataset itself.

    Raises:
        TrainError: missing, empty, of another kind, or a line that is not a JSON object; names file and line.
    """
    if isinstance(dataset, Dataset) and dataset.kind != kind:
        raise TrainError(f"this stage trains on {kind!r} rows, got a {dataset.kind!r} data set")
    path = dataset.path if isinstance(dataset, Dataset) else dataset
    file = path / FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TrainError(f"data set {str(file)!r} cannot be read: {error.strerror or error}") from None
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TrainError(f"{file}:{number}: not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise TrainError(f"{file}:{number}: a row must be an object, got {type(row).__name__}")
        rows.append(row)
    if not rows:
        raise TrainError(f"data set {str(file)!r} has no rows: harvest more traces or loosen its filters")
    digest = dataset.digest if isinstance(dataset, Dataset) else f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Rows(kind, tuple(rows), digest)


def messages(value: Any, where: str) -> list[dict[str, Any]]:
    """A conversation in the one form that templates take, with a system message first.

    Args:
        value: what the row holds.
        where: names the row in errors.

    Raises:
        TrainError: not a list of messages, unknown role, content None, arguments as text.
    """
    if not isinstance(value, list) or not value:
        raise TrainError(f"{where}: expected a list of messages, got {type(value).__name__}")
    found = [message(item, f"{where}, message {number}") for number, item in enumerate(value, 1)]
    if found[0]["role"] != "system":
        found.insert(0, {"role": "system", "content": SYSTEM})
    return found


def message(value: Any, where: str) -> dict[str, Any]:
    """One message, reduced to role, content, tool_calls, name and tool_call_id."""
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        role = value.get("role") if isinstance(value, Mapping) else value
        raise TrainError(f"{where}: role {role!r} is not one of {', '.join(ROLES)}")
    if not isinstance(value.get("content"), str):
        kind = type(value.get("content")).__name__
        raise TrainError(f'{where}: content is {kind}, not text; an assistant turn that only calls tools has ""')
    kept = {"role": value["role"], "content": value["content"]}
    for key in ("name", "tool_call_id"):
        if isinstance(value.get(key), str):
            kept[key] = value[key]
    if calls := value.get("tool_calls"):
        if value["role"] != "assistant" or not isinstance(calls, list):
            raise TrainError(f"{where}: tool_calls must be a list on an assistant message")
        kept["tool_calls"] = [_call(call, where) for call in calls]
    return kept


def _call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TrainError(f"{where}: a tool call needs function.name and function.arguments")
    if not isinstance(function.get("arguments"), Mapping):
        kind = type(function.get("arguments")).__name__
        raise TrainError(
            f"{where}: arguments of {function['name']!r} are {kind}, not an object: text would be encoded twice"
        )
    return {
        "type": "function",
        "function": {"name": function["name"], "arguments": dict(function["arguments"])},
    }


def tools(row: Mapping[str, Any], where: str) -> list[dict[str, Any]] | None:
    """The row's tool schemas, or None.

    Raises:
        TrainError: not a list of schemas.
    """
    value = row.get("tools") or None
    if value is not None and not (isinstance(value, list) and all(isinstance(item, Mapping) for item in value)):
        raise TrainError(f"{where}: tools must be a list of OpenAI function schemas, got {type(value).__name__}")
    return [dict(item) for item in value] if value else None


def length(tokenizer: Any, conversation: Sequence[Mapping[str, Any]], schemas: Any, where: str) -> int:
    """Tokens of a conversation under the tokenizer's chat template.

    Raises:
        TrainError: the template refuses the row.
    """
    from jinja2 import TemplateError

    try:
        return len(tokenizer.apply_chat_template(list(conversation), tools=schemas, tokenize=True, return_dict=False))
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise TrainError(f"{where}: the chat template refuses it: {type(error).__name__}: {error}") from error


def fit(lengths: Sequence[int], max_length: int, model_limit: int, name: Callable[[int], str]) -> tuple[int, list[int]]:
    """The limit to train with and the rows that fit in it, by index.

    Args:
        lengths: tokens of each row.
        max_length: the recipe's limit; 0 = the longest row.
        model_limit: positions the model has.
        name: from a row's index to how an error names it.

    Raises:
        TrainError: more than 1 % of the rows are longer than the limit; says by how much.
    """
    limit = min(max_length or max(lengths), model_limit)
    keep = [index for index, tokens in enumerate(lengths) if tokens <= limit]
    if len(lengths) - len(keep) > TOO_LONG_SHARE * len(lengths):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        raise TrainError(
            f"{len(lengths) - len(keep)} of {len(lengths)} rows are longer than {limit} tokens (at most 1 % may be; "
            f"the longest, {name(longest)}, has {lengths[longest]}): raise max_length or shorten the rows"
        )
    return limit, keep
