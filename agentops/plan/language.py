"""The plan language: a few lines of text that become a DAG of tool calls, and back.

    # one stage a line; `&` between calls that may run at the same time
    o = get_order("A-1001") & k = search_articles(query="returns")
    r = refund_order(o.id, amount_cents=o.total_cents)
    also
    s = check_stock("SKU-7")
    say "Refunded {r.amount_cents} cents of order {o.id}. See {k.items.0.title}.\\nThere are {s.available} left."

`also` begins a part that is independent of the others: another request in the same message. Its steps neither wait for
theirs nor refer to them, and are not skipped when one of them fails; the answer speaks of all.

Invariant: `parse(format(plan), tools) == plan` for every plan that `parse` returned, and `parse` raises nothing but
PlanError, in time linear in the text. It evaluates nothing: a value is a JSON literal or a reference to an earlier
line's result. It checks names, argument names and literal types; the gateway still validates and authorises every call.
In a playbook a value may be a `$slot`, which becomes a literal; it is filled in as a value, never as text.
"""

from collections.abc import Mapping
from dataclasses import replace

from agentops import graph
from agentops.errors import PlanError
from agentops.plan import lexer, literals
from agentops.plan.parser import SLOT, Parser, defined
from agentops.types import Json, Plan, Step, ToolSpec

MAX_BYTES = 16_384


def parse(text: str, tools: Mapping[str, ToolSpec], source: str = "", slots: Mapping[str, Json] | None = None) -> Plan:
    """The plan written in `text`.

    A step with an effect (anything but "read") waits for every step of its part's earlier lines; a read waits for the
    effects of those lines and for the steps it refers to. Positional arguments follow the order of the tool's schema.

    Args:
        text: at most 16 kB and 64 steps.
        tools: the tools a plan may name.
        source: who wrote it, for example "playbook:cancel" or "model:<name>".
        slots: values of the `$slots` of a playbook; None: `text` may have none. In texts `$slot` is written out.

    Returns:
        the plan; its `text` is the canonical writing (`format`), without comments.

    Raises:
        PlanError: with line and column, what is wrong there and the names that are known.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise PlanError(f"a plan of {len(text)} characters is too long: at most {MAX_BYTES} bytes")
    lines = [(number, lexer.tokens(line, number)) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, found) for number, found in lines if found]
    parser = Parser(tools, defined(lines), slots)
    for number, found in lines:
        parser.line(number, found)
    plan = parser.plan(source)
    written = format(plan)
    if len(written.encode()) > MAX_BYTES:
        raise PlanError(f"a plan of {len(written)} characters, written out, is too long: at most {MAX_BYTES} bytes")
    return replace(plan, text=written)


def format(plan: Plan) -> str:
    """`plan` in canonical writing: every step named, every argument by keyword, one stage a line."""
    if plan.handoff:
        return f"handoff {literals.write(plan.handoff)}"
    lines: list[list[Step]] = []
    for step in plan.steps:
        together = bool(lines) and (lines[-1][0].stage, lines[-1][0].part) == (step.stage, step.part)
        if together and not {other.id for other in lines[-1]} & {*step.after, *graph.references(step.arguments)}:
            lines[-1].append(step)
        else:
            lines.append([step])
    written: list[str] = []
    for line, before in zip(lines, [*lines[:1], *lines], strict=False):
        if line[0].part != before[0].part:
            written.append("also")
        written.append(" & ".join(map(_call, line)))
    return "\n".join([*written, f"say {literals.write(plan.say)}"])


def slots(text: str) -> set[str]:
    """Names of the `$slots` in a playbook's plan."""
    return set(SLOT.findall(text))


def _call(step: Step) -> str:
    given = ", ".join(f"{name}={literals.write(value)}" for name, value in step.arguments.items())
    return f"{step.id} = {step.tool}({given})"
