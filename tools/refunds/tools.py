"""Refund tools. The rules of the shop are in `standing`; limits and approvals are the policies' business.

Invariant: what was refunded of an order never exceeds what was paid for it, also with concurrent requests: the check
and the insert are one transaction.
"""

import sqlite3
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from agentops.act import CacheRule, Context, Labels, tool
from agentops.errors import ToolError

from ..access import OrderId, day, euros, owned_order
from ..seeding import RETURN_DAYS
from ..world import TODAY, World

PERSONAL = Labels("trusted", "personal")
Reason = Literal["changed_mind", "damaged", "not_as_described", "overcharged", "not_received", "other"]
Reference = Annotated[str, Field(pattern=r"^(RF|SO)-\d{5}$", description="refund number RF-… or its order, SO-…")]
Amount = Annotated[int, Field(ge=1, le=1_000_000, description="cents")]


@dataclass(frozen=True, slots=True)
class Standing:
    """What may still be refunded of an order, and the sentence that says why not more."""

    refundable_cents: int
    explanation: str
    window_ends: date | None


@tool(
    effect="read",
    scopes={"refunds:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=30, tags=("order:{order_id}",)),
    labels=PERSONAL,
)
async def check_refund(ctx: Context, order_id: OrderId) -> dict[str, Any]:
    """How much of an order can be refunded, until when, and what was refunded before. Refuses when it is nothing."""
    world: World = ctx.world
    await world.latency("check_refund", {"order_id": order_id}, ctx.clock)
    with world.read() as db:
        order = owned_order(db, ctx.run.principal, order_id)
        found = standing(db, order)
        refunds = [_shown(row) for row in _refunds(db, order_id)]
    if not found.refundable_cents:  # a plan that would refund stops here, with the reason as its answer
        raise ToolError(found.explanation)
    return {
        "order_id": order_id,
        "refundable_cents": found.refundable_cents,
        "amount": euros(found.refundable_cents),
        "window_ends_on": day(found.window_ends.isoformat()) if found.window_ends else "",
        "refunds": refunds,
        "summary": found.explanation,
    }


@tool(effect="read", scopes={"refunds:read"}, timeout_s=5.0, cache=CacheRule(30, ("refunds",)), labels=PERSONAL)
async def get_refund(ctx: Context, reference: Reference) -> dict[str, Any]:
    """State of a refund by its number (RF-…), or of the latest refund of an order (SO-…)."""
    world: World = ctx.world
    await world.latency("get_refund", {"reference": reference}, ctx.clock)
    with world.read() as db:
        if reference.startswith("SO-"):
            owned_order(db, ctx.run.principal, reference)
            rows = _refunds(db, reference)
            if not rows:
                raise ToolError(f"There is no refund for order {reference} yet.")
            row = rows[-1]
        else:
            row = db.execute("SELECT * FROM refunds WHERE refund_id = ?", (reference,)).fetchone()
            try:
                owned_order(db, ctx.run.principal, row["order_id"] if row is not None else "")
            except ToolError:
                raise ToolError(f"I cannot find refund {reference} in your account.") from None
    return _shown(row)


@tool(
    effect="money",
    scopes={"refunds:read", "refunds:write"},
    timeout_s=10.0,
    amount="amount_cents",
    invalidates=("order:{order_id}", "orders", "refunds"),
    idempotent=True,
    labels=PERSONAL,
)
async def create_refund(ctx: Context, order_id: OrderId, amount_cents: Amount, reason: Reason) -> dict[str, Any]:
    """Pay money back to the payment method of an order. At most what check_refund calls refundable."""
    world: World = ctx.world
    given = {"order_id": order_id, "amount_cents": amount_cents, "reason": reason}
    await world.latency("create_refund", given, ctx.clock)

    def work(db: sqlite3.Connection) -> dict[str, Any]:
        order = owned_order(db, ctx.run.principal, order_id)
        found = standing(db, order)
        if not found.refundable_cents:
            raise ToolError(found.explanation)
        if amount_cents > found.refundable_cents:
            raise ToolError(
                f"At most {euros(found.refundable_cents)} of order {order_id} can be refunded, "
                f"not {euros(amount_cents)}."
            )
        last = db.execute("SELECT max(refund_id) FROM refunds").fetchone()[0] or "RF-70000"
        refund_id = f"RF-{int(last[3:]) + 1}"
        db.execute(
            "INSERT INTO refunds VALUES (?, ?, ?, ?, 'approved', ?, NULL)",
            (refund_id, order_id, amount_cents, reason, TODAY.isoformat()),
        )
        return {
            "refund_id": refund_id,
            "order_id": order_id,
            "amount_cents": amount_cents,
            "amount": euros(amount_cents),
            "status": "approved",
            "summary": f"{euros(amount_cents)} for order {order_id} will be paid back to your {order['payment_method']}"
            f" within 5 working days (refund {refund_id}).",
        }

    return await world.once(ctx.idempotency_key, ctx.run.principal.user, "create_refund", given, work)


def standing(db: sqlite3.Connection, order: sqlite3.Row) -> Standing:
    """The shop's refund rules for one order row: delivered, within 30 days, not refunded already."""
    order_id = order["order_id"]
    if order["status"] == "cancelled":
        return Standing(0, f"Order {order_id} was cancelled; its payment is released without a refund.", None)
    if order["status"] != "delivered":
        return Standing(0, f"Order {order_id} has not been delivered yet, so nothing can be refunded now.", None)
    delivered = db.execute("SELECT delivered_on FROM shipments WHERE order_id = ?", (order_id,)).fetchone()[0]
    ends = date.fromisoformat(delivered) + timedelta(days=RETURN_DAYS)
    if ends < TODAY:
        return Standing(0, f"The {RETURN_DAYS} days for a return of order {order_id} ended on {day(str(ends))}.", ends)
    given = db.execute(
        "SELECT coalesce(sum(amount_cents), 0) FROM refunds WHERE order_id = ? AND status != 'rejected'", (order_id,)
    ).fetchone()[0]
    left = max(0, order["paid_cents"] - given)
    if not left:
        return Standing(0, f"Order {order_id} has been refunded in full already.", ends)
    return Standing(left, f"{euros(left)} of order {order_id} can be refunded until {day(str(ends))}.", ends)


def _refunds(db: sqlite3.Connection, order_id: str) -> list[sqlite3.Row]:
    return db.execute("SELECT * FROM refunds WHERE order_id = ? ORDER BY created_on, refund_id", (order_id,)).fetchall()


def _shown(row: sqlite3.Row) -> dict[str, Any]:
    state = {
        "approved": "is approved and will be paid within 5 working days",
        "paid": f"was paid on {day(row['paid_on'])}",
        "rejected": "was rejected",
    }[row["status"]]
    amount = euros(row["amount_cents"])
    return {
        "refund_id": row["refund_id"],
        "order_id": row["order_id"],
        "amount": amount,
        "amount_cents": row["amount_cents"],
        "reason": row["reason"],
        "status": row["status"],
        "summary": f"Refund {row['refund_id']} of {amount} for order {row['order_id']} {state}.",
    }
