"""Names of logs: which tenant a log belongs to is part of its name, and the name is its path in the audit folder.

`desk-0123456789ab` is a system log, `tenants/acme/desk-0123456789ab` a log of tenant `acme`. What is not a lower-case
letter, a digit, `_` or `-` is written as `=hh` per UTF-8 byte; a name too long for a folder as the hash of itself.

Invariant: two tenants never share a folder, on case-insensitive file systems either, and no tenant's name leaves
`tenants/`. It opens no log and believes no name: the first record and the signed checkpoint bind it.
"""

import hashlib
import re
from pathlib import Path

from agentops.errors import AuditError

TENANTS = "tenants"
NAME = re.compile(r"(?:tenants/[a-z0-9_=-]{1,200}/)?[a-z0-9][a-z0-9_-]{0,62}-[0-9a-f]{12}")
_LONGEST = 200  # bytes of a folder's name; file systems allow 255
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")


def tenant_of(value: object) -> str:
    """A record's "tenant", checked; "" is none.

    Raises:
        AuditError: it is not text.
    """
    if not isinstance(value, str):
        raise AuditError(f"a record's tenant is a {type(value).__name__}: it must be text")
    return value


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's folder; different for different tenants."""
    encoded = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in tenant.encode())
    if len(encoded) > _LONGEST:
        return "=h" + hashlib.sha256(tenant.encode()).hexdigest()  # no escape begins with =h
    return encoded


def prefix(tenant: str) -> str:
    """What the names of a tenant's logs begin with; "" for system logs."""
    return f"{TENANTS}/{tenant_folder(tenant)}/" if tenant else ""


def system_names(folder: Path) -> list[str]:
    """Names of the system logs; a `.checkpoint` without its `.log` counts, so that a removed log is noticed."""
    return _names(folder, "*")


def tenant_names(folder: Path, tenant: str) -> list[str]:
    """Names of one tenant's logs."""
    return _names(folder, f"{prefix(tenant)}*")


def log_names(folder: Path) -> list[str]:
    """Names of all logs: system logs first, then each tenant's."""
    return system_names(folder) + _names(folder, f"{TENANTS}/*/*")


def _names(folder: Path, pattern: str) -> list[str]:
    found = {
        path.relative_to(folder).with_suffix("").as_posix()
        for suffix in ("log", "checkpoint")
        for path in folder.glob(f"{pattern}.{suffix}")
    }
    return sorted(name for name in found if NAME.fullmatch(name))
