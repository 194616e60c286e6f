"""Document tools. Papers belong to an order and are seen by whoever may see the order.

Invariant: a document leaves the company only through the outbox, one row per mail, to the address that the policies
decided on. Which addresses are allowed is theirs to say.
"""

import sqlite3
from typing import Annotated, Any, Literal

from pydantic import Field

from agentops.act import CacheRule, Context, Email, Labels, tool
from agentops.errors import ToolError

from ..access import OrderId, day, owned_order
from ..world import TODAY, World

DocumentId = Annotated[str, Field(pattern=r"^DOC-\d{6}$", description="document number, like DOC-300001")]
Kind = Literal["any", "invoice", "delivery_note", "return_label"]


@tool(
    effect="read",
    scopes={"documents:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=120, tags=("order:{order_id}",)),
    labels=Labels("trusted", "personal"),
)
async def list_documents(ctx: Context, order_id: OrderId, kind: Kind = "any") -> dict[str, Any]:
    """List the papers of an order (numbers and titles, no content), all or of one kind."""
    world: World = ctx.world
    await world.latency("list_documents", {"order_id": order_id, "kind": kind}, ctx.clock)
    with world.read() as db:
        owned_order(db, ctx.run.principal, order_id)
        rows = db.execute(
            "SELECT document_id, kind, title, created_on FROM documents WHERE order_id = ? AND (? = 'any' OR kind = ?)"
            " ORDER BY created_on, document_id",
            (order_id, kind, kind),
        ).fetchall()
    if not rows:
        wanted = "document" if kind == "any" else kind.replace("_", " ")
        raise ToolError(f"There is no {wanted} for order {order_id}.")
    return {"order_id": order_id, "documents": [{**dict(row), "created_on": day(row["created_on"])} for row in rows]}


@tool(
    effect="read",
    scopes={"documents:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=120, tags=("document:{document_id}",)),
    labels=Labels("untrusted", "personal"),
)
async def get_document(ctx: Context, document_id: DocumentId) -> dict[str, Any]:
    """Read the text of one paper."""
    world: World = ctx.world
    await world.latency("get_document", {"document_id": document_id}, ctx.clock)
    with world.read() as db:
        row = _document(db, ctx, document_id)
    return {key: row[key] for key in ("document_id", "order_id", "kind", "title", "text")}


@tool(
    effect="egress",
    scopes={"documents:read", "documents:send"},
    timeout_s=10.0,
    invalidates=("document:{document_id}",),
    idempotent=True,
    labels=Labels("trusted", "personal"),
)
async def send_document(ctx: Context, document_id: DocumentId, email: Email) -> dict[str, Any]:
    """Mail a copy of one paper to an e-mail address."""
    world: World = ctx.world
    given = {"document_id": document_id, "email": email}
    await world.latency("send_document", given, ctx.clock)

    def work(db: sqlite3.Connection) -> dict[str, Any]:
        row = _document(db, ctx, document_id)
        number = db.execute("SELECT count(*) FROM outbox").fetchone()[0] + 1
        db.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?)", (f"ML-{number:05d}", document_id, email, TODAY.isoformat())
        )
        return {
            "document_id": document_id,
            "title": row["title"],
            "email": email,
            "summary": f"{row['title']} is on its way to {email}.",
        }

    return await world.once(ctx.idempotency_key, ctx.run.principal.user, "send_document", given, work)


def _document(db: sqlite3.Connection, ctx: Context, document_id: str) -> sqlite3.Row:
    row = db.execute("SELECT * FROM documents WHERE document_id = ?", (document_id,)).fetchone()
    try:
        owned_order(db, ctx.run.principal, row["order_id"] if row is not None else "")
    except ToolError:
        raise ToolError(f"I cannot find document {document_id} in your account.") from None
    return row
