"""Orders and parcels: look up, track, cancel, readdress."""

from .changes import cancel_order, change_address
from .lookups import get_order, list_orders, track_shipment

__all__ = ["cancel_order", "change_address", "get_order", "list_orders", "track_shipment"]
