"""What is true in the seeded world when somebody asks: who asks, about what, and what a right answer does and says.

Invariant: expectations are computed here from the tables with the shop's published rules, not by running the tools, so
that a gold plan that disagrees shows a mistake in one of the two. Nothing is written.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...tools import seeding
from ...tools.access import day, euros
from . import phrasing
from .desk import APPROVAL_ABOVE_CENTS, RETURN_DAYS, Desk, desk, refundable


@dataclass(frozen=True, slots=True)
class Situation:
    """One answerable (or refusable) request, before it is worded."""

    user: str
    name: str  # first name of the user
    slots: Mapping[str, str] = field(default_factory=dict)  # for the wording
    values: Mapping[str, Any] = field(default_factory=dict)  # for the plan
    changes: tuple[Mapping[str, Any], ...] = ()
    facts: tuple[str, ...] = ()
    plain_success: bool = True  # False: refused, unknown or waiting for an approval


Draw = Callable[[random.Random, Desk, str, str], Situation | None]  # rng, desk, user ("" = any), order not to take


def draw(label: str, rng: random.Random, *, user: str = "", without: str = "", only_success: bool = False) -> Situation:
    """A situation for a label, of any user or of one.

    Args:
        label: an intent of the router.
        rng: decides everything.
        user: customer id; "" for any.
        without: an order that is already taken by another part of the message.
        only_success: no refusals, unknown numbers or approvals.

    Raises:
        LookupError: the user has nothing that fits.
    """
    for _ in range(400):
        found = SITUATIONS[label](rng, desk(), user, without)
        if found is not None and (found.plain_success or not only_success):
            return found
    raise LookupError(f"no situation for {label!r} of user {user or 'any'!r}")


def _customer(rng: random.Random, desk: Desk, user: str) -> tuple[str, str]:
    row = next((one for one in desk.customers if one["customer_id"] == user), None) or rng.choice(desk.customers)
    return row["customer_id"], row["name"].split()[0]


def _order(
    rng: random.Random, desk: Desk, user: str, without: str, states: Mapping[str, float], odd: float = 0.1
) -> tuple[dict[str, Any] | None, str, str, str]:
    """(order or None when there is none to be found, order id, user, first name). `odd`: the share of those."""
    chance = rng.random()
    if chance < odd:
        who, name = _customer(rng, desk, user)
        others = [one["order_id"] for one in desk.orders if one["customer_id"] != who]
        taken = {one["order_id"] for one in desk.orders}
        made_up = next(n for n in iter(lambda: f"SO-{rng.randint(10_000, 49_999)}", "") if n not in taken)
        return None, made_up if chance < odd * 0.6 else rng.choice(others), who, name
    wanted = rng.choices(list(states), list(states.values()))[0]
    fitting = [
        one
        for one in desk.orders
        if one["state"] == wanted and one["order_id"] != without and (not user or one["customer_id"] == user)
    ]
    if not fitting:
        return None, "", "", ""
    order = rng.choice(fitting)
    return order, order["order_id"], order["customer_id"], order["name"].split()[0]


def _about_order(
    rng: random.Random,
    desk: Desk,
    user: str,
    without: str,
    states: Mapping[str, float],
    outcome: Callable[[dict[str, Any]], tuple[list[Mapping[str, Any]], list[str], bool]],
    **more: tuple[str, Any],
) -> Situation | None:
    """A situation about one order; `more` are further slots as (wording value, plan value)."""
    order, order_id, who, name = _order(rng, desk, user, without, states)
    if not order_id:
        return None
    changes, facts, fine = outcome(order) if order is not None else ([], [f"cannot find order {order_id}"], False)
    product = rng.choice(order["items"] if order is not None else [one["name"] for one in desk.products])
    return Situation(
        user=who,
        name=name,
        slots={"order": order_id, "product": product, **{key: shown for key, (shown, _) in more.items()}},
        values={"order_id": order_id, **{key: value for key, (_, value) in more.items()}},
        changes=tuple(changes),
        facts=tuple(facts),
        plain_success=fine,
    )


def _order_status(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        facts = [order["order_id"], f"is {order['status']}"]
        if order["tracking"]:
            facts.append(order["tracking"])
        if order["state"] == "travelling":
            facts.append(day(order["expected_on"]))
        return [], facts, True

    states = {"open": 4, "travelling": 4, "returnable": 1, "cancelled": 0.5}
    return _about_order(rng, desk, user, without, states, outcome)


def _list_orders(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    who, name = _customer(rng, desk, user)
    own = [one for one in desk.orders if one["customer_id"] == who]
    newest = sorted(own, key=lambda one: (_reversed(one["placed_on"]), one["order_id"]))[:5]
    facts = (f"{len(own)} order(s)", *(one["order_id"] for one in newest))
    return Situation(who, name, {"product": rng.choice(rng.choice(own)["items"])}, {}, (), facts)


def _reversed(text: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in text)


def _delivery_delay(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        search = "5 working days"  # a search with the carrier
        if order["state"] == "late":
            return [], [f"expected on {day(order['expected_on'])}", order["tracking"], search], True
        if order["state"] == "open":
            return [], ["has not left our warehouse yet", search], True
        return [], [day(order["expected_on"]), order["tracking"], search], True

    return _about_order(rng, desk, user, without, {"late": 8, "travelling": 1, "open": 1}, outcome)


def _cancel_order(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        order_id = order["order_id"]
        if order["state"] == "cancelled":
            return [], ["is already cancelled"], False
        if order["state"] != "open":
            return [], ["can no longer be cancelled"], False
        changes = [_update("orders", order_id, status="cancelled"), _event(order_id, "cancelled", "")]
        return changes, [f"{order_id} is cancelled"], True

    states = {"open": 8, "travelling": 1, "returnable": 0.5, "cancelled": 0.5}
    return _about_order(rng, desk, user, without, states, outcome)


def _change_address(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    wanted = seeding.address(rng, dict(desk.people))

    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        order_id = order["order_id"]
        if order["state"] == "cancelled":
            return [], ["is cancelled"], False
        if order["state"] != "open":
            return [], ["only the carrier can redirect"], False
        if order["address"] == wanted:
            return [], ["already goes to that address"], False
        changes = [_update("orders", order_id, address=wanted), _event(order_id, "address", wanted)]
        return changes, [order_id, wanted], True

    states = {"open": 8, "travelling": 1.5, "cancelled": 0.4}
    return _about_order(rng, desk, user, without, states, outcome, address=(wanted, wanted))


def _refund(reason: str, amount: int | None = None) -> Callable[[dict[str, Any]], tuple[list, list[str], bool]]:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        order_id, left = order["order_id"], refundable(order)
        asked = left if amount is None else amount
        if order["state"] == "cancelled":
            return [], ["was cancelled"], False
        if order["status"] != "delivered":
            return [], ["has not been delivered yet"], False
        if order["state"] == "over":
            return [], [f"The {RETURN_DAYS} days"], False
        if order["state"] == "spent":
            return [], ["refunded in full already"], False
        if asked > APPROVAL_ABOVE_CENTS:  # waits for a person: nothing happens and nothing is promised
            return [], [], False
        if asked > left:
            return [], [f"At most {euros(left)}"], False
        return [_refund_row(order_id, asked, reason)], [euros(asked), order_id], True

    return outcome


def _refund_request(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    states = {"returnable": 8, "over": 0.8, "travelling": 0.4, "spent": 0.4}
    found = _about_order(rng, desk, user, without, states, _refund("changed_mind"))
    return _mostly_small(found, rng)


def _damaged_item(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    found = _about_order(rng, desk, user, without, {"returnable": 9, "over": 0.6, "spent": 0.3}, _refund("damaged"))
    return _mostly_small(found, rng)


def _wrong_charge(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    cents = rng.choice((490, 500, 1000, rng.randint(150, 3500), 5 * rng.randint(40, 900)))
    states = {"returnable": 9, "over": 0.6, "open": 0.5}
    found = _about_order(rng, desk, user, without, states, _refund("overcharged", cents), amount=(str(cents), cents))
    return found and replace(found, values={**found.values, "amount_cents": cents})


def _mostly_small(found: Situation | None, rng: random.Random) -> Situation | None:
    """Nine of ten requests that would need an approval are drawn again: they are the exception."""
    waiting = found is not None and not found.plain_success and not found.facts
    return None if waiting and rng.random() < 0.9 else found


def _refund_status(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    owner = {one["order_id"]: one for one in desk.orders}
    rows = [row for row in desk.refunds if not user or owner[row["order_id"]]["customer_id"] == user]
    if not rows:
        return None
    row = rng.choice(rows)
    order = owner[row["order_id"]]
    latest = order["refunds"][-1]
    if rng.random() < 0.08 and not user:
        who, name = _customer(rng, desk, "")
        if who == order["customer_id"]:
            return None
        slots = {"refund": row["refund_id"], "order": order["order_id"]}
        return Situation(who, name, slots, {"reference": row["refund_id"]}, (), ("cannot find",), False)
    state = {"approved": "approved", "paid": f"paid on {day(latest['paid_on'])}", "rejected": "rejected"}
    return Situation(
        user=order["customer_id"],
        name=order["name"].split()[0],
        slots={"refund": latest["refund_id"], "order": order["order_id"]},
        values={"reference": latest["refund_id"]},
        facts=(latest["refund_id"], euros(latest["amount_cents"]), state[latest["status"]]),
    )


def _invoice_copy(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    return _about_order(rng, desk, user, without, {"returnable": 4, "over": 3, "open": 1}, _mailed(desk, "invoice"))


def _return_label(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    return _about_order(rng, desk, user, without, {"returnable": 9, "over": 0.7}, _mailed(desk, "return_label"))


def _mailed(desk: Desk, kind: str) -> Callable[[dict[str, Any]], tuple[list, list[str], bool]]:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        document = desk.documents.get((order["order_id"], kind))
        if document is None:
            return [], [f"There is no {kind.replace('_', ' ')} for order {order['order_id']}"], False
        return [_insert("outbox", document, email=order["email"])], [order["order_id"], order["email"]], True

    return outcome


def _invoice_details(rng: random.Random, desk: Desk, user: str, without: str) -> Situation | None:
    def outcome(order: dict[str, Any]) -> tuple[list, list[str], bool]:
        if (order["order_id"], "invoice") not in desk.documents:
            return [], ["There is no invoice"], False
        facts = [
            order["order_id"].replace("SO-", "INV-"),
            euros(order["total_cents"]),
            euros(seeding.vat_cents(order["total_cents"])),
        ]
        return [], facts, True

    return _about_order(rng, desk, user, without, {"returnable": 4, "over": 3, "open": 2, "cancelled": 0.4}, outcome)


def _about_product(
    rng: random.Random, desk: Desk, user: str, row: Mapping[str, Any], facts: list[str], **more: Any
) -> Situation:
    who, name = _customer(rng, desk, user)
    slots = {"sku": f"{row['name']}|{row['sku']}", **{key: str(value) for key, value in more.items()}}
    return Situation(who, name, slots, {"sku": row["sku"], **more}, (), tuple(facts))


def _stock_check(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    row = rng.choice(desk.products)
    if row["available"]:
        state = f"in stock: {row['available']} left"
    else:
        state = f"expected again on {day(row['restock_on'])}" if row["restock_on"] else "no new delivery is planned"
    return _about_product(rng, desk, user, row, [row["sku"], euros(row["price_cents"]), state])


def _product_alternatives(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    sold_out = [one for one in desk.products if not one["available"]]
    row = rng.choice(sold_out if rng.random() < 0.4 else desk.products)
    others = [one for one in desk.products if one["category"] == row["category"] and one["available"]]
    near = sorted(
        (one for one in others if one["sku"] != row["sku"]),
        key=lambda one: (abs(one["price_cents"] - row["price_cents"]), one["sku"]),
    )
    return _about_product(rng, desk, user, row, [row["sku"], *(one["sku"] for one in near[:3])])


def _reserve_item(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    chance = rng.random()
    sold_out = [one for one in desk.products if not one["available"]]
    few = [one for one in desk.products if 0 < one["available"] < 8]
    row = rng.choice(
        sold_out if chance < 0.1 else few if chance < 0.3 else [p for p in desk.products if p["available"]]
    )
    quantity = rng.choices((1, 2, 3, 4, 6, 8), (5, 4, 2, 2, 1, 1))[0]
    return _held(_about_product(rng, desk, user, row, [], quantity=quantity), row, quantity)


def one_piece(found: Situation) -> Situation:
    """A reservation whose wording names no quantity: one piece is meant."""
    row = next(one for one in desk().products if one["sku"] == found.values["sku"])
    return _held(found, row, 1)


def _held(found: Situation, row: Mapping[str, Any], quantity: int) -> Situation:
    """`found` with what holding `quantity` pieces of a product means."""
    if row["available"] < quantity:
        fact = "is sold out" if not row["available"] else f"Only {row['available']} of"
        return replace(found, changes=(), facts=(fact, row["sku"]), plain_success=False)
    changes = (
        _insert("reservations", f"{found.user}/{row['sku']}", quantity=quantity),
        _update("stock", row["sku"], available=row["available"] - quantity, reserved=row["reserved"] + quantity),
    )
    facts = (f"{quantity} x {row['name']} ({row['sku']})", "held for you")
    return replace(found, changes=changes, facts=facts, plain_success=True)


def _article(*facts: str) -> Draw:
    """What a general question is answered with, whoever asks; `facts` stand in the summaries of help articles."""

    def found(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
        who, name = _customer(rng, desk, user)
        slots = {"product": rng.choice(desk.products)["name"], "city": rng.choice(desk.people["cities"])[1]}
        return Situation(who, name, slots, {}, (), facts)

    return found


def _how_to(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    who, name = _customer(rng, desk, user)
    words, (search, _, fact) = rng.choice(list(phrasing.topics().items()))
    return Situation(who, name, {"topic": words}, {"search": search}, (), (fact,))


def _nothing(rng: random.Random, desk: Desk, user: str, without: str) -> Situation:
    who, name = _customer(rng, desk, user)
    return Situation(who, name, {"city": rng.choice(desk.people["cities"])[1]})


def _update(table: str, key: str, **columns: Any) -> dict[str, Any]:
    return {"table": table, "key": key, "op": "update", "columns": columns}


def _insert(table: str, key: str, **columns: Any) -> dict[str, Any]:
    return {"table": table, "key": key, "op": "insert", "columns": columns}


def _event(order_id: str, kind: str, detail: str) -> dict[str, Any]:
    return _insert("order_events", order_id, kind=kind, detail=detail)


def _refund_row(order_id: str, cents: int, reason: str) -> dict[str, Any]:
    return _insert("refunds", order_id, amount_cents=cents, reason=reason, status="approved")


SITUATIONS: dict[str, Draw] = {
    "order_status": _order_status,
    "list_orders": _list_orders,
    "delivery_delay": _delivery_delay,
    "cancel_order": _cancel_order,
    "change_address": _change_address,
    "refund_request": _refund_request,
    "refund_status": _refund_status,
    "damaged_item": _damaged_item,
    "wrong_charge": _wrong_charge,
    "invoice_copy": _invoice_copy,
    "invoice_details": _invoice_details,
    "return_label": _return_label,
    "stock_check": _stock_check,
    "product_alternatives": _product_alternatives,
    "reserve_item": _reserve_item,
    "return_policy": _article("30 days", "original packaging", "the label is free"),
    "warranty_question": _article("12 months", "24 months", "60 months", "order number"),
    "shipping_costs": _article("4.90 EUR", "100 EUR", "12.90 EUR"),
    "payment_methods": _article("credit card", "bank transfer", "PayFlow", "14 days"),
    "how_to": _how_to,
    "human_agent": _nothing,
    "out_of_scope": _nothing,
}
