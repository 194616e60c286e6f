"""Knowledge tools over SQLite's full-text index.

Invariant: a search returns only what the support team wrote itself (ids, titles, summaries: trusted); bodies may quote
customers and suppliers and come from `get_article` alone, labelled untrusted.
"""

import re
from typing import Annotated, Any

from pydantic import Field

from agentops.act import CacheRule, Context, Labels, tool
from agentops.errors import ToolError

from ..world import World

_WORD = re.compile(r"[^\W_]{2,30}")
MOST_WORDS = 12


@tool(
    effect="read",
    scopes={"knowledge:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=600, tags=("articles",), shared=True),
    labels=Labels("trusted", "public"),
)
async def search_articles(
    ctx: Context,
    query: Annotated[str, Field(min_length=2, max_length=200)],
    limit: Annotated[int, Field(ge=1, le=10)] = 3,
) -> dict[str, Any]:
    """Search the help articles by words; best first, with a one-sentence summary each."""
    world: World = ctx.world
    await world.latency("search_articles", {"query": query, "limit": limit}, ctx.clock)
    # Quoted words joined by OR: nothing in the query can be read as an operator of the index.
    words = [f'"{word}"' for word in _WORD.findall(query.lower())[:MOST_WORDS]]
    rows = []
    if words:
        with world.read() as db:
            rows = db.execute(
                "SELECT a.article_id, a.topic, a.title, a.summary FROM article_index"
                " JOIN articles a ON a.id = article_index.rowid WHERE article_index MATCH ?"
                " ORDER BY bm25(article_index, 6.0, 3.0, 1.0), a.article_id LIMIT ?",
                (" OR ".join(words), limit),
            ).fetchall()
    if not rows:
        raise ToolError("None of our help articles is about that.")
    return {"query": query, "count": len(rows), "articles": [dict(row) for row in rows]}


@tool(
    effect="read",
    scopes={"knowledge:read"},
    timeout_s=5.0,
    cache=CacheRule(ttl_s=600, tags=("articles",), shared=True),
    labels=Labels("untrusted", "public"),
)
async def get_article(ctx: Context, article_id: Annotated[str, Field(pattern=r"^KB-\d{3}$")]) -> dict[str, Any]:
    """Read one help article in full."""
    world: World = ctx.world
    await world.latency("get_article", {"article_id": article_id}, ctx.clock)
    with world.read() as db:
        row = db.execute(
            "SELECT article_id, topic, title, summary, body FROM articles WHERE article_id = ?", (article_id,)
        ).fetchone()
    if row is None:
        raise ToolError(f"There is no help article {article_id}.")
    return dict(row)
