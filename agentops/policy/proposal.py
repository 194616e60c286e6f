"""Turns what the traffic needed into a patch of the project's files, and tries the patch on that traffic.

Invariant: no file is changed; the patch only ever takes grants away, every edited file still parses to exactly what was
meant, and `Proposal.refused` says how many recorded calls the smaller grants would have treated otherwise. An entry
that cannot be edited safely is left as it is and named in `skipped`.
"""

import difflib
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from agentops.policy.advise import Needs
from agentops.policy.cedar import Policy
from agentops.policy.identity import FILE, Identities
from agentops.policy.policyset import PolicySet
from agentops.policy.replay import Recorded
from agentops.project import Project
from agentops.types import AgentSpec, Run, ToolSpec

WIDTH = 110  # characters of a list in one line
_PERMIT = re.compile(
    r'(permit\s*\(\s*principal[^,]*,\s*action)(?P<scope>\s+in\s+(?:Action::"[^"]*"|\[[^\]]*\]))?(\s*,\s*resource)'
)
_ONE_TOOL = re.compile(r"permit\s*\(\s*principal[^,]*,\s*action\s*==")
_Granted = tuple[PolicySet, Mapping[str, AgentSpec], Mapping[str, frozenset[str]]]  # policies, agents, roles' scopes


@dataclass(frozen=True, slots=True)
class Proposal:
    """A patch for `git apply`, and how it did on the traffic it was made from."""

    patch: str  # unified diff; "" = there is nothing to take away
    replayed: int
    refused: int  # recorded calls that today's files allow (or ask about) and the patch would not: 0 for a sound one
    skipped: tuple[str, ...]


def propose(
    project: Project,
    tools: Mapping[str, ToolSpec],
    needed: Needs,
    people: Identities,
    policies: PolicySet,
    read: Callable[[], Iterable[Recorded]],
) -> Proposal:
    """The patch that leaves the project what `needed` says.

    Args:
        project: whose files are edited.
        tools: by name.
        needed: the smallest grants.
        people: the roles as they are.
        policies: the set as it is.
        read: reads the recorded decisions anew, to try the patch on.

    Raises:
        PolicyError: the edited policies do not load.
    """
    files: dict[Path, str] = {}
    skipped: list[str] = []

    def edit(file: Path, change: Callable[[str], str | None], what: str) -> bool:
        text = files.get(file) or file.read_text(encoding="utf-8")
        changed = change(text)
        if changed is None:
            skipped.append(what)
            return False
        files[file] = changed
        return True

    agents: dict[str, AgentSpec] = dict(project.agents)
    for definition in project.routers.values():
        for name in definition.table.get("agents", {}):
            old, new = agents[name], needed.agents.get(name, agents[name])
            for key in ("tools", "scopes", "max_calls", "max_money_cents"):
                value = getattr(new, key)
                if value != getattr(old, key) and edit(
                    definition.file, lambda text, n=name, k=key, v=value: set_key(text, ("agents", n), k, v),
                    f"agents.{name}.{key}",
                ):  # fmt: skip
                    agents[name] = replace(agents[name], **{key: value})
    roles = {name: role.scopes for name, role in people.roles.items()}
    for name, scopes in needed.role_scopes.items():
        if scopes != roles[name] and edit(
            project.policies / FILE, lambda text, n=name, s=scopes: set_key(text, ("roles", n), "scopes", s),
            f"roles.{name}.scopes",
        ):  # fmt: skip
            roles[name] = scopes
    for name, policy in policies.policies.items():
        used = needed.permit_tools.get(name, frozenset())
        spare = policy.effect == "permit" and used and not used >= _covered(policy, tools)
        if spare and not _ONE_TOOL.search(policy.text):
            file = project.policies / Path(policy.file).name
            edit(file, lambda text, p=policy, u=used: narrowed(text, p, u), f"permit {name}")
    now = {name: role.scopes for name, role in people.roles.items()}
    before = (policies, project.agents, now)
    replayed, refused = _tried(tools, before, (_edited(project, tools, agents, files), agents, roles), read)
    return Proposal(_patch(project.root, files), replayed, refused, tuple(skipped))


def _covered(policy: Policy, tools: Mapping[str, ToolSpec]) -> set[str]:
    """Tools that a permit's scope names: one by one, by their effect, or all."""
    found = _PERMIT.search(policy.text)
    if found is None or found["scope"] is None:
        return set(tools)
    named = set(re.findall(r'"([^"]*)"', found["scope"]))
    return {name for name, spec in tools.items() if {name, spec.effect} & named}


def set_key(text: str, table: tuple[str, str], key: str, value: frozenset[str] | int) -> str | None:
    """`text` (TOML) with another value of one key and nothing else changed; None when that cannot be done safely."""
    before = tomllib.loads(text)
    entry = before.get(table[0], {}).get(table[1], {})
    if key not in entry:
        return None
    header = re.search(rf"^[ \t]*\[\s*{table[0]}\s*\.\s*{re.escape(table[1])}\s*\][^\n]*\n", text, re.MULTILINE)
    if header is None:
        return None
    end = re.compile(r"^[ \t]*\[", re.MULTILINE)
    found = re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*", re.MULTILINE).search(text, header.end())
    if found is None:
        return None
    old = entry[key]
    stop = _value_end(text, found.end())
    following = end.search(text, header.end())
    if following is not None and following.start() < found.start():
        return None
    # Lists keep their order: a reader must see only what goes.
    shown = _shown([one for one in old if one in value]) if isinstance(value, frozenset) else str(value)
    changed = text[: found.end()] + shown + text[stop:]
    return changed if _same_but(before, changed, table, key, value) else None


def narrowed(text: str, policy: Policy, tools: frozenset[str]) -> str | None:
    """`text` (a Cedar file) with this permit for exactly these tools; None when its head has another form."""
    actions = ", ".join(f"Action::{orjson.dumps(name).decode()}" for name in sorted(tools))
    head = _PERMIT.search(policy.text)
    if head is None or text.count(policy.text) != 1:
        return None
    if set(re.findall(r'Action::"([^"]*)"', head["scope"] or "")) == tools:
        return text
    changed = f"{policy.text[: head.start()]}{head[1]} in [{actions}]{head[3]}{policy.text[head.end() :]}"
    return text.replace(policy.text, changed)


def _value_end(text: str, start: int) -> int:
    """Where a TOML value that begins at `start` ends: a list at its bracket, a number before comment or newline."""
    if text[start] != "[":
        return start + len(re.split(r"[ \t]*(?:#|\n|$)", text[start:], maxsplit=1)[0])
    depth, position, quote = 0, start, ""
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            position = text.find("\n", position)
        elif character in "[]":
            depth += 1 if character == "[" else -1
            if depth == 0:
                return position + 1
        position += 1
    return len(text)


def _same_but(
    before: dict[str, Any], changed: str, table: tuple[str, str], key: str, value: frozenset[str] | int
) -> bool:
    try:
        after = tomllib.loads(changed)
    except tomllib.TOMLDecodeError:
        return False
    got = after.get(table[0], {}).get(table[1], {}).get(key)
    if (frozenset(got) if isinstance(got, list) else got) != value:
        return False
    after[table[0]][table[1]][key] = before[table[0]][table[1]][key]
    return after == before


def _shown(items: list[str]) -> str:
    quoted = [orjson.dumps(item).decode() for item in items]
    line = f"[{', '.join(quoted)}]"
    if len(line) <= WIDTH:
        return line
    rows: list[str] = [""]
    for item in quoted:
        if len(rows[-1]) + len(item) > WIDTH:
            rows.append("")
        rows[-1] += f"{' ' if rows[-1] else ''}{item},"
    return "[\n" + "".join(f"    {row}\n" for row in rows) + "]"


def _edited(
    project: Project, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec], files: Mapping[Path, str]
) -> PolicySet:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / project.policies.name
        folder.mkdir()
        for file in project.policies.glob("*.cedar"):
            (folder / file.name).write_text(files.get(file) or file.read_text(encoding="utf-8"), encoding="utf-8")
        return PolicySet.load(folder, tools, agents)


def _tried(
    tools: Mapping[str, ToolSpec], before: _Granted, after: _Granted, read: Callable[[], Iterable[Recorded]]
) -> tuple[int, int]:
    """Decisions replayed, and how many that are no denials today come out otherwise with the patch.

    Held against today's files and not against what was recorded: the policies may have changed since.
    """
    replayed = refused = 0
    for one in read():
        spec = tools.get(one.call.tool)
        if spec is None:
            continue
        replayed += 1
        now, then = (
            policies.decide(_under(one.run, agents, roles), one.call, spec, one.facts)
            for policies, agents, roles in (before, after)
        )
        if now.effect != "deny":
            refused += (now.effect, now.approver) != (then.effect, then.approver)
    return replayed, refused


def _under(run: Run, agents: Mapping[str, AgentSpec], roles: Mapping[str, frozenset[str]]) -> Run:
    """The run as it would have been: with the proposed ceiling, and scopes of the proposed roles."""
    who = run.principal
    if who.roles:
        who = replace(who, scopes=who.scopes & frozenset().union(*(roles.get(role, frozenset()) for role in who.roles)))
    return replace(run, principal=who, agent=agents.get(run.agent.name, run.agent))


def _patch(root: Path, files: Mapping[Path, str]) -> str:
    parts: list[str] = []
    for file, text in sorted(files.items()):
        name = file.relative_to(root).as_posix()
        old = file.read_text(encoding="utf-8")
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)
