"""Builds the seeded database: people, products, orders in every state, parcels, refunds, articles and papers.

Invariant: the bytes depend on the seed and on the data files of the packs alone. Everything is invented.
It is run once per process and seed; nothing here is reachable from a tool.
"""

import csv
import random
import sqlite3
import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from .access import day, euros

TODAY = date(2026, 6, 15)
PACKS = Path(__file__).parent
CUSTOMERS = 60
ORDERS = 400
RETURN_DAYS = 30  # after delivery; the articles say the same
FREE_SHIPPING_CENTS = 10_000
SHIPPING_CENTS = 490
VAT_PERCENT = 19

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE idempotency (
    key TEXT NOT NULL, who TEXT NOT NULL, call TEXT NOT NULL, result TEXT NOT NULL, PRIMARY KEY (key, who)
);
"""
_STATES = (  # state of an order and its share
    ("fresh", 0.17),  # processing
    ("packed", 0.05),
    ("travelling", 0.15),
    ("late", 0.11),
    ("delivered", 0.33),  # inside the return window
    ("old", 0.14),  # delivered, window closed
    ("cancelled", 0.05),
)


@dataclass(frozen=True, slots=True)
class _Order:
    """What the papers and refunds of an order are made from."""

    order_id: str
    customer: tuple[str, str, str, str]  # id, name, email, address
    state: str
    placed: date
    delivered: date | None
    lines: tuple[tuple[str, str, int, int], ...]  # sku, name, quantity, price
    shipping: int
    total: int


def build(seed: int, version: int) -> sqlite3.Connection:
    """A new in-memory database with everything in it; `version` becomes its user_version."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    rng = random.Random(f"world {seed}")
    db.executescript(_TABLES)
    for pack in ("inventory", "orders", "refunds", "knowledge", "documents"):
        db.executescript((PACKS / pack / "schema.sql").read_text(encoding="utf-8"))
    db.execute("BEGIN")
    db.execute("INSERT INTO meta VALUES ('seed', ?), ('today', ?)", (str(seed), TODAY.isoformat()))
    people = tomllib.loads((PACKS / "orders" / "people.toml").read_text(encoding="utf-8"))
    products = catalogue()
    _fill_stock(db, rng, products)
    orders = _fill_orders(db, rng, people, products)
    _fill_refunds(db, rng, orders)
    _fill_documents(db, orders)
    _fill_articles(db)
    db.execute("COMMIT")
    db.execute(f"PRAGMA user_version = {version:d}")
    db.execute("VACUUM")
    return db


def catalogue() -> list[dict[str, str]]:
    """The rows of products.csv."""
    with open(PACKS / "inventory" / "products.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def articles() -> list[tuple[str, str, str, str, str]]:
    """(id, topic, title, summary, body) of every section `## KB-101 | topic | title` of articles.md."""
    found = []
    for section in (PACKS / "knowledge" / "articles.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        head, _, text = section.partition("\n")
        article_id, topic, title = (part.strip() for part in head.split("|"))
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
        found.append((article_id, topic, title, paragraphs[0], "\n".join(paragraphs[1:])))
    return found


def address(rng: random.Random, people: dict) -> str:
    """One line, as the tools keep it: "Lindenweg 12, 53113 Bonn"."""
    postcode, city = rng.choice(people["cities"])
    return f"{rng.choice(people['streets'])} {rng.randint(1, 120)}, {postcode} {city}"


def _fill_stock(db: sqlite3.Connection, rng: random.Random, products: list[dict[str, str]]) -> None:
    for row in products:
        price, warranty = int(row["price_cents"]), int(row["warranty_months"])
        db.execute(
            "INSERT INTO products VALUES (?, ?, ?, ?, ?)", (row["sku"], row["name"], row["category"], price, warranty)
        )
        sold_out = rng.random() < 0.22
        available = 0 if sold_out else rng.randint(3, 40)
        restock = TODAY + timedelta(days=rng.randint(4, 40)) if sold_out and rng.random() < 0.7 else None
        db.execute(
            "INSERT INTO stock VALUES (?, ?, ?, ?)",
            (row["sku"], available, rng.randint(0, 3), restock.isoformat() if restock else None),
        )


def _fill_orders(
    db: sqlite3.Connection, rng: random.Random, people: dict, products: list[dict[str, str]]
) -> list[_Order]:
    names = [f"{first} {last}" for first in people["first"] for last in people["last"]]
    customers = []
    for number, name in enumerate(rng.sample(names, CUSTOMERS)):
        email = f"{name.lower().replace(' ', '.')}@{rng.choice(people['domains'])}"
        customers.append((f"C-{1001 + number}", name, email, address(rng, people)))
        since = TODAY - timedelta(days=rng.randint(90, 2000))
        db.execute("INSERT INTO customers VALUES (?, ?, ?, ?, ?)", (*customers[-1], since.isoformat()))
    postcodes = {int(code) for code, _ in people["cities"]}
    numbers = rng.sample([n for n in range(10_000, 50_000) if n not in postcodes], ORDERS)
    states = rng.choices([s for s, _ in _STATES], [w for _, w in _STATES], k=ORDERS)
    orders = []
    for index, (number, state) in enumerate(zip(numbers, states, strict=True)):
        customer = customers[index % CUSTOMERS] if index < 3 * CUSTOMERS else rng.choice(customers)
        orders.append(_fill_order(db, rng, f"SO-{number}", customer, state, people, products))
    return orders


def _fill_order(
    db: sqlite3.Connection,
    rng: random.Random,
    order_id: str,
    customer: tuple[str, str, str, str],
    state: str,
    people: dict,
    products: list[dict[str, str]],
) -> _Order:
    ago = {"fresh": (0, 2), "packed": (1, 3), "travelling": (3, 6), "late": (9, 16), "delivered": (8, 30)}
    placed = TODAY - timedelta(days=rng.randint(*ago.get(state, (50, 300))))
    lines = tuple(
        (row["sku"], row["name"], rng.choice((1, 1, 1, 2)), int(row["price_cents"]))
        for row in rng.sample(products, rng.choice((1, 1, 2, 3)))
    )
    goods = sum(quantity * price for _, _, quantity, price in lines)
    shipping = 0 if goods >= FREE_SHIPPING_CENTS else SHIPPING_CENTS
    status = {"fresh": "processing", "packed": "packed", "cancelled": "cancelled"}.get(state, "shipped")
    status = "delivered" if state in ("delivered", "old") else status
    payment = rng.choice(people["payments"])
    db.execute(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            order_id, customer[0], placed.isoformat(), status, goods + shipping, goods + shipping, shipping, payment,
            customer[3],
        ),
    )  # fmt: skip
    for number, (sku, name, quantity, price) in enumerate(lines, 1):
        db.execute("INSERT INTO order_items VALUES (?, ?, ?, ?, ?, ?)", (order_id, number, sku, name, quantity, price))
    delivered = None
    if state in ("travelling", "late", "delivered", "old"):
        delivered = _fill_shipment(db, rng, order_id, state, placed, people, customer[3].rsplit(" ", 1)[1])
    return _Order(order_id, customer, state, placed, delivered, lines, shipping, goods + shipping)


def _fill_shipment(
    db: sqlite3.Connection, rng: random.Random, order_id: str, state: str, placed: date, people: dict, city: str
) -> date | None:
    shipped = placed + timedelta(days=rng.randint(1, 2))
    expected = shipped + timedelta(days=rng.randint(2, 4))
    delivered = None
    if state == "travelling":
        expected = TODAY + timedelta(days=rng.randint(1, 3))
    elif state == "late":
        expected = min(expected, TODAY - timedelta(days=2))
    else:
        delivered = min(expected + timedelta(days=rng.choice((-1, 0, 0, 1))), TODAY - timedelta(days=1))
        delivered = max(delivered, shipped + timedelta(days=1))
    shipment_id = order_id.replace("SO-", "SH-")
    tracking = f"{rng.choice(('PW', 'NP', 'VX'))}{rng.randint(10**8, 10**9 - 1)}"
    dates = (shipped.isoformat(), expected.isoformat(), delivered.isoformat() if delivered else None)
    db.execute(
        "INSERT INTO shipments VALUES (?, ?, ?, ?, ?, ?, ?)",
        (shipment_id, order_id, rng.choice(people["carriers"]), tracking, *dates),
    )
    events = [(shipped, "Hannover", "handed to the carrier")]
    for hub in rng.sample(people["hubs"][1:], 2):
        at = min(events[-1][0] + timedelta(days=1), (delivered or TODAY) - timedelta(days=1))
        events.append((max(at, shipped), hub, "sorted at the parcel centre"))
    if delivered:
        events.append((delivered, city, "delivered"))
    for number, (at, place, event) in enumerate(events, 1):
        db.execute(
            "INSERT INTO shipment_events VALUES (?, ?, ?, ?, ?)", (shipment_id, number, at.isoformat(), place, event)
        )
    return delivered


def _fill_refunds(db: sqlite3.Connection, rng: random.Random, orders: list[_Order]) -> None:
    number = 70_001
    for order in orders:
        chance = {"delivered": 0.22, "old": 0.35}.get(order.state, 0.0)
        if order.delivered is None or rng.random() >= chance:
            continue
        amount = order.total if rng.random() < 0.4 else rng.choice(order.lines)[3]
        created = min(order.delivered + timedelta(days=rng.randint(1, 9)), TODAY - timedelta(days=1))
        recent = (TODAY - created).days <= 5
        status = "approved" if recent else rng.choices(("paid", "rejected"), (0.85, 0.15))[0]
        paid = (created + timedelta(days=rng.randint(2, 5))).isoformat() if status == "paid" else None
        reason = rng.choice(("damaged", "changed_mind", "not_as_described"))
        db.execute(
            "INSERT INTO refunds VALUES (?, ?, ?, ?, ?, ?, ?)",
            (f"RF-{number}", order.order_id, amount, reason, status, created.isoformat(), paid),
        )
        number += rng.randint(3, 40)


def _fill_documents(db: sqlite3.Connection, orders: list[_Order]) -> None:
    number = 300_001
    for order in sorted(orders, key=lambda one: one.order_id):
        if order.state == "cancelled":
            continue
        papers = [("invoice", order.placed, _invoice(order))]
        if order.state not in ("fresh", "packed"):
            papers.append(("delivery_note", order.placed + timedelta(days=1), _delivery_note(order)))
        if order.state == "delivered" and order.delivered:
            papers.append(("return_label", order.delivered, _return_label(order)))
        for kind, created, text in papers:
            title = f"{kind.replace('_', ' ').capitalize()} for order {order.order_id}"
            db.execute(
                "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)",
                (f"DOC-{number}", order.order_id, kind, title, text, created.isoformat()),
            )
            number += 7


def vat_cents(total_cents: int) -> int:
    """The VAT inside a gross amount, rounded half up."""
    return (total_cents * VAT_PERCENT * 2 + (100 + VAT_PERCENT)) // (2 * (100 + VAT_PERCENT))


def _lines(order: _Order) -> str:
    return "\n".join(f"  {quantity} x {name} ({sku})" for sku, name, quantity, _ in order.lines)


def _invoice(order: _Order) -> str:
    return (
        f"Lindenhof Home, invoice {order.order_id.replace('SO-', 'INV-')} of {day(order.placed.isoformat())}\n"
        f"Bill to: {order.customer[1]}, {order.customer[3]}\n{_lines(order)}\n"
        f"Shipping {euros(order.shipping)}. Total {euros(order.total)}, "
        f"including {VAT_PERCENT} % VAT {euros(vat_cents(order.total))}.\n"
        "Seller: Lindenhof Home GmbH, VAT number DE000000000."
    )


def _delivery_note(order: _Order) -> str:
    return (
        f"Delivery note for order {order.order_id}\nDeliver to: {order.customer[1]}, {order.customer[3]}\n"
        f"{_lines(order)}\nPlease check the parcel for damage before you sign."
    )


def _return_label(order: _Order) -> str:
    last = (order.delivered or TODAY) + timedelta(days=RETURN_DAYS)
    return (
        f"Return label for order {order.order_id}, valid until {day(last.isoformat())}\n"
        "To: Lindenhof Home Returns, Lagerstrasse 1, 30159 Hannover\n"
        "Stick it on the outside of the parcel and remove older labels."
    )


def _fill_articles(db: sqlite3.Connection) -> None:
    for number, article in enumerate(articles(), 1):
        db.execute("INSERT INTO articles VALUES (?, ?, ?, ?, ?, ?)", (number, *article))
    db.execute("INSERT INTO article_index (article_index) VALUES ('rebuild')")
