"""Papers of an order: list, read, mail a copy."""

from .tools import get_document, list_documents, send_document

__all__ = ["get_document", "list_documents", "send_document"]
