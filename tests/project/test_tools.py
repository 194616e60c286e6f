"""Every tool: what it does, for whom, once, and within which limits. Called directly, as the gateway would."""

import contextlib
import re

import pytest

from agentops.errors import ToolError

pytestmark = pytest.mark.anyio

ADDRESS = "Lindenweg 12, 53113 Bonn"


@pytest.fixture
def orders(part):
    """The first order in a state: `orders("open")` -> row with order_id, customer_id, total_cents, …"""
    rows = part("pipelines.support.desk").desk().orders
    return lambda state, nth=0: [row for row in rows if row["state"] == state][nth]


@pytest.fixture
def changed(part):
    return part("tools.world").changes


# ------------------------------------------------------------------ orders


async def test_get_order_shows_what_the_customer_needs(desk, orders) -> None:
    order = orders("open")
    found = await desk(order["customer_id"]).call("get_order", order_id=order["order_id"])
    assert found["status"] in ("processing", "packed")
    assert found["email"] == order["email"]
    assert found["total_cents"] == order["total_cents"]
    assert found["total"] == f"{order['total_cents'] // 100}.{order['total_cents'] % 100:02d} EUR"
    assert [item["name"] for item in found["items"]] == order["items"]
    assert all(item["name"] in found["products"] for item in found["items"])


async def test_list_orders_is_newest_first_and_bounded(desk, orders) -> None:
    customer = desk(orders("open")["customer_id"])
    found = await customer.call("list_orders", limit=2)
    assert len(found["orders"]) == 2 <= found["count"]
    assert f"{found['count']} order(s)" in found["summary"]
    with pytest.raises(ToolError, match="Only your own"):
        await customer.call(
            "list_orders", customer_id="C-1002" if customer.run.principal.user != "C-1002" else "C-1003"
        )
    with pytest.raises(ToolError, match="limit"):
        await customer.call("list_orders", limit=1000)


async def test_a_stranger_has_no_orders(desk) -> None:
    found = await desk("nobody").call("list_orders")
    assert found == {"count": 0, "orders": [], "summary": "You have no orders with us yet."}


@pytest.mark.parametrize(
    ("state", "shown", "late"),
    [
        ("open", "has not left our warehouse", False),
        ("travelling", "is on its way, expected on", False),
        ("late", "is late: it was expected on", True),
        ("returnable", "was delivered on", False),
        ("cancelled", "was cancelled", False),
    ],
)
async def test_track_shipment_in_every_state(desk, orders, state, shown, late) -> None:
    order = orders(state)
    found = await desk(order["customer_id"]).call("track_shipment", order_id=order["order_id"])
    assert shown in found["summary"]
    assert found["late"] is late
    assert bool(found["events"]) == (state not in ("open", "cancelled"))


async def test_cancel_order_only_before_it_is_shipped(desk, orders, changed) -> None:
    order = orders("open")
    customer = desk(order["customer_id"])
    await customer.call("cancel_order", order_id=order["order_id"])
    assert {"table": "orders", "key": order["order_id"], "op": "update", "columns": {"status": "cancelled"}} in changed(
        customer.world
    )
    with pytest.raises(ToolError, match="already cancelled"):
        await customer.call("cancel_order", order_id=order["order_id"])
    for state in ("travelling", "late", "returnable"):
        order = orders(state)
        with pytest.raises(ToolError, match="can no longer be cancelled"):
            await desk(order["customer_id"]).call("cancel_order", order_id=order["order_id"])


async def test_change_address_wants_a_real_address(desk, orders, changed) -> None:
    order = orders("open")
    customer = desk(order["customer_id"])
    await customer.call("change_address", order_id=order["order_id"], address="Lindenweg  12,  53113 Bonn")
    found = {(one["table"], one["op"]): one["columns"] for one in changed(customer.world)}
    assert found["orders", "update"] == {"address": ADDRESS}
    assert found["order_events", "insert"] == {"kind": "address", "detail": ADDRESS}
    with pytest.raises(ToolError, match="already goes to"):
        await customer.call("change_address", order_id=order["order_id"], address=ADDRESS)
    for wrong in (
        "somewhere in Bonn",
        "Lindenweg 12 Bonn",
        "12, 53113 Bonn",
        "<b>Weg</b> 1; DROP TABLE orders, 53113 Bonn",
    ):
        with pytest.raises(ToolError, match=r"street and number|address"):
            await customer.call("change_address", order_id=order["order_id"], address=wrong)
    shipped = orders("travelling")
    with pytest.raises(ToolError, match="only the carrier"):
        await desk(shipped["customer_id"]).call("change_address", order_id=shipped["order_id"], address=ADDRESS)


# ------------------------------------------------------------------ refunds


async def test_check_refund_says_how_much_or_why_not(desk, orders, part) -> None:
    order = orders("returnable")
    found = await desk(order["customer_id"]).call("check_refund", order_id=order["order_id"])
    assert found["refundable_cents"] == part("pipelines.support.desk").refundable(order) > 0
    for state, why in [
        ("over", "The 30 days"),
        ("spent", "refunded in full"),
        ("travelling", "not been delivered"),
        ("cancelled", "was cancelled"),
    ]:
        order = orders(state)
        with pytest.raises(ToolError, match=why):
            await desk(order["customer_id"]).call("check_refund", order_id=order["order_id"])


async def test_refunds_never_exceed_what_was_paid(desk, orders, part, changed) -> None:
    order = orders("returnable")
    left = part("pipelines.support.desk").refundable(order)
    customer = desk(order["customer_id"])
    refund = {"order_id": order["order_id"], "reason": "changed_mind"}
    with pytest.raises(ToolError, match="At most"):
        await customer.call("create_refund", amount_cents=left + 1, **refund)
    first = await customer.call("create_refund", amount_cents=left - 1, **refund)
    assert first["status"] == "approved"
    assert re.fullmatch(r"RF-\d{5}", first["refund_id"])
    with pytest.raises(ToolError, match=r"At most 0\.01 EUR"):
        await customer.call("create_refund", amount_cents=2, **refund)
    await customer.call("create_refund", amount_cents=1, **refund)
    with pytest.raises(ToolError, match="refunded in full"):
        await customer.call("create_refund", amount_cents=1, **refund)
    assert sum(one["columns"]["amount_cents"] for one in changed(customer.world)) == left


@pytest.mark.parametrize("amount", [0, -100, 10**9, 12.5, "100", True, None])
async def test_refund_amounts_are_whole_positive_cents(desk, orders, amount) -> None:
    order = orders("returnable")
    with pytest.raises(ToolError, match="amount_cents"):
        await desk(order["customer_id"]).call(
            "create_refund", order_id=order["order_id"], amount_cents=amount, reason="damaged"
        )


async def test_get_refund_by_its_number_or_its_order(desk, part) -> None:
    rows = part("pipelines.support.desk").desk().orders
    order = next(row for row in rows if row["refunds"])
    refund = order["refunds"][-1]
    customer = desk(order["customer_id"])
    by_number = await customer.call("get_refund", reference=refund["refund_id"])
    by_order = await customer.call("get_refund", reference=order["order_id"])
    assert by_number == by_order
    assert by_number["amount_cents"] == refund["amount_cents"]
    other = next(row for row in rows if row["customer_id"] != order["customer_id"])
    with pytest.raises(ToolError, match="cannot find refund"):
        await desk(other["customer_id"]).call("get_refund", reference=refund["refund_id"])
    without = next(row for row in rows if not row["refunds"])
    with pytest.raises(ToolError, match="no refund for order"):
        await desk(without["customer_id"]).call("get_refund", reference=without["order_id"])


# ------------------------------------------------------------------ inventory


async def test_stock_alternatives_and_reservations_agree(desk, part, changed) -> None:
    products = part("pipelines.support.desk").desk().products
    there = next(row for row in products if row["available"] >= 5)
    customer = desk("C-1001")
    before = await customer.call("check_stock", sku=there["sku"])
    assert before["in_stock"]
    assert before["available"] == there["available"]
    await customer.call("reserve_item", sku=there["sku"], quantity=2)
    after = await customer.call("check_stock", sku=there["sku"])
    assert after["available"] == before["available"] - 2
    assert {(one["table"], one["key"]) for one in changed(customer.world)} == {
        ("stock", there["sku"]),
        ("reservations", f"C-1001/{there['sku']}"),
    }
    gone = next(row for row in products if not row["available"])
    assert "sold out" in (await customer.call("check_stock", sku=gone["sku"]))["summary"]
    found = await customer.call("find_alternatives", sku=gone["sku"])
    assert found["alternatives"]
    assert all(item["category"] == gone["category"] and item["in_stock"] for item in found["alternatives"])
    with pytest.raises(ToolError, match="sold out"):
        await customer.call("reserve_item", sku=gone["sku"])


async def test_nobody_holds_the_whole_shelf(desk, part) -> None:
    row = max(part("pipelines.support.desk").desk().products, key=lambda one: one["available"])
    customer = desk("C-1001")
    await customer.call("reserve_item", sku=row["sku"], quantity=10)
    with pytest.raises(ToolError, match="you have 10 already"):
        await customer.call("reserve_item", sku=row["sku"], quantity=1)
    with pytest.raises(ToolError, match="quantity"):
        await customer.call("reserve_item", sku=row["sku"], quantity=11)
    few = next(one for one in part("pipelines.support.desk").desk().products if 0 < one["available"] < 10)
    with pytest.raises(ToolError, match=f"Only {few['available']} of"):
        await customer.call("reserve_item", sku=few["sku"], quantity=few["available"] + 1)


# ------------------------------------------------------------------ knowledge and documents


async def test_search_finds_the_article_and_survives_any_query(desk) -> None:
    customer = desk("C-1001")
    found = await customer.call("search_articles", query="return policy", limit=1)
    assert found["articles"][0]["article_id"] == "KB-101"
    assert "body" not in found["articles"][0], "bodies are untrusted and come from get_article alone"
    article = await customer.call("get_article", article_id="KB-101")
    assert len(article["body"]) > 200
    with pytest.raises(ToolError, match="None of our help articles"):
        await customer.call("search_articles", query='" xyzzy*')
    for query in ('"")', "a* OR b NEAR(c)", "title:x AND NOT", "' OR 1=1 --", "🛋️🛋️", "{body} : ^x", "- -"):
        with contextlib.suppress(ToolError):  # finds something or nothing; never the index's own syntax error
            assert (await customer.call("search_articles", query=query))["articles"]
    with pytest.raises(ToolError, match="no help article"):
        await customer.call("get_article", article_id="KB-999")


async def test_documents_are_listed_read_and_mailed(desk, orders, changed) -> None:
    order = orders("returnable")
    customer = desk(order["customer_id"])
    listed = await customer.call("list_documents", order_id=order["order_id"])
    assert [one["kind"] for one in listed["documents"]] == ["invoice", "delivery_note", "return_label"]
    assert all("text" not in one for one in listed["documents"]), (
        "bodies are untrusted and come from get_document alone"
    )
    invoice = listed["documents"][0]["document_id"]
    text = (await customer.call("get_document", document_id=invoice))["text"]
    assert order["order_id"].replace("SO-", "INV-") in text
    await customer.call("send_document", document_id=invoice, email=order["email"])
    assert changed(customer.world) == [
        {"table": "outbox", "key": invoice, "op": "insert", "columns": {"email": order["email"]}}
    ]
    open_order = orders("open")
    with pytest.raises(ToolError, match="no return label"):
        await desk(open_order["customer_id"]).call(
            "list_documents", order_id=open_order["order_id"], kind="return_label"
        )


@pytest.mark.parametrize(
    "address",
    [
        "someone@",
        "a@b@example.com",
        "a b@example.com",
        "a@example.com, b@example.com",
        "a@example.com\nBcc: b@example.com",
        '"a"@example.com',
        "a@-example.com",
    ],
)
async def test_a_document_goes_to_one_plain_address(desk, orders, address, changed) -> None:
    order = orders("returnable")
    customer = desk(order["customer_id"])
    listed = await customer.call("list_documents", order_id=order["order_id"], kind="invoice")
    with pytest.raises(ToolError, match="not one plain e-mail address"):
        await customer.call("send_document", document_id=listed["documents"][0]["document_id"], email=address)
    assert changed(customer.world) == []


# ------------------------------------------------------------------ ownership, idempotency, bounds: all tools alike


def _calls(order, refund, document):
    yield "get_order", {"order_id": order}
    yield "track_shipment", {"order_id": order}
    yield "cancel_order", {"order_id": order}
    yield "change_address", {"order_id": order, "address": ADDRESS}
    yield "check_refund", {"order_id": order}
    yield "get_refund", {"reference": order}
    yield "get_refund", {"reference": refund}
    yield "create_refund", {"order_id": order, "amount_cents": 100, "reason": "damaged"}
    yield "list_documents", {"order_id": order}
    yield "get_document", {"document_id": document}
    yield "send_document", {"document_id": document, "email": "thief@example.com"}


async def test_another_customers_things_read_exactly_like_things_that_do_not_exist(desk, part, changed) -> None:
    tables = part("pipelines.support.desk").desk()
    order = next(row for row in tables.orders if row["refunds"] and (row["order_id"], "invoice") in tables.documents)
    theirs = (order["order_id"], order["refunds"][0]["refund_id"], tables.documents[order["order_id"], "invoice"])
    nothing = ("SO-00000", "RF-00000", "DOC-000000")
    stranger = desk(next(row["customer_id"] for row in tables.customers if row["customer_id"] != order["customer_id"]))
    for (tool, given), (_, unknown) in zip(_calls(*theirs), _calls(*nothing), strict=True):
        with pytest.raises(ToolError) as foreign:
            await stranger.call(tool, **given)
        with pytest.raises(ToolError) as missing:
            await stranger.call(tool, **unknown)
        strip = lambda error: re.sub(r"(SO|RF|DOC)-\d+", "ID", str(error.value))  # noqa: E731
        assert strip(foreign) == strip(missing), tool
    assert changed(stranger.world) == []


async def test_staff_sees_every_customer(desk, orders) -> None:
    order = orders("open")
    staff = desk("agent-7", roles=("staff",))
    assert (await staff.call("get_order", order_id=order["order_id"]))["order_id"] == order["order_id"]
    assert (await staff.call("list_orders", customer_id=order["customer_id"]))["count"] > 0


async def test_the_same_key_does_an_effect_once_and_gives_the_same_result(desk, orders, part, changed) -> None:
    tables = part("pipelines.support.desk").desk()
    order, delivered = orders("open"), orders("returnable")
    product = next(row for row in tables.products if row["available"] > 5)
    document = tables.documents[delivered["order_id"], "invoice"]
    for user, tool, given in [
        (order["customer_id"], "cancel_order", {"order_id": order["order_id"]}),
        (order["customer_id"], "change_address", {"order_id": order["order_id"], "address": ADDRESS}),
        (
            delivered["customer_id"],
            "create_refund",
            {"order_id": delivered["order_id"], "amount_cents": 100, "reason": "other"},
        ),
        ("C-1001", "reserve_item", {"sku": product["sku"], "quantity": 2}),
        (delivered["customer_id"], "send_document", {"document_id": document, "email": delivered["email"]}),
    ]:
        customer = desk(user)
        first = await customer.call(tool, key="one", **given)
        after = changed(customer.world)
        assert await customer.call(tool, key="one", **given) == first
        assert changed(customer.world) == after, tool
        other = {**given, **({"order_id": orders("open", 1)["order_id"]} if tool == "cancel_order" else {})}
        if tool == "reserve_item":
            other["quantity"] = 3
        if other != given:
            with pytest.raises(ToolError, match="already used for a different change"):
                await customer.call(tool, key="one", **other)


async def test_a_refused_effect_is_not_remembered(desk, orders) -> None:
    order = orders("travelling")
    customer = desk(order["customer_id"])
    for _ in range(2):
        with pytest.raises(ToolError, match="can no longer be cancelled"):
            await customer.call("cancel_order", key="one", order_id=order["order_id"])


@pytest.mark.parametrize(
    "given",
    [
        {"order_id": "SO-1"},
        {"order_id": "so-12345"},
        {"order_id": "SO-12345\n"},
        {"order_id": "SO-12345' OR '1'='1"},
        {"order_id": 12345},
        {},
        {"order_id": "SO-12345", "admin": True},
    ],
)
async def test_arguments_have_one_canonical_form(desk, given) -> None:
    with pytest.raises(ToolError, match="get_order: "):
        await desk("C-1001").call("get_order", **given)
