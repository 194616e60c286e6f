"""The seeded world as tables in memory, read once: what situations are drawn from and expectations computed with.

Invariant: it is read-only and comes from the seed alone. The shop's rules in it (state of an order, what is refundable)
are written down a second time on purpose: the tools have their own, and the gold plans show when the two disagree.
"""

import functools
import sqlite3
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from ...tools import seeding, world

APPROVAL_ABOVE_CENTS = 20_000  # above this policies/refunds.cedar asks a person
RETURN_DAYS = 30  # as the articles promise


@dataclass(frozen=True, slots=True)
class Desk:
    """The tables the situations are drawn from."""

    customers: tuple[dict[str, Any], ...]
    orders: tuple[dict[str, Any], ...]
    refunds: tuple[dict[str, Any], ...]
    products: tuple[dict[str, Any], ...]
    documents: Mapping[tuple[str, str], str]  # (order, kind) -> document id
    people: Mapping[str, Any]


@functools.cache
def desk() -> Desk:
    """The seeded world, read once."""
    db = sqlite3.connect(":memory:")
    db.deserialize(world.snapshot(world.SEED))
    db.row_factory = sqlite3.Row
    rows = lambda query: [dict(row) for row in db.execute(query)]  # noqa: E731
    orders = rows(
        "SELECT o.*, c.name, c.email, s.expected_on, s.delivered_on, s.tracking FROM orders o JOIN customers c"
        " USING (customer_id) LEFT JOIN shipments s USING (order_id) ORDER BY order_id"
    )
    items: dict[str, list[str]] = {}
    for row in rows("SELECT order_id, name FROM order_items ORDER BY order_id, line"):
        items.setdefault(row["order_id"], []).append(row["name"])
    refunds = rows("SELECT * FROM refunds ORDER BY refund_id")
    for order in orders:
        order["items"] = items[order["order_id"]]
        order["refunds"] = [row for row in refunds if row["order_id"] == order["order_id"]]
        order["state"] = state_of(order)
    found = Desk(
        customers=tuple(rows("SELECT * FROM customers ORDER BY customer_id")),
        orders=tuple(orders),
        refunds=tuple(refunds),
        products=tuple(rows("SELECT * FROM products JOIN stock USING (sku) ORDER BY sku")),
        documents={
            (row["order_id"], row["kind"]): row["document_id"]
            for row in rows("SELECT * FROM documents ORDER BY document_id DESC")
        },
        people=tomllib.loads((seeding.PACKS / "orders" / "people.toml").read_text(encoding="utf-8")),
    )
    db.close()
    return found


def state_of(order: Mapping[str, Any]) -> str:
    """ "open" (can be cancelled), "travelling", "late", "returnable", "over", "spent" or "cancelled"."""
    if order["status"] in ("processing", "packed"):
        return "open"
    if order["status"] == "shipped":
        return "late" if order["expected_on"] < world.TODAY.isoformat() else "travelling"
    if order["status"] == "cancelled":
        return "cancelled"
    if date.fromisoformat(order["delivered_on"]) + timedelta(days=RETURN_DAYS) < world.TODAY:
        return "over"
    return "returnable" if refundable(order) else "spent"


def refundable(order: Mapping[str, Any]) -> int:
    """Cents of a delivered order that were not refunded yet; rejected refunds do not count."""
    given = sum(row["amount_cents"] for row in order["refunds"] if row["status"] != "rejected")
    return max(0, order["paid_cents"] - given)
