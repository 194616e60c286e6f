"""The last look for personal data and secrets: every row is redacted once more before it is written.

Invariant: spans were redacted before they were stored, so whatever is found here got past that; it is replaced, and
counted by kind as a defect. A row whose redaction failed is not written. Metadata columns (ids, margins) are not text.
"""

from collections import Counter
from typing import Any

import orjson

from agentops.redact import Redactor
from agentops.types import Json

MAX_KNOWN = 1_000
FAILED = "<REDACTION_FAILED>"


class Cleaner:
    """Redacts the content columns of rows and remembers what it had to replace."""

    def __init__(self, redactor: Redactor, content: tuple[str, ...]) -> None:
        self._redactor, self._content = redactor, content
        self.findings: Counter[str] = Counter()
        self.rows_changed = 0
        self._known: dict[tuple[str, bytes], Json] = {}

    def clean(self, columns: dict[str, Any], tenant: str) -> tuple[dict[str, Any], str]:
        """The columns without personal data, and the reason to drop the row ("" to keep it)."""
        cleaned = {
            name: self._schemas(value, tenant)
            if name == "tools"
            else self._redactor.value(value, tenant)
            if name in self._content
            else value
            for name, value in columns.items()
        }
        if cleaned == columns:
            return columns, ""
        if any(_mentions_failure(cleaned[name]) for name in self._content):
            return columns, "could not be redacted"
        self.rows_changed += 1
        for name in self._content:
            self._count(columns[name], cleaned[name])
        return cleaned, ""

    def describe(self) -> dict[str, Any]:
        found = dict(sorted(self.findings.items()))
        return {"version": self._redactor.version, "rows_changed": self.rows_changed, "findings": found}

    def _schemas(self, tools: Json, tenant: str) -> Json:
        """Tool schemas, long and the same in most rows, are redacted once."""
        key = (tenant, orjson.dumps(tools))
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._redactor.value(tools, tenant)
        return self._known[key]

    def _count(self, before: Json, after: Json) -> None:
        if before == after:
            return
        if isinstance(before, dict) and isinstance(after, dict):
            for key, value in before.items():
                self._count(value, after.get(key))
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for one, other in zip(before, after, strict=True):
                self._count(one, other)
        else:
            kinds = [finding.kind for finding in self._redactor.findings(before)] if isinstance(before, str) else []
            self.findings.update(kinds or ["other"])


def _mentions_failure(value: Json) -> bool:
    if isinstance(value, str):
        return FAILED in value
    if isinstance(value, dict):
        return any(map(_mentions_failure, value.values()))
    return isinstance(value, list) and any(map(_mentions_failure, value))
