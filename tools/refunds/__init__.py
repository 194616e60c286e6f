"""Money given back: what may be refunded, the state of a refund, a new refund."""

from .tools import check_refund, create_refund, get_refund

__all__ = ["check_refund", "create_refund", "get_refund"]
