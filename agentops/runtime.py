"""Conductor 1, the online loop: a LangGraph of route -> plan -> act -> (approval) -> answer, one trace per request.

Invariant: every request ends in exactly one of four ways: ok, pending (a person must approve), handoff (a person takes
over) or error; each is an Answer, never an exception, and leaves a trace. Tools are reached only through the gateway.
Each route is executed by its own sub-agent under that agent's ceiling.
"""

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from weakref import WeakValueDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from opentelemetry.trace import Status, StatusCode
from pydantic import TypeAdapter

from agentops import project as projects
from agentops.act import ToolGateway, execute
from agentops.act.sandbox.level import detect
from agentops.errors import AgentopsError, PolicyError, ReleaseError, RouteError, StoreError, require
from agentops.plan import ModelPlanner, Playbooks, WithFallback, answer, parse
from agentops.policy import TokenMeter, renewed
from agentops.protocols import Gateway, Planner, Router
from agentops.release import assign
from agentops.route import TextRouter
from agentops.threads import checkpointer
from agentops.trace import continued, names, set_attributes
from agentops.types import AgentSpec, Assignment, Labels, Message, Plan, Request, Route, Run, ToolResult
from agentops.workspace import Workspace

if TYPE_CHECKING:  # an extra
    from agentops.act.mcp.client import Servers

_results = TypeAdapter(dict[str, ToolResult])
_routes = TypeAdapter(tuple[Route, ...])
_request = TypeAdapter(Request)

_NOBODY = AgentSpec("none", frozenset(), frozenset(), max_calls=0)  # of a route without an agent
OWN_LABELS = "own-labels"  # in a manifest: a router over its data's labels; it belongs to no definition
FAILED = (
    "Something went wrong on our side. Part of your request may be done already: please check before you ask again."
)
WAITING = "This needs the approval of a colleague first. You will hear from us once it is decided."


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request."""

    request_id: str
    trace_id: str
    text: str
    status: Literal["ok", "pending", "handoff", "error"]
    routes: tuple[Route, ...] = ()
    plan: str = ""
    results: tuple[ToolResult, ...] = ()
    approvals: tuple[str, ...] = ()
    assignment: Assignment | None = None
    started_at: float = 0.0
    ended_at: float = 0.0


class Turn(TypedDict, total=False):
    """State of the graph: JSON values only, so that a waiting turn can be stored and read by another version."""

    request: dict[str, Any]
    parent: list[str]  # trace id and span id of the first turn
    assignment: dict[str, Any]  # the router version that serves this request to its end, and why
    routes: list[dict[str, Any]]
    plan: dict[str, Any]
    results: dict[str, dict[str, Any]]
    answer: str
    status: str


class Runtime:
    """Serves requests of one project. Build it with `open_runtime`."""

    def __init__(
        self,
        workspace: Workspace,
        gateway: Gateway,
        planner: Planner,
        router: Callable[[str], Router],
        assignment: Callable[[Request], Assignment],
        saver: BaseCheckpointSaver[Any],
        questions: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        router: artifact digest -> loaded router.
        questions: questions a planner asks when a detail is missing -> the label they belong to.
        """
        self._workspace = workspace
        self.gateway = gateway
        self._planner = planner
        self._router = router
        self._assignment = assignment
        self._questions = dict(questions or {})
        self._agents = workspace.project.agents
        self._labels = {
            label: str(table.get("agent", ""))
            for definition in workspace.project.routers.values()
            for label, table in definition.table.get("labels", {}).items()
        }
        self._slots = asyncio.Semaphore(workspace.project.settings.max_concurrency)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._saver = saver
        builder = StateGraph(Turn)  # pyrefly: ignore[bad-specialization]
        for name in ("route", "plan", "act", "approval", "answer"):
            builder.add_node(name, getattr(self, f"_{name}"))
        builder.add_edge(START, "route")
        builder.add_edge("route", "plan")
        builder.add_edge("plan", "act")
        builder.add_conditional_edges("act", self._after_act, ["approval", "answer"])
        builder.add_edge("approval", "act")
        builder.add_edge("answer", END)
        self.graph = builder.compile(checkpointer=saver, name=workspace.project.settings.service)

    async def ask(self, request: Request) -> Answer:
        """Serve one request to its end, or to the point where a person must decide."""
        async with self._alone(request.id), self._slots:
            return await self._serve(request, {"request": _request.dump_python(request, mode="json")})

    async def waits(self, request_id: str) -> bool:
        """Whether a request waits here for an approval: it resumes on the machine it waited on."""
        return bool((await self.graph.aget_state({"configurable": {"thread_id": request_id}})).next)

    async def resume(self, request_id: str) -> Answer:
        """Go on with a request that waited for approvals, once they are decided.

        Raises:
            PolicyError: no request waits under this id.
            StoreError: what waits was changed.
        """
        async with self._alone(request_id), self._slots:
            snapshot = await self.graph.aget_state({"configurable": {"thread_id": request_id}})
            if not snapshot.next:
                raise PolicyError(f"no request {request_id!r} waits for an approval (it may be finished already)")
            request = _request.validate_python(snapshot.values["request"])
            if request.id != request_id:  # encrypted does not mean in its place
                raise StoreError(f"what waits as request {request_id!r} is another one: threads.db was changed")
            return await self._serve(request, Command(resume=True), snapshot.values)

    def _alone(self, request_id: str) -> asyncio.Lock:
        """One turn of a request at a time: two approvers who decide at once must not both carry its plan on."""
        return self._turns.setdefault(request_id, asyncio.Lock())

    async def _serve(self, request: Request, start: Any, waited: Mapping[str, Any] | None = None) -> Answer:
        clock = self._workspace.clock
        started = clock.now()
        config: Any = {"configurable": {"thread_id": request.id}}
        settings = self._workspace.project.settings
        attributes = self._attributes(request)
        with (
            continued(*waited["parent"]) if waited else nullcontext(),
            self._workspace.tracing.span(f"invoke_agent {settings.service}", names.INVOKE_AGENT, attributes) as span,
        ):
            trace_id = format(span.get_span_context().trace_id, "032x")
            assignment, failure = None, ""
            try:
                async with asyncio.timeout(settings.request_timeout_s):
                    assignment = Assignment(**waited["assignment"]) if waited else self._assignment(request)
                    set_attributes(span, {names.ASSIGNMENT: asdict(assignment)})
                    if isinstance(start, dict):
                        start["parent"] = [trace_id, format(span.get_span_context().span_id, "016x")]
                        start["assignment"] = asdict(assignment)
                    turn = await self.graph.ainvoke(start, config, durability="exit")
            except TimeoutError:
                turn, failure = {}, f"the request took longer than {settings.request_timeout_s:g} s"
            except AgentopsError as error:
                turn, failure = {}, str(error)
            except Exception as error:  # noqa: BLE001 - a fault ends its own request; the trace keeps it, the customer not
                span.record_exception(error)
                turn, failure = {}, f"internal error: {type(error).__name__}"
            waiting = bool(turn.get("__interrupt__"))
            answer = self._answer_of(request, trace_id, turn, assignment, failure, waiting, started)
            if not waiting and not (waited and failure):  # a resume that failed can be tried again
                with suppress(sqlite3.Error):  # what stays behind is encrypted, and its results are never read again
                    await self._saver.adelete_thread(request.id)
            set_attributes(span, self._outputs(answer, turn, failure))
            if failure:
                span.set_status(Status(StatusCode.ERROR, failure))
            return answer

    def _answer_of(
        self,
        request: Request,
        trace_id: str,
        turn: Mapping[str, Any],
        assignment: Assignment | None,
        failure: str,
        waiting: bool,
        started: float,
    ) -> Answer:
        results = tuple(_results.validate_python(turn.get("results", {})).values())
        return Answer(
            request_id=request.id,
            trace_id=trace_id,
            text=FAILED if failure else WAITING if waiting else turn["answer"],
            status="error" if failure else "pending" if waiting else turn["status"],
            routes=_routes.validate_python(turn.get("routes", ())),
            plan=turn.get("plan", {}).get("text", ""),
            results=results,
            approvals=tuple(result.approval_id for result in results if result.status == "pending"),
            assignment=assignment,
            started_at=started,
            ended_at=self._workspace.clock.now(),
        )

    # ---------------------------------------------------------------- nodes

    async def _route(self, turn: Turn) -> Turn:
        request = _request.validate_python(turn["request"])
        asked = self._asked(request)
        with self._workspace.tracing.span("route", names.ROUTE_OPERATION) as span:
            if asked is not None:
                label, text = asked
                routes: tuple[Route, ...] = (Route(label, 1.0, "follow-up"),)
                turn["request"] = {**turn["request"], "text": text}
            else:
                router = self._router(turn["assignment"]["version"])
                [routes] = await asyncio.to_thread(router.route, [request.text])
            routes = tuple(replace(r, agent=r.agent or self._labels.get(r.label, "")) for r in routes)
            set_attributes(span, {names.ROUTES: _routes.dump_python(routes, mode="json")})
        return {"request": turn["request"], "routes": _routes.dump_python(routes, mode="json")}

    async def _plan(self, turn: Turn) -> Turn:
        request = _request.validate_python(turn["request"])
        routes = _routes.validate_python(turn["routes"])
        allowed = frozenset().union(*(self._agent(route.agent).tools for route in routes))
        tools = {name: spec for name, spec in self._workspace.specs.items() if name in allowed}
        with self._workspace.tracing.span("plan", names.PLAN_OPERATION) as span:
            plan = await self._planner.plan(request, routes, tools)
            set_attributes(
                span, {names.PLAN: plan.text, names.PLANNER: plan.source, names.HANDOFF: plan.handoff or None}
            )
        agents = {step.id: step.agent for step in plan.steps}
        stored = {"text": plan.text, "say": plan.say, "source": plan.source, "handoff": plan.handoff, "agents": agents}
        return {"plan": stored, "results": {}}  # a repeated request starts over; idempotency keys keep effects single

    async def _act(self, turn: Turn) -> Turn:
        request = _request.validate_python(turn["request"])
        plan = self._parsed(turn["plan"])
        done = _results.validate_python(turn.get("results", {}))
        # Since it was asked, perhaps a day ago, rights may have been taken away.
        request = replace(request, principal=renewed(self._workspace.project.policies, request.principal))
        run = self._run(request, _routes.validate_python(turn["routes"]), turn["parent"][0])
        results = await execute(plan, self.gateway, run, self._workspace.clock, done, self._agents)
        return {"results": _results.dump_python(results, mode="json")}

    def _after_act(self, turn: Turn) -> str:
        return "approval" if any(result["status"] == "pending" for result in turn["results"].values()) else "answer"

    async def _approval(self, turn: Turn) -> Turn:
        """Nothing before the interrupt: LangGraph runs this node again from its start on resume."""
        interrupt([result["approval_id"] for result in turn["results"].values() if result["status"] == "pending"])
        return {}

    async def _answer(self, turn: Turn) -> Turn:
        results = _results.validate_python(turn["results"])
        plan = self._parsed(turn["plan"])
        return {"answer": answer(plan, results), "status": "handoff" if plan.handoff else "ok"}

    # ---------------------------------------------------------------- parts of a turn

    def _asked(self, request: Request) -> tuple[str, str] | None:
        """The label and joined text, when this message answers a question a playbook asked last turn."""
        if len(request.history) < 2 or not self._questions:
            return None
        last, before = request.history[-1], request.history[-2]
        label = self._questions.get(str(last.get("content") or ""))
        if label is None or last.get("role") != "assistant" or before.get("role") != "user":
            return None
        return label, f"{before.get('content') or ''}\n{request.text}"

    def _agent(self, name: str) -> AgentSpec:
        """The sub-agent's ceiling; a route without one may do nothing."""
        return self._agents.get(name) or _NOBODY

    def _run(self, request: Request, routes: tuple[Route, ...], trace_id: str) -> Run:
        """The run of steps that name no sub-agent of their own: under the first route's ceiling."""
        spec = self._agent(routes[0].agent)
        seconds = max(self._agent(route.agent).max_seconds for route in routes)
        # The plan must end before the request does: what is cut off from outside has no results to tell.
        seconds = min(seconds, 0.9 * self._workspace.project.settings.request_timeout_s)
        said = [str(message.get("content") or "") for message in request.history if message.get("role") == "user"]
        return Run(
            request.id,
            request.session,
            request.principal,
            spec,
            self._workspace.clock.now() + seconds,
            trace_id,
            "\n".join([*said, request.text]),
            self._history_labels(request),
        )

    def _history_labels(self, request: Request) -> Labels:
        """Of what a caller brings along and this service did not say: nobody knows what that was derived from."""
        # What was answered in a named conversation is on record with it; results of tools no caller ever got from here.
        ours = ("user", "system", "developer", *(("assistant",) if request.known else ()))
        others = [message for message in request.history if message.get("role") not in ours]
        asked = all(str(message.get("content") or "") in self._questions for message in others)
        return Labels("trusted" if asked else "untrusted", "public")

    def _parsed(self, stored: Mapping[str, Any]) -> Plan:
        if stored["handoff"]:
            return Plan((), "", stored["text"], stored["source"], stored["handoff"])
        plan = parse(stored["text"], self._workspace.specs, stored["source"])
        return replace(plan, steps=tuple(replace(step, agent=stored["agents"].get(step.id, "")) for step in plan.steps))

    def _attributes(self, request: Request) -> dict[str, Any]:
        workspace, who = self._workspace, request.principal
        return {
            names.AGENT: workspace.project.settings.service,
            names.CONVERSATION: request.session,
            names.INPUT_MESSAGES: [*request.history, {"role": "user", "content": request.text}],
            names.TENANT: who.tenant,
            names.USER: workspace.redactor.pseudonym("USER", who.user, who.tenant),
            names.REQUEST: request.id,
            names.POLICY_DIGEST: workspace.policy.digest,
            names.PROJECT_DIGEST: workspace.project.digest,
        }

    def _outputs(self, answer: Answer, turn: Mapping[str, Any], failure: str) -> dict[str, Any]:
        used = sorted({result.tool for result in answer.results})
        return {
            names.OUTPUT_MESSAGES: [{"role": "assistant", "content": answer.text}],
            names.TOOL_DEFINITIONS: [self._workspace.specs[name].openai() for name in used],
            names.ROUTES: turn.get("routes", []),
            names.PLAN: answer.plan,
            names.STATUS: answer.status,
            names.ERROR: failure or None,
            names.HANDOFF: turn.get("plan", {}).get("handoff") or None,
        }


class RouterShelf:
    """Routers by artifact digest; the two newest stay loaded (stable and candidate)."""

    def __init__(self, workspace: Workspace, name: str = "intent") -> None:
        self._workspace, self._name = workspace, name
        self._loaded: dict[str, Router] = {}

    def __call__(self, digest: str) -> Router:
        if digest not in self._loaded:
            while len(self._loaded) > 1:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[digest] = load_router(self._workspace, digest, self._name)
        return self._loaded[digest]


def load_router(workspace: Workspace, digest: str, name: str = "intent") -> Router:
    """The router stored under `digest`, with its labels' agents from the project.

    Raises:
        RouteError: the artifact is no router.
    """
    project, made = workspace.project, workspace.artifacts.manifest(digest)
    if "router" not in made:
        raise RouteError(
            f"artifact {digest[:19]} is no router (stage {made.get('stage', 'unknown')!r}): name a router's digest"
        )
    definition = None if made["router"] == OWN_LABELS else project.router(name)
    return TextRouter.load(workspace.artifacts.path(digest), definition, project.settings, digest)


def planner(workspace: Workspace) -> tuple[Planner, dict[str, str]]:
    """The project's playbooks, backed by a model when one is configured; and the questions playbooks ask."""
    definition = workspace.project.router("planner")
    module = projects.module(workspace.project.root, "routers.planner.playbooks")
    playbooks = Playbooks(definition, module.extract)
    model = workspace.project.settings.planner_model
    meter = partial(_meter, workspace)
    fallback = ModelPlanner(model, tracing=workspace.tracing, meter=meter) if model else None
    stopped = partial(_stopped, workspace)
    return (WithFallback(playbooks, fallback, stopped) if fallback else playbooks), playbooks.questions()


async def _stopped(workspace: Workspace, request: Request, routes: tuple[Route, ...]) -> bool:
    """Whether the kill switch stops one of the agents that a request goes to, its user or its tenant."""
    for name in {route.agent for route in routes}:
        agent = workspace.project.agents.get(name) or _NOBODY
        if await workspace.kill.stopped(Run(request.id, request.session, request.principal, agent, 0.0)):
            return True
    return False


def _meter(workspace: Workspace, request: Request, routes: tuple[Route, ...]) -> TokenMeter:
    """Of what planning a request may use: the tokens of its first route's agent, and of the user's and tenant's day."""
    agent = workspace.project.agents.get(routes[0].agent if routes else "") or _NOBODY
    deadline = workspace.clock.now() + workspace.project.settings.request_timeout_s
    run = Run(request.id, request.session, request.principal, agent, deadline)
    return TokenMeter(workspace.budgets, run)


@asynccontextmanager
async def open_runtime(workspace: Workspace, router_name: str = "intent") -> AsyncIterator[Runtime]:
    """A runtime on the workspace's real parts. The router in service must be registered (`improve.ensure_router`)."""
    parts = workspace
    if any(tool.spec.isolation for tool in parts.project.tools.values()):
        await asyncio.to_thread(detect)  # it is tried out with processes, once: not while the first call waits
    servers = _servers(parts)
    gateway = ToolGateway(
        servers.bound(parts.project.tools) if servers else parts.project.tools,
        parts.policy,
        parts.audit,
        parts.approvals,
        parts.budgets,
        parts.readings,
        parts.effects,
        parts.cache,
        parts.world,
        parts.clock,
        parts.tracing,
        parts.redactor,
        kill=parts.kill,
        decisions=parts.decisions,
        workers=parts.workers,
    )
    planned, questions = planner(parts)

    def assignment(request: Request) -> Assignment:
        stable = parts.registry.current(router_name)
        if not stable:
            raise ReleaseError(
                f"router {router_name!r} has no version in service: run `agentops train` or `agentops demo`"
            )
        return assign(parts.registry.release(router_name), stable, request.session)

    try:
        async with checkpointer(parts.home) as saver:
            yield Runtime(parts, gateway, planned, RouterShelf(parts, router_name), assignment, saver, questions)
    finally:
        if servers:
            await servers.close()
        parts.workers.close()
        await parts.cache.close()


def _servers(parts: Workspace) -> "Servers | None":
    """The MCP servers behind the project's packs, none of them started; None when no pack has one.

    Raises:
        MissingExtra: a pack has one, and the library is not installed.
        PolicyError: policies/secrets.toml has problems.
    """
    if not any("mcp" in pack.settings for pack in parts.project.packs):
        return None
    require("mcp", "mcp")
    from agentops.act.mcp.client import Servers
    from agentops.act.mcp.states import States
    from agentops.act.sandbox.egress import Egress

    egress = Egress(private=parts.project.settings.private_networks)
    return Servers(parts.project.root, parts.secrets, egress, States(parts.state, parts.audit).changed)


def new_request(
    text: str, principal: Any, session: str = "", history: tuple[Message, ...] = (), id: str = ""
) -> Request:
    """A Request with fresh ids where none are given; without a session, it is a conversation of its own."""
    return Request(
        id or uuid.uuid4().hex, text, principal, session or id or uuid.uuid4().hex, history, known=bool(session)
    )
