"""Two tools: a cached read, and a write that happens once however often it is retried."""

from typing import Annotated, Any

from pydantic import Field

from agentops.act import CacheRule, Context, tool
from agentops.errors import ToolError

from ..world import World

BookId = Annotated[str, Field(pattern=r"^B-\d{3}$", description="book number, like B-101")]


@tool(effect="read", scopes={"books:read"}, timeout_s=5.0, cache=CacheRule(ttl_s=60, tags=("books",)))
async def find_books(
    ctx: Context,
    query: Annotated[str, Field(min_length=1, max_length=200)],
    limit: Annotated[int, Field(ge=1, le=5)] = 3,
) -> dict[str, Any]:
    """Find books by words of their title or author: number, price and how many are on the shelf."""
    world: World = ctx.world
    words = [word for word in query.lower().split() if len(word) > 2] or [query.lower()]
    with world.read() as db:
        rows = db.execute("SELECT * FROM books ORDER BY book_id").fetchall()
    found = [row for row in rows if all(word in f"{row['title']} {row['author']}".lower() for word in words)][:limit]
    if not found:
        raise ToolError(f"We have no book that matches {query!r}.")
    books = [{key: row[key] for key in ("book_id", "title", "author", "price_cents", "available")} for row in found]
    said = "; ".join(
        f"{one['title']} by {one['author']}, {one['price_cents'] / 100:.2f} EUR, {one['available']} on the shelf"
        for one in books
    )
    return {"count": len(books), "books": books, "summary": f"We have: {said}."}


@tool(effect="write", scopes={"books:write"}, timeout_s=5.0, invalidates=("books",), idempotent=True)
async def reserve_book(
    ctx: Context, book_id: BookId, quantity: Annotated[int, Field(ge=1, le=5)] = 1
) -> dict[str, Any]:
    """Hold copies of a book at the counter for the customer who asks."""
    world: World = ctx.world
    user = ctx.run.principal.user
    with world.write() as db:
        book = db.execute("SELECT * FROM books WHERE book_id = ?", (book_id,)).fetchone()
        if book is None:
            raise ToolError(f"There is no book {book_id}.")
        done = db.execute("SELECT 1 FROM done WHERE key = ?", (ctx.idempotency_key,)).fetchone()
        if done is None:
            if book["available"] < quantity:
                raise ToolError(f"Only {book['available']} of {book['title']} are on the shelf.")
            db.execute("UPDATE books SET available = available - ? WHERE book_id = ?", (quantity, book_id))
            db.execute(
                "INSERT INTO reservations VALUES (?, ?, ?) "
                "ON CONFLICT (user, book_id) DO UPDATE SET quantity = quantity + excluded.quantity",
                (user, book_id, quantity),
            )
            if ctx.idempotency_key:
                db.execute("INSERT INTO done VALUES (?)", (ctx.idempotency_key,))
    held = f"{quantity} x {book['title']} by {book['author']}"
    return {"book_id": book_id, "quantity": quantity, "summary": f"{held} is held for you at the counter."}
