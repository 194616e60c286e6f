"""Types a tool's author annotates arguments with: their values arrive in one canonical spelling, or not at all.

    async def send(ctx: Context, to: Email, report: Annotated[str, FilePath("/workspace/reports")], fee: Cents) -> dict

Invariant: what a tool receives is what `agentops.parsers` returned, and the policies have decided on that very text.
The type's JSON Schema says what it is, so the model and the policies' schema know it too. Nothing here opens anything.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, Strict
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from agentops import parsers
from agentops.act.files import open_beneath
from agentops.errors import PolicyError

CENTS = 2**53 - 1  # the largest amount that every JSON reader keeps exactly


@dataclass(frozen=True, slots=True)
class Parsed:
    """Annotation: how a text is parsed, and what its JSON Schema says beside its type."""

    parse: Callable[[str], str]
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda value: _canonical(self.parse, value), handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), **self.schema}


Email = Annotated[str, Parsed(parsers.email, {"format": "email", "maxLength": 254})]
Domain = Annotated[str, Parsed(parsers.domain, {"format": "hostname", "maxLength": 253})]
Url = Annotated[
    str, Parsed(lambda text: parsers.url(text).text, {"format": "uri", parsers.URL_MARK: ["http", "https"]})
]
Cents = Annotated[int, Strict(), Ge(-CENTS), Le(CENTS), Parsed(str, {"format": "cents"})]  # minor units
NAMED_EMAIL = Parsed(parsers.email)  # for an argument that only its name declares: its schema stays the author's


@dataclass(frozen=True, slots=True)
class FilePath:
    """Annotation of a text: a path beneath `root`, absolute ("/workspace") or relative to the project ("data/reports").

    Raises:
        PolicyError: the root is not a plain path.
    """

    root: str

    def __post_init__(self) -> None:
        parsers.root_path(self.root)

    def open(self, path: str, flags: int = os.O_RDONLY, *, base: Path = Path("/")) -> int:
        """A descriptor of the file at `path`, which no symbolic link on the way may lead elsewhere.

        Args:
            path: the argument's value.
            flags: as for `os.open`.
            base: the folder that a relative root is in.

        Raises:
            ToolError: there is no such file, or the path leaves the root.
            PolicyError: `path` is not in its canonical form.
        """
        if parsers.file_path(path, self.root) != path:
            raise PolicyError("the path is not in its canonical form: hand over the argument as it came")
        return open_beneath(base / self.root, path[len(self.root) + 1 :] or ".", flags)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def parse(text: str) -> str:
            return parsers.file_path(text, self.root)

        return core_schema.no_info_after_validator_function(lambda value: _canonical(parse, value), handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"description": f"a path beneath {self.root}", **handler(schema), "format": "path", "x-root": self.root}


def _canonical(parse: Callable[[str], str], value: Any) -> Any:
    if not isinstance(value, str):
        return value  # None of an optional argument, or a number
    try:
        return parse(value)
    except PolicyError as error:
        raise PydanticCustomError("canonical", "{reason}", {"reason": str(error)}) from None
