"""Playbooks, the merging of several plans, and plans a model writes."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.errors import ModelError, PlanError
from agentops.graph import RealClock
from agentops.plan import ModelPlanner, Playbooks, WithFallback, language, merge
from agentops.plan.llm import described, unfenced
from agentops.policy import Budgets, TokenMeter
from agentops.project import Definition
from agentops.store import MemoryState
from agentops.types import OUT_OF_SCOPE, AgentSpec, Json, Plan, Principal, Ref, Request, Route, Run, ToolSpec

TEXT = {"type": "string", "maxLength": 40}
TOOLS = {
    spec.name: spec
    for spec in (
        ToolSpec("get", "p", "Look at a thing.", {"type": "object", "properties": {"id": TEXT}, "required": ["id"]},
                 "read", frozenset(), 1.0),
        ToolSpec("find", "p", "Search.", {"type": "object", "properties": {"words": TEXT, "limit": {"type": "integer"}},
                 "required": ["words"]}, "read", frozenset(), 1.0),
        ToolSpec("cancel", "p", "Cancel a thing.", {"type": "object", "properties": {"id": TEXT}, "required": ["id"]},
                 "write", frozenset(), 1.0),
    )
}  # fmt: skip

TABLE: dict[str, Any] = {
    "planner": {"name": "planner"},
    "playbooks": {
        "status": {
            "needs": ["id"],
            "ask": "Which {thing}?",
            "plan": 'o = get($id)\nsay "{o.id} for $id is {o.status}"',
        },
        "cancel": {
            "needs": ["id"],
            "ask": "Cancel which?",
            "plan": 'o = get($id)\nc = cancel(o.id)\nsay "gone {c.id}"',
        },
        "search": {"plan": 'f = find($words, limit=3)\nsay "See {f.0.title}"'},
        "person": {"plan": 'handoff "asks for a person"'},
    },
}


def extract(request: Request) -> dict[str, Json]:
    """Slots of these tests: `#id` and the whole text."""
    found = [word[1:] for word in request.text.split() if word.startswith("#")]
    return {"id": found[0] if found else None, "words": request.text[:30]}


def playbooks(table: Mapping[str, Any] = TABLE) -> Playbooks:
    folder = Path("/nowhere/routers/planner")
    return Playbooks(Definition("planner", folder, folder / "planner.toml", table), extract)


def request(text: str) -> Request:
    return Request("r1", text, Principal("acme", "ann"), "s1")


def planned(text: str, *labels: str | Route, tools: Mapping[str, ToolSpec] = TOOLS) -> Plan:
    routes = tuple(label if isinstance(label, Route) else Route(label, 1.0, "rules") for label in labels)
    return asyncio.run(playbooks().plan(request(text), routes, tools))


def test_a_playbook_is_filled_from_the_request() -> None:
    plan = planned("status of #A-1 please", "status")
    assert plan.steps[0].arguments == {"id": "A-1"}
    assert plan.say == "{o.id} for A-1 is {o.status}"
    assert plan.source == "playbook:status"


def test_a_missing_slot_is_asked_for() -> None:
    plan = planned("status please", "status")
    assert (plan.steps, language.graph.render(plan.say, {})) == ((), "Which {thing}?")
    assert playbooks().questions() == {"Which {thing}?": "status", "Cancel which?": "cancel"}


@pytest.mark.parametrize("labels", [(OUT_OF_SCOPE,), ("unheard_of",), ("person",), ("status", "person")])
def test_what_no_playbook_covers_goes_to_a_person(labels: tuple[str, ...]) -> None:
    plan = planned("hello #A-1", *labels)
    assert plan.handoff
    assert plan.steps == ()


def test_an_agent_without_the_tool_hands_over() -> None:
    assert planned("#A-1", "cancel", tools={"get": TOOLS["get"]}).handoff.startswith("cancel could not be planned")


@pytest.mark.parametrize(("stopped", "source"), [(False, "model"), (True, "")])
def test_a_stopped_agent_asks_no_model(stopped: bool, source: str) -> None:
    class Written:
        def __init__(self, plan: Plan) -> None:
            self.written = plan

        async def plan(self, *_: Any) -> Plan:
            return self.written

    async def asked(request: Request, routes: tuple[Route, ...]) -> bool:
        assert (request.text, routes[0].label) == ("what?", "order_status")
        return stopped

    first, second = Written(Plan((), "", handoff="a person")), Written(Plan((), "ok", source="model"))
    request = Request("r", "what?", Principal("t", "u"), "s")
    tools = {"x": ToolSpec("x", "p", "", {}, "read", frozenset(), 1.0)}
    plan = asyncio.run(WithFallback(first, second, asked).plan(request, (Route("order_status", 1.0, "rules"),), tools))
    assert plan.source == source
    assert bool(plan.handoff) is stopped


def test_several_intents_become_one_plan() -> None:
    plan = planned(
        "", Route("cancel", 1, "r", text="#A-1"), Route("status", 1, "r", text="#B-2"), "search", OUT_OF_SCOPE
    )
    assert [(step.id, step.part, step.after) for step in plan.steps] == [
        ("a_o", 0, ()),
        ("a_c", 0, ("a_o",)),
        ("b_o", 1, ()),
        ("c_f", 2, ()),
    ]
    assert plan.steps[1].arguments == {"id": Ref("a_o", ("id",))}
    assert plan.say.splitlines()[1] == "{b_o.id} for B-2 is {b_o.status}"
    assert plan.say.endswith("I cannot help with the other part of your message.")
    assert plan.source == "playbook:cancel+playbook:status+playbook:search"
    assert language.parse(plan.text, TOOLS, plan.source) == plan


def test_each_step_keeps_the_sub_agent_of_its_route() -> None:
    plan = planned("", Route("cancel", 1, "r", "orders", text="#A-1"), Route("search", 1, "r", "help"))
    assert {step.id: step.agent for step in plan.steps} == {"a_o": "orders", "a_c": "orders", "b_f": "help"}


def test_changes_to_the_same_thing_keep_the_order_of_mention() -> None:
    same = planned("#A-1", "cancel", "cancel")
    assert [(step.id, step.part) for step in same.steps] == [("a_o", 0), ("a_c", 0), ("b_o", 0), ("b_c", 0)]
    assert same.steps[2].after == ("a_c",)
    apart = planned("", Route("cancel", 1, "r", text="#A"), Route("cancel", 1, "r", text="#B"))
    assert [(step.id, step.part) for step in apart.steps] == [("a_o", 0), ("a_c", 0), ("b_o", 1), ("b_c", 1)]
    mixed = planned("", Route("cancel", 1, "r", text="#A"), Route("cancel", 1, "r", text="#B"),
                    Route("cancel", 1, "r", text="#A"))  # fmt: skip
    assert [(step.id, step.part) for step in mixed.steps[::2]] == [("a_o", 0), ("c_o", 0), ("b_o", 1)]


@given(st.text(max_size=40))
def test_nothing_a_customer_writes_becomes_a_step(text: str) -> None:
    def taken(_: Request) -> dict[str, Json]:
        return {"words": text, "id": text}

    folder = Path("/nowhere/routers/planner")
    books = Playbooks(Definition("planner", folder, folder / "planner.toml", TABLE), taken)
    try:
        plan = asyncio.run(books.plan(request("x"), (Route("status", 1.0, "r"),), TOOLS))
    except PlanError:
        return
    if not plan.handoff:
        assert [step.tool for step in plan.steps] == ["get"]
        assert plan.steps[0].arguments == {"id": text}
        shown = language.graph.render(plan.say, {"o": {"id": "I", "status": "S"}})
        assert shown == f"I for {text} is S"


@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ({"plan": "x", "need": []}, "no key 'need'; keys: needs, ask, plan"),
        ({"ask": "?"}, "needs plan"),
        ({"plan": "x", "needs": "id"}, "not a list"),
        ({"plan": "x", "ask": "Cancel which?"}, "ask the same question"),
    ],
)
def test_a_wrong_table_is_refused_with_its_name(playbook: dict, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        playbooks({"playbooks": {"cancel": TABLE["playbooks"]["cancel"], "new": playbook}})
    assert words in str(caught.value)


def test_problems_name_file_line_and_playbook(tmp_path: Path) -> None:
    file = tmp_path / "routers" / "planner" / "planner.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[planner]\n[playbooks.good]\n[playbooks.bad]\n")
    table = {"playbooks": {"good": {"plan": 'get($id)\nsay "$id"'}, "bad": {"plan": 'gett($id)\nsay ""'}}}
    books = Playbooks(Definition("planner", file.parent, file, table), extract)
    [problem] = books.problems(TOOLS)
    assert str(problem).startswith(
        "routers/planner/planner.toml:3: playbook 'bad': line 1, column 1: 'gett' is not a tool"
    )


def test_an_extract_that_fails_is_named_without_the_customers_words() -> None:
    def broken(_: Request) -> dict[str, Json]:
        raise KeyError("secret words")

    folder = Path("/nowhere/routers/planner")
    books = Playbooks(Definition("planner", folder, folder / "planner.toml", TABLE), broken)
    with pytest.raises(PlanError) as caught:
        asyncio.run(books.plan(request("x"), (Route("status", 1.0, "r"),), TOOLS))
    assert "KeyError" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["x" * 41, 10**30, [[[[[[[[[[1]]]]]]]]]], "\ud800"])
def test_a_slot_that_does_not_fit_is_a_plan_error_or_a_hand_over(value: Json) -> None:
    folder = Path("/nowhere/routers/planner")
    books = Playbooks(Definition("planner", folder, folder / "planner.toml", TABLE), lambda _: {"id": value})
    try:
        plan = asyncio.run(books.plan(request("x"), (Route("status", 1.0, "r"),), TOOLS))
    except PlanError:
        return
    assert plan.handoff


def test_slots_are_only_for_playbooks() -> None:
    with pytest.raises(PlanError, match="only playbooks"):
        language.parse('get($id)\nsay ""', TOOLS)
    assert language.parse('say "that is $id"', TOOLS).say == "that is $id"


def test_merged_plans_that_are_too_long_together_are_refused() -> None:
    plan = language.parse("\n".join(f's{i} = get("{i}")' for i in range(40)) + '\nsay ""', TOOLS)
    with pytest.raises(PlanError, match="at most 64"):
        merge.merged([plan, plan], TOOLS)


# ------------------------------------------------------------------ plans a model writes


class Provider(BaseHTTPRequestHandler):
    """An OpenAI-style endpoint that answers with the next of its texts."""

    answers: list[str]
    asked: list[dict]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        content = self.answers.pop(0) if self.answers else "no plan"
        message = {"role": "assistant", "content": content}
        answer = {"id": "c", "object": "chat.completion", "created": 0, "model": "m",
                  "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                  "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Provider]]:
    class Own(Provider):
        answers: list[str] = []  # noqa: RUF012
        asked: list[dict] = []  # noqa: RUF012

    server = HTTPServer(("127.0.0.1", 0), Own)
    monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Own
    server.shutdown()
    server.server_close()
    thread.join()


class Answer:
    def __init__(self, text: str) -> None:
        self.text = text


def ask_model(text: str = "cancel A-1") -> Plan:
    planner = ModelPlanner("openai/stand-in")
    return asyncio.run(planner.plan(request(text), (Route("cancel", 0.6, "encoder"),), TOOLS))


def test_a_model_writes_a_plan(provider: Any) -> None:
    provider.answers = ['```\no = get("A-1")\nc = cancel(o.id)\nsay "done {c.id}"\n```']
    plan = ask_model()
    assert [step.tool for step in plan.steps] == ["get", "cancel"]
    assert plan.source == "model:openai/stand-in"
    [asked] = provider.asked
    assert "cancel(id: string): Cancel a thing. [write]" in asked["messages"][0]["content"]
    assert asked["messages"][-1]["content"].endswith("The customer's message:\ncancel A-1")


def test_a_wrong_plan_goes_back_with_the_parsers_error(provider: Any) -> None:
    provider.answers = ['c = cancle("A-1")\nsay ""', 'c = cancel("A-1")\nsay "ok"']
    assert ask_model().steps[0].tool == "cancel"
    assert "'cancle' is not a tool" in provider.asked[1]["messages"][-1]["content"]


def test_a_model_that_never_writes_a_plan_hands_over(provider: Any) -> None:
    plan = ask_model()
    assert len(provider.asked) == 3
    assert plan.handoff == "the planner model wrote no valid plan. The customer wrote: cancel A-1"


def test_a_request_without_tokens_left_hands_over_before_the_model_is_asked(provider: Any) -> None:
    budgets = Budgets(MemoryState(), RealClock())

    def meter(request: Request, routes: tuple[Route, ...]) -> TokenMeter:
        agent = AgentSpec(routes[0].label, frozenset(), frozenset(), max_tokens=1_000)
        return TokenMeter(budgets, Run(request.id, "s", request.principal, agent, 1e12))

    planner = ModelPlanner("openai/stand-in", meter=meter)
    plan = asyncio.run(planner.plan(request("cancel A-1"), (Route("cancel", 0.6, "encoder"),), TOOLS))
    assert plan.handoff.startswith("the planner model failed")
    assert provider.asked == []  # an answer of 1,024 tokens may be more than is left


def test_a_model_that_fails_and_no_tools_hand_over() -> None:
    async def fails(*_: Any, **__: Any) -> Answer:
        raise ModelError("no answer within 20 s")

    planner = ModelPlanner("m", complete=fails)
    assert asyncio.run(planner.plan(request("x"), (), TOOLS)).handoff.startswith("the planner model failed")
    assert asyncio.run(planner.plan(request("x"), (), {})).handoff.startswith("no tool may be used")


def test_tools_are_described_in_a_stable_order_and_fences_are_removed() -> None:
    assert described(TOOLS) == described(dict(reversed(TOOLS.items())))
    assert "find(words: string, limit: integer = null): Search. [read]" in described(TOOLS)
    assert unfenced('```plan\nsay "x"\n```') == 'say "x"'
    assert unfenced('say "```"') == 'say "```"'
