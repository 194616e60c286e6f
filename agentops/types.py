"""The nouns: frozen values that cross the boundaries between stages.

Invariant: nothing here imports another module of the engine, does I/O or holds behaviour beyond small derived values.
Collections are tuples; mappings are never mutated after construction. Times are seconds since the epoch (UTC) as
float, durations seconds, money integer minor units (cents), probabilities in [0, 1].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Json = Any  # None | bool | int | float | str | list[Json] | dict[str, Json]
Message = Mapping[str, Any]  # OpenAI chat format: role, content, tool_calls, tool_call_id

Effect = Literal["read", "write", "money", "egress", "exec"]
CallStatus = Literal["ok", "error", "timeout", "denied", "pending", "skipped"]
Level = Literal["none", "landlock", "bubblewrap"]  # how a tool's process is isolated, weakest first
Source = Literal["request", "trusted", "derived", "untrusted"]  # where an argument's value comes from, best first
OUT_OF_SCOPE = "out_of_scope"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a project: where, what, and what to do."""

    path: str  # relative to the project root
    line: int  # 1-based; 0 when the whole file is meant
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


# ------------------------------------------------------------------ identity and governance


@dataclass(frozen=True, slots=True)
class Labels:
    """Information-flow labels. They join: untrusted wins, the most confidential wins."""

    integrity: Literal["trusted", "untrusted"] = "trusted"
    confidentiality: Literal["public", "internal", "personal", "secret"] = "internal"

    def join(self, other: "Labels") -> "Labels":
        order = ("public", "internal", "personal", "secret")
        return Labels(
            integrity="untrusted" if "untrusted" in (self.integrity, other.integrity) else "trusted",
            confidentiality=max(self.confidentiality, other.confidentiality, key=order.index),
        )


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. Rights of a call are scopes ∩ the agent's ceiling ∩ what the tool needs."""

    tenant: str
    user: str
    scopes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    actors: tuple[str, ...] = ()  # services acting on the user's behalf, outermost first


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """A (sub-)agent's ceiling: what it may do at most, whoever asks."""

    name: str
    tools: frozenset[str]
    scopes: frozenset[str]
    max_calls: int = 20
    max_money_cents: int = 0
    max_seconds: float = 30.0
    description: str = ""
    max_tokens: int = 200_000  # of language models, read and written, in one run


@dataclass(frozen=True, slots=True)
class Run:
    """One request being served: the Cedar principal. `scopes` is already the intersection of user and agent."""

    id: str
    session: str
    principal: Principal
    agent: AgentSpec
    deadline: float  # clock time (Clock.now()) after which no call starts
    trace_id: str = ""
    request: str = field(default="", repr=False)  # the user's own words: what they name, they asked for
    labels: Labels = Labels("trusted", "public")  # of what came along with the request

    @property
    def scopes(self) -> frozenset[str]:
        return self.principal.scopes & self.agent.scopes


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says of one call. `approve` suspends the call until a person decides."""

    effect: Literal["allow", "deny", "approve"]
    reason: str  # one sentence, safe to show
    policies: tuple[str, ...] = ()  # ids of the policies that determined it; ("default-deny",) when none did
    policy_digest: str = ""
    approver: str = ""  # role that must approve, when effect == "approve"


# ------------------------------------------------------------------ tools


@dataclass(frozen=True, slots=True)
class CacheRule:
    """How long a read's result may be reused, and its tags (templates over arguments, `order:{order_id}`)."""

    ttl_s: float
    tags: tuple[str, ...] = ()
    shared: bool = False  # the result is the same for every user of a tenant with the same rights


@dataclass(frozen=True, slots=True)
class Isolation:
    """That a tool runs in a process of its own without network or environment, and what a broker hands into it."""

    least: Level = "landlock"  # the weakest isolation under which it may run
    hosts: tuple[str, ...] = ()  # "api.example.com:443": where the broker connects to for it
    secrets: tuple[str, ...] = ()  # names of the secrets it may ask the broker for
    files: tuple[str, ...] = ()  # folders it may read, relative to the project's root
    memory_mb: int = 512
    processes: int = 16
    fresh: bool = False  # a new process for every call: for code and files of others


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool's contract. `digest` covers every other field and the function's source."""

    name: str  # unique in the project, [a-z][a-z0-9_]{0,63}
    pack: str
    description: str
    parameters: Mapping[str, Any]  # JSON Schema of type object
    effect: Effect
    scopes: frozenset[str]
    timeout_s: float
    cache: CacheRule | None = None
    invalidates: tuple[str, ...] = ()  # tag templates a successful call makes stale
    idempotent: bool = False  # safe to retry with the same idempotency key
    amount_arg: str = ""  # effect "money": the argument that carries minor units
    labels: Labels = Labels()  # of every result
    reads: tuple[str, ...] = ()  # tag templates of stored values a result may hold: their labels come back with it
    declassifies: bool = False  # a result has `labels` alone, whatever the arguments had: every use is recorded
    isolation: Isolation | None = None  # None: it runs in the gateway's process, on the project's world
    digest: str = ""

    def openai(self) -> dict[str, Any]:
        """This tool as an OpenAI function-calling schema."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True, slots=True)
class Tool:
    """A spec and the function behind it. Only `agentops.act` may call `function`."""

    spec: ToolSpec
    function: Callable[..., Any]  # async def f(ctx, **arguments) -> Json

    @property
    def defaults(self) -> dict[str, Json]:
        """Default values of the arguments that have one."""
        properties = self.spec.parameters.get("properties", {})
        return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run a tool, before any decision."""

    id: str
    tool: str
    arguments: Mapping[str, Json]
    labels: Labels = Labels()  # joined over everything the arguments were derived from
    idempotency_key: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)  # by argument, where the caller knows it


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a call."""

    call_id: str
    tool: str
    status: CallStatus
    value: Json = None
    error: str = ""  # safe to show to model and customer
    cached: bool = False
    started_at: float = 0.0
    ended_at: float = 0.0
    labels: Labels = Labels()
    decision: Decision | None = None
    approval_id: str = ""  # status "pending": what a person must decide


# ------------------------------------------------------------------ online: request -> route -> plan -> answer


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a request. Bytes stay out of traces; `sha256` identifies them."""

    name: str
    media_type: str
    data: bytes = field(repr=False)
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One turn of a conversation."""

    id: str
    text: str
    principal: Principal
    session: str  # conversation id; the unit of assignment and of canary statistics
    history: tuple[Message, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    known: bool = True  # the caller named the session: what it has read is on record


@dataclass(frozen=True, slots=True)
class Route:
    """A router's answer for one request, or for one clause of it.

    `stage` is who answered ("rules", "encoder", "causal", "planner"); `confidence` is calibrated.
    `propensity` is the probability with which this label was chosen given the request: router exploration only,
    the traffic split is multiplied in by the runtime.
    """

    label: str  # OUT_OF_SCOPE when nothing fits
    confidence: float
    stage: str
    agent: str = ""
    version: str = ""  # artifact digest of the router
    propensity: float = 1.0
    scores: tuple[tuple[str, float], ...] = ()  # best labels with their probabilities, best first, at most 5
    text: str = ""  # the clause this route is for; "" = the whole request
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ref:
    """A value taken from an earlier step's result: `o.items.0.sku` is Ref("o", ("items", 0, "sku"))."""

    step: str
    path: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of a plan. `arguments` values are Json, a Ref, or lists/dicts holding Refs."""

    id: str
    tool: str
    arguments: Mapping[str, Any]
    after: tuple[str, ...] = ()  # every step it waits for: references plus ordering of effects
    stage: int = 0  # the line it is written on, counted from 0: steps of one stage never wait for each other
    part: int = 0  # steps of different parts neither wait for each other nor fail together
    agent: str = ""  # sub-agent under whose ceiling it runs; "" = the run's own


@dataclass(frozen=True, slots=True)
class Plan:
    """A DAG of steps and an answer template with `{step.path}` references."""

    steps: tuple[Step, ...]
    say: str
    text: str = ""  # the plan as written in the plan language
    source: str = ""  # "playbook:<intent>", "model:<name>"
    handoff: str = ""  # not empty: a person takes over, and this is the summary for them


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which release serves a session, and with what probability it was chosen."""

    arm: Literal["stable", "canary", "hold_back"]
    version: str  # artifact digest of the router
    weight: float  # share of sessions that see the canary
    salt: str
    propensity: float


# ------------------------------------------------------------------ records of what happened


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One tool call as it happened (or was replayed, or imported)."""

    call_id: str
    tool: str
    arguments: Mapping[str, Json]
    status: CallStatus
    result: Json = None
    error: str = ""
    cached: bool = False
    started_at: float = 0.0
    ended_at: float = 0.0
    policies: tuple[str, ...] = ()
    span_id: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a language model as it happened."""

    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""
    span_id: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a person said of an answer, keyed by trace. Append-only; the latest of a user wins."""

    trace_id: str
    score: Literal[-1, 0, 1]  # thumbs; 0 = only a comment or a correction
    at: float
    user: str = ""
    comment: str = ""
    corrected_answer: str = ""
    corrected_labels: tuple[str, ...] = ()  # the right routes, when a person named them


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found. `success` None: it could not tell (infrastructure, missing data), never a 0."""

    trace_id: str
    verifier: str
    success: bool | None
    score: float | None = None  # in [0, 1] where the verifier grades
    evidence: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success of an episode, defined once per project and used by every stage."""

    success: Literal[0, 1] | None
    source: str = "unknown"  # "verdict:<name>", "feedback", "unknown"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, online, simulated or imported: everything downstream of tracing reads only this."""

    trace_id: str
    service: str
    started_at: float
    ended_at: float
    messages: tuple[Message, ...]  # whole conversation incl. tool calls and results, arguments as objects
    tools: tuple[Mapping[str, Any], ...] = ()  # OpenAI tool schemas offered
    steps: tuple[StepRecord, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    routes: tuple[Route, ...] = ()
    plan: str = ""  # plan language
    answer: str = ""
    status: Literal["ok", "error"] = "ok"
    error: str = ""
    session: str = ""
    tenant: str = ""
    user: str = ""  # pseudonym
    agent: str = ""
    assignment: Assignment | None = None
    policy_digest: str = ""
    project_digest: str = ""
    feedback: tuple[Feedback, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    outcome: Outcome = Outcome(None)
    source: str = "live"  # "live", "simulated", "import:<dialect>"
    timed: bool = True  # False: the record has no real times (chat logs): no latency label
    unknown: Mapping[str, Json] = field(default_factory=dict)  # what was recorded but not understood

    @property
    def request(self) -> str:
        """Text of the first user message."""
        for message in self.messages:
            if message.get("role") == "user":
                return str(message.get("content") or "")
        return ""


# ------------------------------------------------------------------ offline: data, reports, releases


@dataclass(frozen=True, slots=True)
class Task:
    """A request whose success is decidable: what was asked, the right routes, a right plan, the right end state."""

    id: str
    text: str
    labels: tuple[str, ...]  # gold routes in order of mention; (OUT_OF_SCOPE,) when none fits
    user: str
    plan: str = ""  # gold plan in the plan language; "" for out-of-scope
    changes: tuple[Mapping[str, Json], ...] = ()  # expected end state as a difference from the seeded world
    answer_facts: tuple[str, ...] = ()  # strings the answer must contain
    template: str = ""  # wording family; splits never share one
    split: Literal["train", "frozen", "sealed", "seed"] = "train"
    must_pass: bool = False


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows on disk and the manifest that explains each."""

    kind: Literal["sft", "dpo", "grpo", "distill", "router"]
    path: Path
    rows: int
    digest: str  # content hash of the rows
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Report:
    """What an evaluation measured. `passed` None: inconclusive, no gate may read it as a pass."""

    suite: str
    suite_digest: str
    candidate: str  # artifact digest
    baseline: str = ""
    metrics: Mapping[str, Interval] = field(default_factory=dict)
    must_pass_failures: tuple[str, ...] = ()  # task ids
    passed: bool | None = None
    reasons: tuple[str, ...] = ()  # one sentence per gate rule
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Release:
    """A candidate on its way to all traffic."""

    id: str
    router: str  # router name, for example "intent"
    stable: str  # artifact digest that serves now
    candidate: str
    stage: Literal["shadow", "canary", "full", "rolled_back", "held"]
    weight: float
    salt: str
    started_at: float
    history: tuple[Mapping[str, Any], ...] = ()  # every decision with the figures that led to it
