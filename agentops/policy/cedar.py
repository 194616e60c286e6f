"""Read the project's Cedar files: every policy with its file, line, id and annotations, or every problem at once.

Invariant: what is returned parses, has unique ids and passes strict validation against the generated schema; an
annotation that means nothing is refused, because a misspelt `@advice` would change a decision silently.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cedarpy
from cedarpy import pst

from agentops.types import Problem, ToolSpec

MAX_FILE = 1024 * 1024  # bytes
ANNOTATIONS = ("id", "advice", "reason")
_ADVICE = re.compile(r"approval:([a-z][a-z0-9_-]*(?:\+[a-z][a-z0-9_-]*)*)")
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy as written. `advice`: roles whose approval lifts this forbid, joined with "+"."""

    id: str
    effect: pst.Effect
    file: str
    line: int
    text: str
    advice: str = ""
    reason: str = ""


def read_policies(folder: Path, tools: Mapping[str, ToolSpec], schema: str) -> tuple[list[Policy], list[Problem]]:
    """Every policy of `folder`/*.cedar in order of file and place, and everything wrong with them."""
    policies: list[Policy] = []
    problems: list[Problem] = []
    for file in sorted(folder.glob("*.cedar")):
        shown = f"{folder.name}/{file.name}"
        try:
            if file.stat().st_size > MAX_FILE:
                problems.append(Problem(shown, 0, f"is larger than {MAX_FILE} bytes: split it"))
                continue
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(shown, 0, f"cannot be read: {error}"))
            continue
        found = statements(text)
        if not found:  # a full disk or a broken copy empties a file: its guards must not go quietly
            problems.append(Problem(shown, 0, "has no policy: restore it, or remove the file"))
        for line, statement in found:
            policy, problem = _policy(shown, line, statement, tools)
            if problem is not None:
                problems.append(problem)
            elif policy is not None:
                policies.append(policy)
    problems += _duplicates(policies)
    if not policies and not problems:
        problems.append(Problem(folder.name, 0, "has no policy: without one every call is denied; add base.cedar"))
    return policies, problems + _invalid(policies, schema)


def statements(text: str) -> list[tuple[int, str]]:
    """(1-based line, text) of each policy: Cedar's own parser names no line, so the file is cut at the semicolons."""
    found: list[tuple[int, str]] = []
    start: int | None = None
    position, line, start_line = 0, 1, 1
    while position < len(text):
        character = text[position]
        if character == "\n":
            line += 1
        elif text.startswith("//", position):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        elif not character.isspace():
            if start is None:
                start, start_line = position, line
            if character == '"':
                end = _string_end(text, position)
                line += text.count("\n", position, end)
                position = end
                continue
            if character == ";":
                found.append((start_line, text[start : position + 1]))
                start = None
        position += 1
    if start is not None:
        found.append((start_line, text[start:]))
    return found


def _string_end(text: str, start: int) -> int:
    position = start + 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return min(position + 1, len(text))


def _policy(file: str, line: int, text: str, tools: Mapping[str, ToolSpec]) -> tuple[Policy | None, Problem | None]:
    try:
        nodes = cedarpy.policies_to_pst(text)
    except ValueError as error:
        return None, Problem(file, line, f"the policy that begins here does not parse: {error}")
    if nodes.templates or len(nodes.static_policies) != 1:
        return None, Problem(file, line, "a policy template (?principal, ?resource) is not supported: write it out")
    node = next(iter(nodes.static_policies.values()))
    marks = dict(node.annotations)
    unknown = sorted(set(marks) - set(ANNOTATIONS))
    if unknown:
        known = ", ".join(f"@{name}" for name in ANNOTATIONS)
        return None, Problem(file, line, f"annotation @{unknown[0]} is not known: use {known}")
    if not _ID.fullmatch(marks.get("id", "")):
        return None, Problem(file, line, 'has no usable id: begin the policy with @id("lower-case-name")')
    advice = ""
    if "advice" in marks:
        match = _ADVICE.fullmatch(marks["advice"])
        if match is None or node.effect != "forbid":
            message = f'@advice({marks["advice"]!r}) is not usable: on a forbid, write @advice("approval:ROLE")'
            return None, Problem(file, line, message)
        advice = match[1]
    for uid in sorted(pst.entity_uids(node), key=str):
        if str(uid.type) == "Tool" and uid.id not in tools:
            return None, Problem(file, line, f"names tool {uid.id!r}, which does not exist")
    return Policy(marks["id"], node.effect, file, line, text, advice, marks.get("reason", "")), None


def _duplicates(policies: list[Policy]) -> list[Problem]:
    first: dict[str, Policy] = {}
    problems: list[Problem] = []
    for policy in policies:
        other = first.setdefault(policy.id, policy)
        if other is not policy:
            message = f"id {policy.id!r} is already used at {other.file}:{other.line}: ids are unique in a project"
            problems.append(Problem(policy.file, policy.line, message))
    return problems


def _invalid(policies: list[Policy], schema: str) -> list[Problem]:
    """Strict validation, one policy at a time so that each error has its line."""
    if not policies:
        return []
    handle = cedarpy.Schema.from_str(schema)
    problems: list[Problem] = []
    for policy in policies:
        result = cedarpy.validate_policies(policy.text, handle)
        texts = {re.sub(r"^for policy `policy0`[,:] ", "", error.error) for error in result.errors}
        problems += [Problem(policy.file, policy.line, f"policy {policy.id!r}: {text}") for text in sorted(texts)]
        if not result.validation_passed and not texts:
            problems.append(Problem(policy.file, policy.line, f"policy {policy.id!r} does not pass validation"))
    return problems
