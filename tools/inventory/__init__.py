"""The catalogue and the shelf: stock, alternatives, reservations."""

from .tools import check_stock, find_alternatives, reserve_item

__all__ = ["check_stock", "find_alternatives", "reserve_item"]
