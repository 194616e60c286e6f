"""Checkpoints as C2SP signed notes, and the Ed25519 key they are signed with.

Invariant: a note is accepted only when its text is exactly what the key signed. The private key is created once,
readable by its owner alone, and never leaves this module. Keys are not rotated or anchored here.
Formats: c2sp.org/signed-note and c2sp.org/tlog-checkpoint (algorithm byte 0x01 = Ed25519).
"""

import base64
import binascii
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentops.errors import AuditError

ALGORITHM = b"\x01"
KEY_NAME = "agentops-audit"
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")
_NOTE_LIMIT = 4096  # bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed statement: log `log` had `size` records with this tree root at `at_ms` (Unix milliseconds)."""

    log: str
    size: int
    root: bytes
    at_ms: int


def public_bytes(key: Ed25519PrivateKey | Ed25519PublicKey) -> bytes:
    """The 32 raw bytes of the public key."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def key_id(public: bytes, name: str = KEY_NAME, algorithm: bytes = ALGORITHM) -> bytes:
    """Four bytes that tell keys of one name apart: SHA-256(name || newline || algorithm || key), truncated."""
    return hashlib.sha256(name.encode() + b"\n" + algorithm + public).digest()[:4]


def verifier_key(public: bytes, name: str = KEY_NAME, algorithm: bytes = ALGORITHM) -> str:
    """A public key as C2SP signed-note writes it: name, key id, base64 of algorithm and key."""
    return f"{name}+{key_id(public, name, algorithm).hex()}+{base64.b64encode(algorithm + public).decode()}"


def parse_verifier_key(text: str, algorithm: bytes = ALGORITHM) -> tuple[str, bytes]:
    """Name and 32 raw bytes of a verifier key.

    Raises:
        AuditError: it is not one, or is of another algorithm.
    """
    try:
        name, _, encoded = text.split("+", 2)
        public = base64.b64decode(encoded, validate=True)[1:]
    except ValueError:
        name, public = "", b""
    # Writing it again refuses every other spelling of the same key, and an identifier that does not fit.
    if not name or len(public) != 32 or verifier_key(public, name, algorithm) != text:
        raise AuditError(f"{text[:120]!r} is not a verifier key name+id+base64 of algorithm {algorithm.hex()}")
    return name, public


def seal_secret(key: Ed25519PrivateKey) -> bytes:
    """What the seals of this key's records are made with: derived, so that no second secret must be kept."""
    raw = key.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    return hashlib.sha256(b"agentops-audit seal\n" + raw).digest()


def sign(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> bytes:
    """The checkpoint as a signed note."""
    root = base64.b64encode(checkpoint.root).decode()
    text = f"{checkpoint.log}\n{checkpoint.size}\n{root}\ntime {checkpoint.at_ms}\n".encode()
    signature = base64.b64encode(key_id(public_bytes(key)) + key.sign(text)).decode()
    return text + f"\n— {KEY_NAME} {signature}\n".encode()


def open_note(note: bytes, public: bytes) -> Checkpoint:
    """The checkpoint in a note, if `public` signed exactly these bytes.

    Raises:
        AuditError: not a checkpoint, or not signed by this key.
    """
    body, separator, signature_line = note.partition(b"\n\n")
    text = body + b"\n"
    prefix = f"— {KEY_NAME} ".encode()
    whole = separator and signature_line.startswith(prefix) and signature_line.endswith(b"\n")
    if len(note) > _NOTE_LIMIT or not whole:
        raise AuditError("not a signed checkpoint")
    try:
        signature = base64.b64decode(signature_line[len(prefix) : -1], validate=True)
    except binascii.Error:
        raise AuditError("the checkpoint's signature is not base64") from None
    # Re-encoding refuses base64 with stray padding bits: one note, one sequence of bytes.
    if base64.b64encode(signature) != signature_line[len(prefix) : -1] or signature[:4] != key_id(public):
        raise AuditError("the checkpoint is signed by another key")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature[4:], text)
    except (InvalidSignature, ValueError):
        raise AuditError("the checkpoint's signature does not fit its text") from None
    lines = text.decode("utf-8", "replace").split("\n")[:-1]
    if len(lines) != 4 or not _SIZE.fullmatch(lines[1]) or not lines[3].startswith("time "):
        raise AuditError("the checkpoint's text is not origin, size, root and time")
    return Checkpoint(lines[0], int(lines[1]), base64.b64decode(lines[2]), int(lines[3][5:]))


def load_or_create_key(folder: Path, name: str = KEY_NAME, algorithm: bytes = ALGORITHM) -> Ed25519PrivateKey:
    """The signing key in `folder`/key (mode 0600), created on first use; the verifier key `name` lies beside it.

    Raises:
        AuditError: the key is not readable, not Ed25519, or readable by others.
    """
    path = folder / "key"
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        create_once(path, pem, 0o600)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise AuditError(f"the audit key {str(path)!r} can be read by others: chmod 600 it, or replace it")
    try:
        loaded = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise AuditError(f"the audit key {str(path)!r} cannot be read: {type(error).__name__}") from None
    if not isinstance(loaded, Ed25519PrivateKey):
        raise AuditError(f"the audit key {str(path)!r} is not an Ed25519 key")
    vkey = verifier_key(public_bytes(loaded), name, algorithm).encode() + b"\n"
    create_once(folder / "key.pub", vkey, 0o644)
    if (folder / "key.pub").read_bytes() != vkey:
        raise AuditError(f"{str(folder / 'key.pub')!r} does not belong to the audit key beside it: restore either")
    return loaded


def load_public_key(place: Path) -> bytes:
    """The 32 raw bytes of the audit key in a key.pub file, or in the folder that has one.

    Raises:
        AuditError: missing, or not a verifier key of an audit log.
    """
    path = place / "key.pub" if place.is_dir() else place
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(_NOTE_LIMIT)
    except (OSError, ValueError) as error:
        raise AuditError(
            f"the audit public key {str(path)!r} cannot be read ({type(error).__name__}): "
            "restore it, or verify with a copy kept elsewhere"
        ) from None
    name, public = parse_verifier_key(text.removesuffix("\n"))
    if name != KEY_NAME:
        raise AuditError(f"{str(path)!r} is not an Ed25519 verifier key named {KEY_NAME!r}")
    return public


def create_once(path: Path, content: bytes, mode: int) -> None:
    """Write a new file durably and atomically; of several processes the first wins and the others change nothing."""
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_durably(temporary, content, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was first: its file stands
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file's whole content, or leave it as it was: a crash never shows half of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_durably(temporary, content, 0o644)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_durably(path: Path, content: bytes, mode: int) -> None:
    """Create `path` with exactly `mode` and flush it to the disk; when that fails, nothing of it is left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)  # a full disk would collect one every few seconds
        raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a created or renamed file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
