"""The Cedar schema of a project, generated from its tools' manifests and its agents.

Invariant: the schema is a function of the manifests: equal manifests give equal text, and a policy that names a tool,
argument, agent or fact that does not exist fails strict validation. It decides nothing.

Principal = the run (who asks, through which agent). Action = the tool, in the group of its effect. Resource = the tool
as an entity with attributes. `context.args` = facts of the arguments, `context.source` = where each argument comes from
(request | trusted | derived | untrusted), `context.g` = what the gateway counted and saw.
"""

import json
import re
from collections.abc import Mapping

from agentops.errors import PolicyError
from agentops.policy.arguments import argument_types
from agentops.types import AgentSpec, ToolSpec

EFFECTS = ("read", "write", "money", "egress", "exec")
RUN = {
    "actors": "Set<String>",
    "agent": "String",
    "max_calls": "Long",
    "max_money_cents": "Long",
    "roles": "Set<String>",
    "scopes": "Set<String>",  # user ∩ agent
    "tenant": "String",
    "tools": "Set<String>",  # the agent's ceiling
    "user": "String",
}
TOOL = {
    "confidentiality": "String",
    "effect": "String",
    "idempotent": "Bool",
    "integrity": "String",
    "name": "String",
    "pack": "String",
    "scopes": "Set<String>",
}
FACTS = {
    "args_confidentiality": "String",  # public | internal | personal | secret
    "args_untrusted": "Bool",  # an argument was derived from untrusted content
    "calls_used": "Long",  # by this run, this call and those in flight included
    "isolation": "String",  # none | landlock | bubblewrap: what the tool will run in
    "money_used_cents": "Long",  # the same for money
    "seen_confidentiality": "String",  # of what the conversation has read: public | internal | personal | secret
    "untrusted_seen": "Bool",  # the conversation has read untrusted content
}
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset(["in", "is", "has", "like", "if", "then", "else", "true", "false"])
_HEAD = """\
// Generated from the tools' manifests and the agents: do not edit, `agentops check` says when it is out of date.
"""


def generate_schema(tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec]) -> str:
    """The schema as Cedar text, tools and agents in order of their names.

    Raises:
        PolicyError: a tool has the name of an effect, or an argument's name cannot be a fact.
    """
    parts = [_HEAD]
    names = ", ".join(_quoted(name) for name in sorted(agents))
    parts.append(f"entity Agent enum [{names}];\n" if names else "entity Agent;\n")
    parts.append(f"entity Run in [Agent] = {_record(RUN, 0)};\n")
    parts.append(f"entity Tool = {_record(TOOL, 0)};\n")
    parts.extend(f'action "{effect}";\n' for effect in EFFECTS)
    for name in sorted(tools):
        spec = tools[name]
        if name in EFFECTS:
            raise PolicyError(f"tool {name!r} has the name of an effect ({', '.join(EFFECTS)}): rename it")
        args = _record(argument_types(spec), 2)
        sources = dict.fromkeys(spec.parameters.get("properties", {}), "String")
        parts.append(
            f'action {_quoted(name)} in [Action::"{spec.effect}"] appliesTo {{\n'
            "  principal: [Run],\n"
            "  resource: [Tool],\n"
            f"  context: {{\n    args: {args},\n    g: {_record(FACTS, 2)},\n"
            f"    source: {_record(sources, 2)}\n  }}\n}};\n"
        )
    return "\n".join(parts)


def _record(fields: Mapping[str, str], depth: int) -> str:
    if not fields:
        return "{}"
    indent = "  " * depth
    lines = []
    for name in sorted(fields):
        bare = name.removesuffix("?")
        shown = bare if _IDENTIFIER.fullmatch(bare) and bare not in _RESERVED else _quoted(bare)
        lines.append(f"{indent}  {shown}{'?' if name.endswith('?') else ''}: {fields[name]}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
