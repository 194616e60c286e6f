"""A witness's signature under someone else's checkpoint: "at this time I saw this head, and nothing before it changed".

Invariant: the time is part of what is signed. It checks no consistency: `witness` does before it signs.
Format: c2sp.org/tlog-cosignature, version 1 (algorithm byte 0x04 = Ed25519 over a timestamped message).
"""

import base64
import struct

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentops.audit import notes
from agentops.errors import AuditError

ALGORITHM = b"\x04"
_SIGNED = struct.Struct(">4sQ64s")  # key id, seconds since the epoch, signature


def cosign(note: bytes, name: str, key: Ed25519PrivateKey, at_s: int) -> bytes:
    """The signature line of witness `name` under `note`, to be appended to it."""
    signature = key.sign(_message(note, at_s))
    signed = _SIGNED.pack(notes.key_id(notes.public_bytes(key), name, ALGORITHM), at_s, signature)
    return f"— {name} {base64.b64encode(signed).decode()}\n".encode()


def cosigned_at(note: bytes, lines: bytes, verifier: str) -> int:
    """Seconds since the epoch at which the witness with this verifier key signed `note`.

    Args:
        note: the log's own signed note.
        lines: signature lines that witnesses added.
        verifier: the witness's key, as `notes.verifier_key` writes it.

    Raises:
        AuditError: the witness did not sign it, or the verifier key is not one.
    """
    name, public = notes.parse_verifier_key(verifier, ALGORITHM)
    for line in lines.split(b"\n"):
        try:
            found, encoded = line.decode().removeprefix("— ").split(" ")
            identifier, at_s, signature = _SIGNED.unpack(base64.b64decode(encoded, validate=True))
        except (ValueError, struct.error):
            continue
        if found == name and identifier == notes.key_id(public, name, ALGORITHM):
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(signature, _message(note, at_s))
            except InvalidSignature:
                continue
            return at_s
    raise AuditError(f"the witness {name!r} did not sign this head")


def split(note: bytes) -> tuple[bytes, bytes]:
    """A cosigned note as the log's own note (with its one signature) and the lines that witnesses added."""
    text, separator, signatures = note.partition(b"\n\n")
    first, _, rest = signatures.partition(b"\n")
    return text + separator + first + b"\n", rest


def _message(note: bytes, at_s: int) -> bytes:
    text = note.partition(b"\n\n")[0] + b"\n"
    return b"cosignature/v1\ntime %d\n" % at_s + text
