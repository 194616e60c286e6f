"""A small desk with real policies, state, audit and cache, and tools that misbehave on demand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from agentops.act import CacheRule, Context, Labels, ToolGateway, tool
from agentops.audit import MemoryAudit
from agentops.cache import Cache, MemoryCache
from agentops.errors import ToolError
from agentops.graph import Clock, RealClock, VirtualClock
from agentops.policy import Approvals, Budgets, DailyLimits, Effects, KillSwitch, Limits, PolicySet, Readings
from agentops.redact import Redactor
from agentops.store import open_state
from agentops.types import AgentSpec, Json, Principal, Run, Tool, ToolCall, ToolResult

POLICIES = """
@id("within-scopes")
permit (principal, action, resource)
when { !resource.scopes.isEmpty() && principal.scopes.containsAll(resource.scopes) };

@id("calls-ceiling")
forbid (principal, action, resource)
when { context.g.calls_used > principal.max_calls };

@id("large")
@advice("approval:finance")
@reason("payments above 100.00 need finance")
forbid (principal, action == Action::"pay", resource)
when { context.args.cents > 10000 };

@id("after-untrusted")
@advice("approval:finance")
@reason("outside content was read before")
forbid (principal, action in Action::"money", resource)
when { context.g.untrusted_seen };
"""


@dataclass
class World:
    """What the tools touch: counts, a hook that runs inside a call, stored effects."""

    counts: dict[str, int] = field(default_factory=dict)
    inside: Callable[[Context], Any] | None = None
    status: str = "open"
    paid: list[tuple[str, int, str]] = field(default_factory=list)

    async def enter(self, name: str, ctx: Context, wait: float = 0.0) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.inside is not None:
            self.inside(ctx)
        if wait:
            await ctx.clock.sleep(wait)


@tool(effect="read", scopes={"r"}, timeout_s=1.0, cache=CacheRule(60.0, ("order:{order_id}",)))
async def look(ctx: Context, order_id: str, wait: float = 0.0) -> dict:
    """Look at an order."""
    status = ctx.world.status
    await ctx.world.enter("look", ctx, wait)
    return {"id": order_id, "status": status, "items": [{"sku": "A"}]}


@tool(effect="read", scopes={"r"}, timeout_s=1.0, cache=CacheRule(60.0, ("price:{sku}",), shared=True))
async def price(ctx: Context, sku: str) -> dict:
    """Look at a price."""
    await ctx.world.enter("price", ctx)
    return {"sku": sku, "cents": 5}


@tool(effect="read", scopes={"r"}, timeout_s=1000.0)
async def work(ctx: Context, seconds: float = 0.0, after: list = []) -> dict:  # noqa: B006
    """Take some time."""
    await ctx.world.enter("work", ctx, seconds)
    return {"seconds": seconds}


@tool(effect="read", scopes={"r"}, timeout_s=1.0, labels=Labels("untrusted"))
async def article(ctx: Context, id: str) -> str:
    """Read what outsiders wrote."""
    await ctx.world.enter("article", ctx)
    return f"article {id}"


@tool(effect="write", scopes={"w"}, timeout_s=1.0, invalidates=("order:{order_id}",))
async def cancel(ctx: Context, order_id: str, wait: float = 0.0) -> dict:
    """Cancel an order."""
    await ctx.world.enter("cancel", ctx, wait)
    if order_id == "gone":
        raise ToolError("order gone does not exist, ask ann@example.com")
    ctx.world.status = "cancelled"
    return {"id": order_id, "status": "cancelled"}


@tool(effect="money", scopes={"w"}, timeout_s=1.0, amount="cents")
async def pay(ctx: Context, order_id: str, cents: int, wait: float = 0.0) -> dict:
    """Pay back."""
    await ctx.world.enter("pay", ctx, wait)
    if order_id == "gone":
        raise ToolError("nothing to pay back")
    ctx.world.paid.append((order_id, cents, ctx.idempotency_key))
    return {"cents": cents}


@tool(effect="read", scopes={"r"}, timeout_s=1.0)
async def broken(ctx: Context, kind: Literal["error", "lost", "exit", "cancel", "deaf", "object", "big"]) -> Json:
    """Misbehave."""
    await ctx.world.enter(kind, ctx)
    if kind == "error":
        raise ValueError("password=hunter2secret of ann@example.com")
    if kind == "lost":
        raise ConnectionError("10.0.0.7 refused")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "cancel":
        raise asyncio.CancelledError
    if kind == "object":
        return object()
    if kind == "big":
        return "x" * 300_000
    try:
        await ctx.clock.sleep(3600)
    except asyncio.CancelledError:
        await ctx.clock.sleep(3600)  # deaf once: the end of the event loop cancels a second time
    return None


TOOLS: dict[str, Tool] = {
    one.spec.name: Tool(replace(one.spec, pack="desk"), one.function)
    for one in (look, price, work, article, cancel, pay, broken)
}
AGENT = AgentSpec("desk", frozenset(TOOLS), frozenset({"r", "w"}), max_calls=1000, max_money_cents=1_000_000)
ANN = Principal("acme", "ann", frozenset({"r", "w"}), frozenset({"customer"}))
FINANCE = Principal("acme", "fred", roles=frozenset({"finance"}))


class Desk:
    """A gateway on real parts; `restart` opens them again on the same state."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        audit: Any = None,
        cache: Cache | None = None,
        tracing: Any = None,
        redis_url: str | None = None,
    ) -> None:
        self.calls = 0
        self.folder, self.clock, self.world, self._redis_url = folder, clock, World(), redis_url
        policies = folder / "policies"
        policies.mkdir(exist_ok=True)
        (policies / "desk.cedar").write_text(POLICIES)
        self.specs = {name: one.spec for name, one in TOOLS.items()}
        self.policy = PolicySet.load(policies, self.specs, {"desk": AGENT})
        self.audit = audit if audit is not None else MemoryAudit()
        self.cache: Cache = cache or MemoryCache(now=clock.now)
        self._tracing = tracing
        self.redactor = Redactor(b"k" * 32)
        self.restart()

    def restart(self) -> None:
        if hasattr(self, "state"):
            self.state.close()
        self.state = open_state(self.folder, self._redis_url)
        self.kill = KillSwitch(self.state, self.clock)
        self.approvals = Approvals(self.state, self.clock)
        self.budgets = Budgets(self.state, self.clock, Limits(DailyLimits(calls=100_000, money_cents=1_000_000)))
        self.gateway = ToolGateway(
            TOOLS,
            self.policy,
            self.audit,
            self.approvals,
            self.budgets,
            Readings(self.state, self.clock),
            Effects(self.state, self.clock),
            self.cache,
            self.world,
            self.clock,
            self._tracing,
            self.redactor,
            kill=self.kill,
        )

    def run(self, principal: Principal = ANN, agent: AgentSpec = AGENT, seconds: float = 10_000.0, **given: str) -> Run:
        ids = {"id": "run-1", "session": "s-1", **given}
        return Run(principal=principal, agent=agent, deadline=self.clock.now() + seconds, **ids)

    async def call(self, tool: str, run: Run | None = None, key: str = "", **arguments: Json) -> ToolResult:
        self.calls += 1
        call = ToolCall(f"c-{self.calls}", tool, arguments, idempotency_key=key)
        return await self.gateway.call(run or self.run(), call)

    def go(self, work: Any) -> Any:
        """Run on the desk's clock."""
        return asyncio.run(self.clock.drive(work) if isinstance(self.clock, VirtualClock) else work)

    def records(self, kind: str = "") -> list[dict]:
        return [one for one in self.audit.records if kind in one["type"]]


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path, VirtualClock(1_000.0))
    yield made
    made.state.close()


@pytest.fixture
def real_desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path, RealClock())
    yield made
    made.state.close()


@pytest.fixture
def make_desk(tmp_path: Path) -> Any:
    made: list[Desk] = []

    def make(*args: Any, **given: Any) -> Desk:
        made.append(Desk(tmp_path, *args, **given))
        return made[-1]

    yield make
    for one in made:
        one.state.close()


@pytest.fixture
def people() -> Any:
    """Who acts: ann the customer, fred of finance."""
    return ANN, FINANCE
