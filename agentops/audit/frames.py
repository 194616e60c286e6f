"""How records lie in a log file, and the one walk over it that recovery, verification and reading share.

A frame is `magic | check | length | leaf`; a leaf is `link | seal | envelope`. The link is the hash of the leaf before,
so one SHA-256 per record is the hash chain, the Merkle leaf and, by its first four bytes (`check`), the checksum; the
first link binds log name and key. The length is little-endian, so its last byte is the 0x00 that RFC 6962 puts before a
leaf: what is hashed is one slice of the file. The seal is a keyed hash that only the key's holder can make: it tells a
record that no checkpoint covers yet from a forged one.

Invariant: a walk reports only what it has checked (check, link, tree) and stops at the first byte that does not fit.
It decides nothing about what a damaged end means: `tail` says what was found, callers judge it.
"""

import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentops.audit import merkle

MAGIC = b"\xa6AL\x02"  # the last byte is the format: SHA-256, chained leaves, their hash as the checksum
MAX_RECORD = 1024 * 1024  # bytes of one record's JSON
MAX_LOG = 1024 * 1024 * 1024  # bytes; a log rotates long before
HEADER = struct.Struct("<4s4sI")
LINK = 32  # bytes of the previous leaf's hash at the start of a leaf
SEAL = 8  # bytes of the keyed hash after it
BODY = LINK + SEAL
KIND = BODY + 2  # the first letter of the envelope's first key: whose record it is
LOG = ord("l")  # of "log": the log's own; "record": a caller's
BATCH = 1024  # leaves whose inner nodes are hashed together

Tail = Literal["clean", "incomplete", "damaged", "damaged_inside", "broken_link", "forged"]


@dataclass(slots=True)
class Walk:
    """What a walk found. `tree` and `link` continue the log from `end`, the first byte after the last good frame."""

    tree: merkle.Tree
    link: bytes
    end: int = 0
    tail: Tail = "clean"
    roots: dict[int, bytes] = field(default_factory=dict)  # tree size -> root, for the sizes asked for
    control: list[tuple[int, bytes]] = field(default_factory=list)  # index and envelope of the log's own records


def genesis(name: str, public: bytes) -> bytes:
    """The link of a log's first leaf: no log can be renamed, copied over another or moved to another key."""
    return hashlib.sha256(b"agentops-audit/1\n" + name.encode() + b"\n" + public).digest()


def envelope(at_ms: int, record: bytes, own: bool) -> bytes:
    """A record's canonical JSON with its time (Unix milliseconds), under "log" when it is the log's own."""
    return (b'{"log":%b,"time_ms":%d}' if own else b'{"record":%b,"time_ms":%d}') % (record, at_ms)


def frame(link: bytes, body: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """An envelope as the next frame after `link`, and the new link (which is the record's leaf hash)."""
    leaf = link + seal(link + body, secret) + body
    hashed = merkle.leaf_hash(leaf)
    return HEADER.pack(MAGIC, hashed[:4], len(leaf)) + leaf, hashed


def seal(linked: bytes, secret: bytes) -> bytes:
    """Keyed BLAKE2b of link and envelope, 8 bytes."""
    return hashlib.blake2b(linked, digest_size=SEAL, key=secret).digest()


def walk(
    data: bytes, name: str, public: bytes, sizes: Collection[int] = (), secret: bytes = b"", signed: int = 0
) -> Walk:
    """Check every frame of a log from its start.

    Args:
        data: the whole file.
        name: the log's name, without a suffix.
        public: the 32 bytes of the key that signs its checkpoints.
        sizes: tree sizes whose roots are wanted.
        secret: what seals are made with; empty: seals are not checked (an outsider cannot).
        signed: records that a checkpoint covers; with a secret, the seals of those after it are checked.
    """
    # One flat loop over locals: this is the verifier's hot path (goal 300,000 records a second).
    unpack, sha256, shortest, longest = HEADER.unpack_from, hashlib.sha256, KIND, MAX_RECORD + BODY
    found = Walk(merkle.Tree(), genesis(name, public))
    tree, roots, control = found.tree, found.roots, found.control
    stops = sorted({size for size in sizes if size > 0}, reverse=True)
    if 0 in sizes:
        roots[0] = merkle.EMPTY
    hashes: list[bytes] = []
    link, size, offset, total = found.link, 0, 0, len(data)
    stop = min(stops[-1] if stops else BATCH, BATCH)
    unsealed = signed if secret else MAX_LOG  # no log has so many records
    tail: Tail = "clean"
    while offset < total:
        start = offset + 12
        if start > total:
            tail = "incomplete"
            break
        magic, check, length = unpack(data, offset)
        if magic != MAGIC or length > longest or length <= shortest:
            tail = "damaged"
            break
        end = start + length
        if end > total:
            tail = "incomplete"
            break
        leaf = data[start - 1 : end]  # with the zero byte before it
        hashed = sha256(leaf).digest()
        if hashed[:4] != check:
            tail = "damaged"
            break
        if leaf[1:33] != link:
            tail = "broken_link"
            break
        if size >= unsealed and seal(link + leaf[BODY + 1 :], secret) != leaf[LINK + 1 : BODY + 1]:
            tail = "forged"
            break
        if leaf[KIND + 1] == LOG:
            control.append((size, leaf[BODY + 1 :]))
        link = hashed
        hashes.append(hashed)
        offset = end
        size += 1
        if size == stop:
            tree.extend(hashes)
            hashes.clear()
            if stops and size == stops[-1]:
                roots[stops.pop()] = tree.root()
            stop = min(stops[-1] if stops else size + BATCH, size + BATCH)
    tree.extend(hashes)
    if tail in ("incomplete", "damaged") and _good_frame_after(data, offset + 1):
        tail = "damaged_inside"
    found.link, found.end, found.tail = link, offset, tail
    return found


def leaves(data: bytes, end: int) -> Iterator[tuple[int, bytes]]:
    """Offset and leaf of each whole frame before `end`. It checks nothing: a walk does."""
    offset = 0
    while offset + HEADER.size <= end:
        start = offset + HEADER.size
        length = HEADER.unpack_from(data, offset)[2]
        if start + length > end:  # torn, or being written now
            return
        yield offset, data[start : start + length]
        offset = start + length


def leaf_hashes(data: bytes, end: int) -> list[bytes]:
    """Leaf hashes of the frames before `end`, for proofs."""
    return [merkle.leaf_hash(leaf) for _, leaf in leaves(data, end)]


def _good_frame_after(data: bytes, offset: int) -> bool:
    """Whether any whole frame lies at or after `offset`: then the bytes before it are no torn end."""
    for _ in range(10_000):
        offset = data.find(MAGIC, offset)
        if offset < 0:
            return False
        if offset + 12 <= len(data):
            _, check, length = HEADER.unpack_from(data, offset)
            leaf = data[offset + 12 : offset + 12 + length] if KIND < length <= MAX_RECORD + BODY else b""
            if leaf and len(leaf) == length and merkle.leaf_hash(leaf).startswith(check):
                return True
        offset += 1
    return True  # thousands of frame starts and none whole: no crash writes that
