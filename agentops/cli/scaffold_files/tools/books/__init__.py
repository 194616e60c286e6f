"""The shop's books: which there are, and holding one for a customer."""

from .tools import find_books, reserve_book

__all__ = ["find_books", "reserve_book"]
