"""Inventory tools. Invariant: a piece is available or reserved, never both, and never reserved twice."""

import sqlite3
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field

from agentops.act import CacheRule, Context, Labels, tool
from agentops.errors import ToolError

from ..access import Sku, day, euros
from ..world import TODAY, World

HOLD_DAYS = 3
MOST_HELD = 10  # pieces of one product per customer
SHELF = Labels("trusted", "internal")


@tool(
    effect="read",
    scopes={"inventory:read"},
    timeout_s=3.0,
    cache=CacheRule(ttl_s=20, tags=("stock:{sku}",), shared=True),
    labels=SHELF,
)
async def check_stock(ctx: Context, sku: Sku) -> dict[str, Any]:
    """How many pieces of a product are available, its price, and when it comes back if it is sold out."""
    world: World = ctx.world
    await world.latency("check_stock", {"sku": sku}, ctx.clock)
    with world.read() as db:
        return _shown(_product(db, sku))


@tool(
    effect="read",
    scopes={"inventory:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=20, tags=("stock",), shared=True),
    labels=SHELF,
)
async def find_alternatives(ctx: Context, sku: Sku, limit: Annotated[int, Field(ge=1, le=10)] = 3) -> dict[str, Any]:
    """Products of the same category that are in stock, nearest in price first."""
    world: World = ctx.world
    await world.latency("find_alternatives", {"sku": sku, "limit": limit}, ctx.clock)
    with world.read() as db:
        product = _product(db, sku)
        rows = db.execute(
            "SELECT * FROM products JOIN stock USING (sku) WHERE category = ? AND sku != ? AND available > 0"
            " ORDER BY abs(price_cents - ?), sku LIMIT ?",
            (product["category"], sku, product["price_cents"], limit),
        ).fetchall()
    found = [_shown(row) for row in rows]
    names = ", ".join(f"{item['name']} ({item['sku']}, {item['price']})" for item in found)
    summary = f"In stock and similar to {product['name']}: {names}." if found else "Nothing similar is in stock."
    return {"sku": sku, "name": product["name"], "alternatives": found, "summary": summary}


@tool(
    effect="write",
    scopes={"inventory:read", "inventory:write"},
    timeout_s=5.0,
    invalidates=("stock:{sku}", "stock"),
    idempotent=True,
    labels=Labels("trusted", "personal"),
)
async def reserve_item(
    ctx: Context, sku: Sku, quantity: Annotated[int, Field(ge=1, le=MOST_HELD)] = 1
) -> dict[str, Any]:
    """Hold pieces of a product for the customer for three days."""
    world: World = ctx.world
    who = ctx.run.principal.user
    given = {"sku": sku, "quantity": quantity}
    await world.latency("reserve_item", given, ctx.clock)

    def work(db: sqlite3.Connection) -> dict[str, Any]:
        product = _product(db, sku)
        if product["available"] == 0:
            raise ToolError(f"{product['name']} ({sku}) is sold out, so it cannot be reserved.")
        if product["available"] < quantity:
            raise ToolError(f"Only {product['available']} of {product['name']} ({sku}) are left, not {quantity}.")
        held = db.execute(
            "SELECT coalesce(sum(quantity), 0) FROM reservations WHERE sku = ? AND customer_id = ?", (sku, who)
        ).fetchone()[0]
        if held + quantity > MOST_HELD:
            raise ToolError(f"At most {MOST_HELD} pieces of one product can be held for you; you have {held} already.")
        number = db.execute("SELECT count(*) FROM reservations").fetchone()[0] + 1
        until = TODAY + timedelta(days=HOLD_DAYS)
        db.execute(
            "UPDATE stock SET available = available - ?, reserved = reserved + ? WHERE sku = ?",
            (quantity, quantity, sku),
        )
        db.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?)",
            (f"RS-{number:05d}", sku, who, quantity, until.isoformat()),
        )
        return {
            "reservation_id": f"RS-{number:05d}",
            "sku": sku,
            "name": product["name"],
            "quantity": quantity,
            "held_until": day(until.isoformat()),
            "summary": f"{quantity} x {product['name']} ({sku}) is held for you until {day(until.isoformat())}.",
        }

    return await world.once(ctx.idempotency_key, who, "reserve_item", given, work)


def _product(db: sqlite3.Connection, sku: str) -> sqlite3.Row:
    row = db.execute("SELECT * FROM products JOIN stock USING (sku) WHERE sku = ?", (sku,)).fetchone()
    if row is None:
        raise ToolError(f"We have no product with the number {sku}.")
    return row


def _shown(row: sqlite3.Row) -> dict[str, Any]:
    head = f"{row['name']} ({row['sku']}, {euros(row['price_cents'])})"
    if row["available"]:
        summary = f"{head} is in stock: {row['available']} left."
    elif row["restock_on"]:
        summary = f"{head} is sold out and expected again on {day(row['restock_on'])}."
    else:
        summary = f"{head} is sold out, and no new delivery is planned."
    return {
        "sku": row["sku"],
        "name": row["name"],
        "category": row["category"],
        "price_cents": row["price_cents"],
        "price": euros(row["price_cents"]),
        "available": row["available"],
        "in_stock": row["available"] > 0,
        "restock_on": day(row["restock_on"]),
        "warranty_months": row["warranty_months"],
        "summary": summary,
    }
