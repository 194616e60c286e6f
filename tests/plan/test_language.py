"""The plan language: what it accepts, the DAG it makes, its errors, and that parse and format are inverse."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentops.errors import PlanError
from agentops.plan import language
from agentops.types import Effect, Plan, Ref, Step, ToolSpec


def spec(name: str, effect: Effect = "read", required: tuple[str, ...] = (), **properties: dict) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name, "pack", "A tool.", schema, effect, frozenset(), 1.0)


STRING, INTEGER = {"type": "string", "maxLength": 200}, {"type": "integer", "minimum": 0}
ANY: dict = {}
TOOLS = {
    tool.name: tool
    for tool in (
        spec("get_order", "read", ("order_id",), order_id=STRING),
        spec("search", "read", (), query=STRING, limit={"anyOf": [INTEGER, {"type": "null"}]}, kinds=ANY),
        spec("refund", "money", ("order_id", "cents"), order_id=STRING, cents=INTEGER),
        spec("cancel", "write", ("order_id",), order_id=STRING, reason={"enum": ["late", "wrong"]}),
    )
}


def parse(text: str) -> Plan:
    return language.parse(text, TOOLS)


def test_a_plan_becomes_a_dag() -> None:
    plan = parse(
        """
        # look first
        o = get_order("A-1") & k = search(query="returns", limit=3)
        r = refund(o.id, cents=o.items.0.total_cents)
        say "Refunded {r.cents} of {o.id}."
        """
    )
    assert [(step.id, step.tool, step.after) for step in plan.steps] == [
        ("o", "get_order", ()),
        ("k", "search", ()),
        ("r", "refund", ("o", "k")),
    ]
    assert plan.steps[2].arguments == {"order_id": Ref("o", ("id",)), "cents": Ref("o", ("items", 0, "total_cents"))}
    assert plan.say == "Refunded {r.cents} of {o.id}."
    assert plan.text.splitlines()[1] == "r = refund(order_id=o.id, cents=o.items.0.total_cents)"


def test_compact_writing_without_spaces_and_names() -> None:
    plan = parse('o=get_order("A")&search("x",kinds=["a",{"b":[1,-2.5e3,null,true]}])\ncancel(o.id,"late")\nsay"ok"')
    assert [step.id for step in plan.steps] == ["o", "s1", "s2"]
    assert plan.steps[1].arguments == {"query": "x", "kinds": ["a", {"b": [1, -2500.0, None, True]}]}


def test_also_begins_an_independent_part() -> None:
    plan = parse(
        'a = get_order("1")\nb = cancel("1")\nalso\nc = get_order("2")\nd = refund(c.id, 5)\nsay "{b.id} {d.id}"'
    )
    assert [(step.id, step.part, step.stage, step.after) for step in plan.steps] == [
        ("a", 0, 0, ()),
        ("b", 0, 1, ("a",)),
        ("c", 1, 2, ()),
        ("d", 1, 3, ("c",)),
    ]
    assert parse(plan.text) == plan


def test_effects_wait_for_everything_earlier_and_reads_only_for_effects_and_references() -> None:
    plan = parse(
        'a = get_order("1")\nb = get_order("2")\nc = cancel("3") & d = get_order(b.id)\ne = get_order("4")\n'
        'f = refund("5", 1)\ng = get_order("6")\nsay ""'
    )
    after = {step.id: step.after for step in plan.steps}
    assert after == {"a": (), "b": (), "c": ("a", "b"), "d": ("b",), "e": ("c",), "f": tuple("abcde"), "g": ("c", "f")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty", "say"]),
        ('a = get_order("1")', ["without an answer"]),
        ('a = get_ordr("1")\nsay ""', ["line 1, column 5", "'get_ordr'", "get_order, search"]),
        ('a = get_order(id="1")\nsay ""', ["line 1, column 15", "no argument 'id'", "order_id"]),
        ('a = get_order()\nsay ""', ["needs order_id"]),
        ('a = get_order("1", "2")\nsay ""', ["takes 1 argument"]),
        ('a = get_order("1", order_id="2")\nsay ""', ["given twice"]),
        ('a = search(limit=1, "x")\nsay ""', ["positional"]),
        ('a = get_order(b.id)\nb = get_order("1")\nsay ""', ["defined on line 2"]),
        ('a = get_order("1") & b = get_order(a.id)\nsay ""', ["runs at the same time"]),
        ('a = get_order(A-1)\nsay ""', ["column 15", "double quotes"]),
        ('a = get_order(order)\nsay ""', ["'order' is no earlier step", "double quotes"]),
        ('a = get_order("1")\na = get_order("2")\nsay ""', ["line 2", "already names a step"]),
        ('a = get_order("1)\nsay ""', ["column 15", "no closing"]),
        ('a = get_order("1"\nsay ""', ["end of line"]),
        ('a = refund("1", 1.5)\nsay ""', ["'cents'", "not of type integer"]),
        ('a = refund("1", -1)\nsay ""', ["below 0"]),
        ('a = refund("1", true)\nsay ""', ["not of type integer"]),
        ('a = refund("1", 99999999999999999999)\nsay ""', ["out of range"]),
        ('a = search(limit="x")\nsay ""', ["'limit'", "integer"]),
        ('a = cancel("1", "never")\nsay ""', ['"late", "wrong"']),
        ('a = search(kinds=1e999)\nsay ""', ["out of range"]),
        ('a = search(kinds="\\ud800")\nsay ""', ["surrogate"]),
        ('a = search(kinds="\\q")\nsay ""', ["not a JSON text"]),
        ('a = search(kinds={"a": 1, "a": 2})\nsay ""', ["given twice"]),
        ("a = search(kinds=" + "[" * 40 + "]" * 40 + ')\nsay ""', ["nested"]),
        ('say "{x.id}"', ["'x', which is no step"]),
        ('say "{x y}"', ["not a reference", "{{"]),
        ('say "a"\nsay "b"', ["line 2", "nothing may follow"]),
        ('say a', ["double quotes"]),
        ('true = get_order("1")\nsay ""', ["cannot name a step"]),
        ('a = get_order("1")\nhandoff "x"', ["takes the place"]),
        ('handoff " "', ["summary"]),
        ('also\nsay ""', ["no step before"]),
        ('a = get_order("1")\nalso\nsay ""', ["no step after"]),
        ('a = get_order("1")\nalso\nb = get_order(a.id)\nsay ""', ["another part"]),
        ('a = get_order("1")\nalso\na = get_order("2")\nsay ""', ["already names"]),
        ('also = get_order("1")\nsay ""', ["cannot name a step"]),
        ("\n".join(f's{i} = get_order("1")' for i in range(65)), ["at most 64 steps"]),
        ("# " + "x" * 20_000, ["too long"]),
    ],
)  # fmt: skip
def test_errors_name_the_place_and_what_is_known(text: str, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        parse(text)
    for word in words:
        assert word in str(caught.value)


def test_handoff_and_answer_only_plans() -> None:
    assert parse('handoff "angry customer"').handoff == "angry customer"
    assert parse('say "Which order {{do}} you mean?"').steps == ()


IDS = st.sampled_from([*"abcdefgh", "a1", "x_y", "order", "s1", "s2", "saying", "alsoo", "nulls", "t" * 64])
PATHS = st.lists(st.integers(0, 99) | st.sampled_from(["id", "_x", "Total", "a1", "true"]), max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)


VALUES = st.recursive(
    SCALARS | st.builds(Ref, st.integers(0, 99).map(str), PATHS.map(tuple)),  # which step: filled in below
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.lists(IDS, max_size=10, unique=True)


def pointed(value: Any, steps: list[str]) -> Any:
    """`value` with its references going to `steps`; without steps they become plain values."""
    if isinstance(value, Ref):
        return Ref(steps[int(value.step) % len(steps)], value.path) if steps else None
    if isinstance(value, dict):
        return {key: pointed(item, steps) for key, item in value.items()}
    return [pointed(item, steps) for item in value] if isinstance(value, list) else value


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = draw(NAMES)
    earlier: list[str] = []
    effects: list[str] = []
    steps: list[Step] = []
    stage = part = 0
    done: list[str] = []
    while names:
        if earlier and draw(st.integers(0, 3)) == 0:
            done, earlier, effects, part = done + earlier, [], [], part + 1
        line = [names.pop(0) for _ in range(min(len(names), draw(st.integers(1, 4))))]
        written = []
        for name in line:
            value = pointed(draw(VALUES), earlier)
            tool = draw(st.sampled_from(["search", "refund", "cancel", "get_order"]))
            given = {"search": {"kinds": value}, "refund": {"order_id": "1", "cents": 5}}.get(tool, {"order_id": "x"})
            needed = language.graph.references(given) | set(earlier if TOOLS[tool].effect != "read" else effects)
            written.append(Step(name, tool, given, tuple(other for other in earlier if other in needed), stage, part))
        steps += written
        earlier += line
        effects += [step.id for step in written if TOOLS[step.tool].effect != "read"]
        stage += 1
    say = draw(st.text(max_size=20).filter(lambda text: "{" not in text and "}" not in text))
    if done + earlier:
        say += "{" + draw(st.sampled_from(done + earlier)) + ".x}"
    return Plan(tuple(steps), say)


@settings(max_examples=150, deadline=None)
@given(plans())
def test_parse_inverts_format(plan: Plan) -> None:
    parsed = parse(language.format(plan))
    assert parsed == replace(plan, text=language.format(plan))
    assert parse(parsed.text) == parsed


FRAGMENTS = st.sampled_from(
    ['"', "\\", "(", ")", "[", "{", "}", "]", ",", "=", "&", "\n", "#", "say ", "handoff ", "also", "a", "get_order",
     "search", 'a = get_order("1")', "1", "-", "1e9", ".", "é", "\x00", "\ud800", " ", "null", ":"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=60).map("".join))
def test_any_text_is_a_plan_or_a_plan_error(text: str) -> None:
    try:
        plan = parse(text)
    except PlanError:
        return
    assert parse(plan.text) == plan


@pytest.mark.parametrize(
    "unit", ['"', '"\\', "(", "[", "{", "a.", "a=", "1", "-", "&", "{a", "{{", "#", " ", "\n", '["",']
)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    for prefix in ("", "a = search(kinds=", 'say "', "a = search(kinds=["):
        text = (prefix + unit * 16_384)[: language.MAX_BYTES]
        started = time.thread_time()  # not wall time: others share the cores
        with pytest.raises(PlanError):
            parse(text)
        assert time.thread_time() - started < 2.0  # quadratic work would take minutes
