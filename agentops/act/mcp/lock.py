"""mcp.lock: the definitions of another server's tools as a person accepted them, and how live ones differ.

Invariant: what a model is told of a tool comes from this file; a definition whose digest does not fit it is not used.
The digest covers name, title, description, both schemas and annotations: everything a server says about a tool that
could reach a model. It speaks with no server.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentops.audit import canonical
from agentops.errors import AuditError, MCPError, PolicyError
from agentops.parsers import json_value

FILE = "mcp.lock"
MAX_LOCK = 4 * 1024 * 1024  # bytes
MAX_DESCRIPTION = 8_000  # characters
UNUSABLE = "unusable"  # digest of a definition that nobody can be held to: it equals no pinned one
FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
State = Literal["ok", "changed", "missing", "duplicate", "unpinned"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool as its server defines it."""

    content: Mapping[str, Any]  # the FIELDS that are there
    digest: str  # sha256 of the content, hex

    @property
    def name(self) -> str:
        return str(self.content["name"])


def definition(tool: Mapping[str, Any]) -> Definition:
    """The definition in an entry of `tools/list`.

    Raises:
        MCPError: it has no name, too long a description, or no canonical form.
    """
    content = {key: tool[key] for key in FIELDS if tool.get(key) is not None}
    name = content.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise MCPError("a tool's name is not a text of 1 to 128 characters")
    if len(str(content.get("description", ""))) > MAX_DESCRIPTION:
        raise MCPError(f"tool {name!r}: the description has more than {MAX_DESCRIPTION} characters")
    try:
        return Definition(content, hashlib.sha256(canonical(content)).hexdigest())
    except AuditError:
        raise MCPError(f"tool {name!r}: the definition has no canonical form") from None


def read(folder: Path) -> dict[str, Definition]:
    """What `folder`/mcp.lock pins, by the server's names; {} without the file.

    Raises:
        MCPError: it is not what `write` makes: edited by hand, merged badly.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        table = json_value(file.read_bytes(), MAX_LOCK)
        entries = table["tools"]
        found = {name: definition(entry["definition"]) for name, entry in entries.items()}
        fits = all(found[name].name == name and found[name].digest == entries[name]["sha256"] for name in entries)
    except (PolicyError, KeyError, TypeError, AttributeError):
        raise MCPError(f"{FILE} is damaged: make it again with `agentops tools pin {folder.name}`") from None
    if not fits:
        raise MCPError(
            f"{FILE} was edited: a definition does not have its digest; make it again with "
            f"`agentops tools pin {folder.name}`"
        )
    return found


def write(folder: Path, definitions: Iterable[Definition]) -> None:
    """Replace `folder`/mcp.lock in one step."""
    tools = {one.name: {"sha256": one.digest, "definition": one.content} for one in definitions}
    text = json.dumps({"version": 1, "tools": tools}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    fresh = folder / f".{FILE}.{os.getpid()}"
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(folder / FILE)


def compare(pinned: Mapping[str, Definition], live: Iterable[Definition]) -> dict[str, State]:
    """How the server's tools stand to the pinned ones, by the names of the pinned ones."""
    offered: dict[str, list[Definition]] = {}
    for one in live:
        offered.setdefault(one.name, []).append(one)
    states: dict[str, State] = {}
    for name, one in pinned.items():
        found = offered.get(name, [])
        if len(found) != 1:
            states[name] = "duplicate" if found else "missing"
        else:
            states[name] = "ok" if found[0].digest == one.digest else "changed"
    return states


def difference(old: Definition | None, new: Definition | None) -> list[str]:
    """The lines of a unified diff for a person; characters that cannot be seen are written as escapes."""
    before, after = (_lines(one) for one in (old, new))
    name = next((one.name for one in (new, old) if one is not None), "")
    return list(difflib.unified_diff(before, after, f"{name} (pinned)", f"{name} (now)", lineterm="", n=2))


def _lines(one: Definition | None) -> list[str]:
    if one is None:
        return []
    text = json.dumps(one.content, indent=2, sort_keys=True, ensure_ascii=False).replace("\\n", "\n      ")
    return [visible(line) for line in text.split("\n")]


def visible(text: str) -> str:
    """`text` with zero-width, direction and control characters as escapes: what a person reads is what a model gets."""
    return "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text)
