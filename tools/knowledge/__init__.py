"""Help articles: search and read."""

from .tools import get_article, search_articles

__all__ = ["get_article", "search_articles"]
