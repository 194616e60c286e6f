"""Reads of orders and parcels. Customers see their own; the rule is in `access.owned_order`."""

import sqlite3
from typing import Annotated, Any

from pydantic import Field

from agentops.act import CacheRule, Context, Labels, tool
from agentops.errors import ToolError

from ..access import OrderId, day, euros, is_staff, owned_order
from ..world import TODAY, World

PERSONAL = Labels("trusted", "personal")


@tool(
    effect="read",
    scopes={"orders:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=60, tags=("order:{order_id}",)),
    labels=PERSONAL,
)
async def get_order(ctx: Context, order_id: OrderId) -> dict[str, Any]:
    """Look up one order: status, products, total, delivery address, the customer's e-mail address."""
    world: World = ctx.world
    await world.latency("get_order", {"order_id": order_id}, ctx.clock)
    with world.read() as db:
        order = owned_order(db, ctx.run.principal, order_id)
        items = [dict(row) for row in _items(db, order_id)]
    return {
        "order_id": order_id,
        "status": order["status"],
        "placed_on": day(order["placed_on"]),
        "total_cents": order["total_cents"],
        "total": euros(order["total_cents"]),
        "payment_method": order["payment_method"],
        "address": order["address"],
        "email": order["email"],
        "items": items,
        "products": ", ".join(f"{item['quantity']} x {item['name']}" for item in items),
    }


@tool(
    effect="read", scopes={"orders:read"}, timeout_s=5.0, cache=CacheRule(ttl_s=30, tags=("orders",)), labels=PERSONAL
)
async def list_orders(
    ctx: Context, limit: Annotated[int, Field(ge=1, le=20)] = 5, customer_id: Annotated[str, Field(max_length=64)] = ""
) -> dict[str, Any]:
    """List the latest orders of the asking customer, newest first. Only staff may name another customer."""
    world: World = ctx.world
    await world.latency("list_orders", {"limit": limit, "customer_id": customer_id}, ctx.clock)
    who = customer_id or ctx.run.principal.user
    if who != ctx.run.principal.user and not is_staff(ctx.run.principal):
        raise ToolError("Only your own orders can be listed.")
    with world.read() as db:
        count = db.execute("SELECT count(*) FROM orders WHERE customer_id = ?", (who,)).fetchone()[0]
        rows = db.execute(
            "SELECT order_id, status, placed_on, total_cents FROM orders WHERE customer_id = ?"
            " ORDER BY placed_on DESC, order_id LIMIT ?",
            (who, limit),
        ).fetchall()
    orders = [
        {
            "order_id": row["order_id"],
            "status": row["status"],
            "placed_on": day(row["placed_on"]),
            "total": euros(row["total_cents"]),
        }
        for row in rows
    ]
    shown = "; ".join(f"{o['order_id']} of {o['placed_on']}, {o['total']}, {o['status']}" for o in orders)
    summary = f"You have {count} order(s). The latest: {shown}." if orders else "You have no orders with us yet."
    return {"count": count, "orders": orders, "summary": summary}


@tool(
    effect="read",
    scopes={"orders:read"},
    timeout_s=8.0,
    cache=CacheRule(ttl_s=60, tags=("order:{order_id}",)),
    labels=PERSONAL,
)
async def track_shipment(ctx: Context, order_id: OrderId) -> dict[str, Any]:
    """Where the parcel of an order is: carrier, tracking number, last place, expected day, whether it is late."""
    world: World = ctx.world
    await world.latency("track_shipment", {"order_id": order_id}, ctx.clock)
    with world.read() as db:
        order = owned_order(db, ctx.run.principal, order_id)
        parcel = db.execute("SELECT * FROM shipments WHERE order_id = ?", (order_id,)).fetchone()
        events = db.execute(
            "SELECT e.at, e.place, e.event FROM shipment_events e JOIN shipments s USING (shipment_id)"
            " WHERE s.order_id = ? ORDER BY nth",
            (order_id,),
        ).fetchall()
    if parcel is None:
        left = (
            "was cancelled and will not be sent" if order["status"] == "cancelled" else "has not left our warehouse yet"
        )
        return {
            "order_id": order_id,
            "state": "not_sent",
            "late": False,
            "summary": f"The parcel {left}.",
            "events": [],
        }
    return _tracked(order_id, parcel, events)


def _tracked(order_id: str, parcel: sqlite3.Row, events: list[sqlite3.Row]) -> dict[str, Any]:
    last = events[-1]
    late = parcel["delivered_on"] is None and parcel["expected_on"] < TODAY.isoformat()
    seen = f"last seen in {last['place']} on {day(last['at'])}"
    if parcel["delivered_on"]:
        state, summary = "delivered", f"The parcel was delivered on {day(parcel['delivered_on'])} in {last['place']}."
    elif late:
        state = "late"
        summary = f"The parcel is late: it was expected on {day(parcel['expected_on'])}, {seen}."
    else:
        state = "travelling"
        summary = f"The parcel is on its way, expected on {day(parcel['expected_on'])}, {seen}."
    return {
        "order_id": order_id,
        "state": state,
        "late": late,
        "carrier": parcel["carrier"],
        "tracking": parcel["tracking"],
        "expected_on": day(parcel["expected_on"]),
        "delivered_on": day(parcel["delivered_on"]),
        "summary": f"{summary} Carrier {parcel['carrier']}, tracking number {parcel['tracking']}.",
        "events": [f"{day(row['at'])}, {row['place']}: {row['event']}" for row in events],
    }


def _items(db: sqlite3.Connection, order_id: str) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT sku, name, quantity, price_cents FROM order_items WHERE order_id = ? ORDER BY line", (order_id,)
    ).fetchall()
