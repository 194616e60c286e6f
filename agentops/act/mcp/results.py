"""What a server's answer to a call becomes: a JSON value, or an error whose text is data like any other.

Invariant: only text and structured content that fits the pinned schema get through; pictures, sounds, files and links
are described by type and size. Whatever the server says, also of an error, has the tool's labels.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import orjson
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from agentops.act.mcp import schema
from agentops.act.mcp.lock import Definition
from agentops.errors import ToolError
from agentops.types import Json

MAX_RESULT = 256 * 1024  # characters of text, or bytes of structured content
MAX_ERROR = 2_000


def value(name: str, definition: Definition, result: CallToolResult) -> Json:
    """The result of tool `name`: its structured content when the pinned definition has a schema for it, else
    {"text": …}.

    Raises:
        ToolError: the server says it failed, or the result is not what was pinned, or too large.
    """
    if result.is_error:
        raise failed(f"{name}: {_text(result.content)[:MAX_ERROR] or 'it failed'}")
    pinned = definition.content.get("outputSchema")
    if pinned is not None:
        if result.structured_content is None:
            raise failed(f"{name}: its server returned no structured content, which its definition promises")
        if len(orjson.dumps(result.structured_content)) > MAX_RESULT:
            raise failed(f"{name}: the result has more than {MAX_RESULT} bytes: ask for less")
        if fault := schema.faults(pinned, result.structured_content):
            raise failed(f"{name}: its server returned what its definition does not allow ({fault})")
        return result.structured_content
    text = _text(result.content)
    if len(text) > MAX_RESULT:
        raise failed(f"{name}: the result has {len(text)} characters, at most {MAX_RESULT}: ask for less")
    return {"text": text}


def failed(message: str) -> ToolError:
    """An error after which nobody knows what was done: what the call was charged stays charged."""
    error = ToolError(message)
    error.clean = False
    return error


def _text(content: Iterable[Any]) -> str:
    return "\n".join(_described(block) for block in content)


def _described(block: Any) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.type} of {_size(block.data)} bytes, not shown]"
    if isinstance(block, EmbeddedResource):
        held = block.resource
        size = _size(held.blob) if isinstance(held, BlobResourceContents) else len(held.text.encode())
        return f"[a file of {size} bytes, not shown]"
    if isinstance(block, ResourceLink):
        return "[a link, not followed]"
    return "[content of an unknown kind, not shown]"


def _size(encoded: str) -> int:
    try:
        return len(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return len(encoded)
