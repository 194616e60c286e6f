"""Writes on orders: idempotent, one transaction each, refused with a sentence the customer may read."""

import re
import sqlite3
from typing import Annotated, Any

from pydantic import Field

from agentops.act import Context, Labels, tool
from agentops.errors import ToolError

from ..access import OrderId, owned_order
from ..world import TODAY, World

PERSONAL = Labels("trusted", "personal")
CHANGES = ("order:{order_id}", "orders")
_ADDRESS = re.compile(r"[^\W\d][^,\n]{1,60} \d{1,4} ?[a-zA-Z]?, \d{5} [^\W\d][^,\n\d]{1,40}")


@tool(
    effect="write",
    scopes={"orders:read", "orders:write"},
    timeout_s=8.0,
    invalidates=CHANGES,
    idempotent=True,
    labels=PERSONAL,
)
async def cancel_order(ctx: Context, order_id: OrderId) -> dict[str, Any]:
    """Cancel an order that has not been shipped yet. The payment is released by the shop."""
    world: World = ctx.world
    await world.latency("cancel_order", {"order_id": order_id}, ctx.clock)

    def work(db: sqlite3.Connection) -> dict[str, Any]:
        order = owned_order(db, ctx.run.principal, order_id)
        if order["status"] == "cancelled":
            raise ToolError(f"Order {order_id} is already cancelled.")
        if order["status"] not in ("processing", "packed"):
            raise ToolError(
                f"Order {order_id} has already been shipped and can no longer be cancelled; you can return it instead."
            )
        db.execute("UPDATE orders SET status = 'cancelled' WHERE order_id = ?", (order_id,))
        _record(db, order_id, "cancelled", "")
        return {
            "order_id": order_id,
            "status": "cancelled",
            "summary": f"Order {order_id} is cancelled; your payment is released within 3 working days.",
        }

    return await world.once(ctx.idempotency_key, ctx.run.principal.user, "cancel_order", {"order_id": order_id}, work)


@tool(
    effect="write",
    scopes={"orders:read", "orders:write"},
    timeout_s=8.0,
    invalidates=CHANGES,
    idempotent=True,
    labels=PERSONAL,
)
async def change_address(
    ctx: Context, order_id: OrderId, address: Annotated[str, Field(min_length=10, max_length=120)]
) -> dict[str, Any]:
    """Change the delivery address of an order that is not shipped, as "Street 12, 12345 Town"."""
    world: World = ctx.world
    given = {"order_id": order_id, "address": address}
    await world.latency("change_address", given, ctx.clock)
    wanted = " ".join(address.split())
    if not _ADDRESS.fullmatch(wanted):
        raise ToolError('I need the address as street and number, postcode and town: "Lindenweg 12, 53113 Bonn".')

    def work(db: sqlite3.Connection) -> dict[str, Any]:
        order = owned_order(db, ctx.run.principal, order_id)
        if order["status"] == "cancelled":
            raise ToolError(f"Order {order_id} is cancelled, so its address cannot be changed.")
        if order["status"] not in ("processing", "packed"):
            raise ToolError(f"Order {order_id} has already been shipped; only the carrier can redirect the parcel.")
        if order["address"] == wanted:
            raise ToolError(f"Order {order_id} already goes to that address.")
        db.execute("UPDATE orders SET address = ? WHERE order_id = ?", (wanted, order_id))
        _record(db, order_id, "address", wanted)
        return {
            "order_id": order_id,
            "address": wanted,
            "summary": f"Order {order_id} now goes to {wanted}.",
        }

    return await world.once(ctx.idempotency_key, ctx.run.principal.user, "change_address", given, work)


def _record(db: sqlite3.Connection, order_id: str, kind: str, detail: str) -> None:
    db.execute(
        "INSERT INTO order_events (order_id, kind, detail, at) VALUES (?, ?, ?, ?)",
        (order_id, kind, detail, TODAY.isoformat()),
    )
