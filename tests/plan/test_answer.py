"""The answer says only what results hold."""

from agentops.plan import answer, parse
from agentops.plan.answer import HANDED_OVER
from agentops.types import Plan, ToolResult, ToolSpec

SPEC = ToolSpec("look", "p", "d", {"type": "object", "properties": {}}, "read", frozenset(), 1.0)
PLAN = parse('a = look() & b = look()\nsay "First {a.n}.\\nSecond {b.n}.\\nAll done."', {"look": SPEC})


def ok(step: str, value: object) -> ToolResult:
    return ToolResult(step, "look", "ok", value)


def test_everything_worked() -> None:
    assert answer(PLAN, {"a": ok("a", {"n": 1}), "b": ok("b", {"n": 2})}) == "First 1.\nSecond 2.\nAll done."


def test_a_failure_keeps_what_is_known_and_claims_nothing_else() -> None:
    failed = ToolResult("b", "look", "error", error="Nothing found.")
    assert answer(PLAN, {"a": ok("a", {"n": 1}), "b": failed}) == "First 1.\nNothing found."


def test_a_hole_without_its_field_is_said_to_be_missing() -> None:
    text = answer(PLAN, {"a": ok("a", {"n": 1}), "b": ok("b", {})})
    assert text.startswith("First 1.\n")
    assert "'b.n'" in text


def test_the_summary_for_a_colleague_is_not_shown_to_the_customer() -> None:
    assert answer(Plan((), "", handoff="angry, wants 500 EUR"), {}) == HANDED_OVER
