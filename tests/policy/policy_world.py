"""A small project of its own: six tools, two agents, their policies. Plain values the tests of this folder share."""

from agentops.act.tool import Context, tool
from agentops.types import AgentSpec, Isolation, Labels, Principal, Run, ToolCall, ToolSpec


@tool(effect="read", scopes={"orders:read"}, timeout_s=1, pack="orders", labels=Labels("trusted", "personal"))
async def get_order(ctx: Context, order_id: str, verbose: bool = False) -> dict:
    """Read an order."""
    return {}


@tool(effect="write", scopes={"orders:write"}, timeout_s=1, pack="orders", idempotent=True)
async def cancel_order(ctx: Context, order_id: str, note: str | None = None) -> dict:
    """Cancel an order."""
    return {}


@tool(effect="money", scopes={"refunds:write"}, timeout_s=1, pack="refunds", amount="amount_cents", idempotent=True)
async def create_refund(ctx: Context, order_id: str, amount_cents: int, tags: list[str] | None = None) -> dict:
    """Pay money back."""
    return {}


@tool(effect="egress", scopes={"documents:send"}, timeout_s=1, pack="documents")
async def send_document(ctx: Context, document_id: str, email: str) -> dict:
    """Mail a copy."""
    return {}


@tool(effect="exec", scopes={"code:run"}, timeout_s=1, pack="code", isolation=Isolation(fresh=True))
async def run_code(ctx: Context, code: str, share: float = 0.5) -> dict:
    """Run code."""
    return {}


@tool(effect="write", scopes=set(), timeout_s=1, pack="orders")
async def forgotten(ctx: Context) -> dict:
    """A write whose author forgot the scopes."""
    return {}


TOOLS = {
    one.spec.name: one.spec for one in (get_order, cancel_order, create_refund, send_document, run_code, forgotten)
}
SCOPES = frozenset({"orders:read", "orders:write", "refunds:write", "documents:send", "code:run"})
AGENTS = {
    "billing": AgentSpec("billing", frozenset(TOOLS), SCOPES, max_calls=10, max_money_cents=50_000),
    "help": AgentSpec("help", frozenset({"get_order"}), frozenset({"orders:read"}), max_calls=3),
}
CEDAR = """
@id("read") permit (principal, action in Action::"read", resource)
when { principal.scopes.containsAll(resource.scopes) };

@id("effects") permit (principal, action in [Action::"write", Action::"money", Action::"egress"], resource)
when { !resource.scopes.isEmpty() && principal.scopes.containsAll(resource.scopes) };

@id("ceiling") @reason("the agent may not use this tool")
forbid (principal, action, resource) unless { principal.tools.contains(resource.name) };

@id("calls") forbid (principal, action, resource) when { context.g.calls_used > principal.max_calls };

// A comment; with a semicolon and a "quote
@id("large") @advice("approval:finance") @reason("large refunds need finance; always")
forbid (principal, action == Action::"create_refund", resource) when { context.args.amount_cents > 10000 };

@id("outside") @advice("approval:staff")
forbid (principal, action in [Action::"money", Action::"egress"], resource)
when { context.g.untrusted_seen || context.g.args_untrusted };

@id("never") forbid (principal, action == Action::"create_refund", resource) when { context.args.amount_cents > 40000 };
"""
IDENTITIES = """
[defaults]
roles = ["customer"]
[roles.customer]
scopes = ["orders:read", "orders:write", "refunds:write", "documents:send"]
[roles.staff]
scopes = ["orders:read"]
approver = true
[roles.finance]
scopes = ["orders:read"]
approver = true
"""
CALM = {"calls_used": 1, "money_used_cents": 0, "untrusted_seen": False}


def who(user: str = "C-1", *, roles: tuple[str, ...] = ("customer",), tenant: str = "default") -> Principal:
    return Principal(tenant, user, SCOPES, frozenset(roles))


def run_of(
    agent: str = "billing", user: str = "C-1", *, tenant: str = "default", id: str = "run-1", deadline: float = 1e12
) -> Run:
    return Run(id, "session-1", who(user, tenant=tenant), AGENTS[agent], deadline, "trace-1")


def call_of(name: str, *, key: str = "key-1", labels: Labels = Labels(), **arguments: object) -> ToolCall:
    return ToolCall("call-1", name, arguments, labels, key)


def spec_of(name: str) -> ToolSpec:
    return TOOLS[name]
