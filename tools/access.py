"""Whose rows a caller may see. Every tool of an order goes through `owned_order`.

Invariant: another customer's order and an order that does not exist give the same answer. Roles and scopes are the
policies' business; this is the last line, inside the company's own systems.
"""

import sqlite3
from datetime import date
from typing import Annotated

from pydantic import Field

from agentops.errors import ToolError
from agentops.types import Principal

OrderId = Annotated[str, Field(pattern=r"^SO-\d{5}$", description="order number, like SO-12345")]
Sku = Annotated[str, Field(pattern=r"^SKU-\d{4}$", description="product number, like SKU-1042")]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def is_staff(principal: Principal) -> bool:
    return "staff" in principal.roles


def owned_order(db: sqlite3.Connection, principal: Principal, order_id: str) -> sqlite3.Row:
    """The order with its customer's name and e-mail, if the caller may see it.

    Raises:
        ToolError: there is none, or it is somebody else's.
    """
    row = db.execute(
        "SELECT o.*, c.name, c.email FROM orders o JOIN customers c USING (customer_id) WHERE order_id = ?", (order_id,)
    ).fetchone()
    if row is None or (row["customer_id"] != principal.user and not is_staff(principal)):
        raise ToolError(f"I cannot find order {order_id} in your account.")
    return row


def euros(cents: int) -> str:
    """1990 -> "19.90 EUR"."""
    return f"{cents // 100}.{cents % 100:02d} EUR"


def day(text: str | None) -> str:
    """An ISO date as people read it: "3 June 2026"; "" when there is none."""
    if not text:
        return ""
    found = date.fromisoformat(text)
    return f"{found.day} {MONTHS[found.month - 1]} {found.year}"
