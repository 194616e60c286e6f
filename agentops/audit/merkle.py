"""The Merkle tree of RFC 6962 and RFC 9162, section 2.1: roots, inclusion proofs and consistency proofs.

Invariant: leaves and inner nodes are hashed under different prefixes, so neither can be passed off as the other.
Pure functions over 32-byte hashes and one incremental tree; it stores nothing.
"""

import hashlib
from collections.abc import Sequence

EMPTY = hashlib.sha256(b"").digest()  # root of a tree without leaves


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """A tree that grows by one leaf at a time and keeps only the roots of its perfect subtrees: O(log n) memory."""

    __slots__ = ("_subtrees", "size")

    def __init__(self, size: int = 0, subtrees: Sequence[bytes] = ()) -> None:
        self.size = size
        self._subtrees = list(subtrees)  # largest first; one for each set bit of `size`

    def append(self, leaf: bytes) -> None:
        """Add a leaf by its 32-byte hash."""
        subtrees = self._subtrees
        size = self.size
        while size & 1:
            leaf = hashlib.sha256(b"\x01" + subtrees.pop() + leaf).digest()
            size >>= 1
        subtrees.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """32-byte root of everything appended so far."""
        if not self._subtrees:
            return EMPTY
        root = self._subtrees[-1]
        for left in reversed(self._subtrees[:-1]):
            root = node_hash(left, root)
        return root


def root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes, RFC 9162 section 2.1.1."""
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Audit path of leaf `index` (0-based) in the tree over all `leaves`, RFC 9162 section 2.1.3.1.

    Raises:
        ValueError: there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"leaf {index} does not exist: the tree has {len(leaves)} leaves")
    path: list[bytes] = []
    low, high = 0, len(leaves)
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(root(leaves[middle:high]))
            high = middle
        else:
            path.append(root(leaves[low:middle]))
            low = middle
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether `proof` shows that `leaf` is leaf `index` of the tree of `size` leaves, RFC 9162 section 2.1.3.2."""
    if not 0 <= index < size or any(len(item) != 32 for item in (leaf, *proof)):
        return False
    first, last = index, size - 1
    current = leaf
    for item in proof:
        if last == 0:
            return False
        if first & 1 or first == last:
            current = node_hash(item, current)
            while not first & 1 and first != 0:
                first, last = first >> 1, last >> 1
        else:
            current = node_hash(current, item)
        first, last = first >> 1, last >> 1
    return last == 0 and current == expected_root


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Proof that the tree over the first `old_size` leaves is a prefix of the whole, RFC 9162 section 2.1.4.1.

    Raises:
        ValueError: `old_size` is not between 1 and the number of leaves.
    """
    if not 1 <= old_size <= len(leaves):
        raise ValueError(f"old size {old_size} must be between 1 and {len(leaves)}")
    path: list[bytes] = []
    low, high, whole = 0, len(leaves), True  # whole: the old tree's subtree starts at its own left edge
    old = old_size
    while old != high:
        middle = low + _split(high - low)
        if old <= middle:
            path.append(root(leaves[middle:high]))
            high = middle
        else:
            path.append(root(leaves[low:middle]))
            low, whole = middle, False
    if not whole:
        path.append(root(leaves[low:high]))
    return path[::-1]


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows the old tree to be a prefix of the new one, RFC 9162 section 2.1.4.2."""
    if not 1 <= old_size <= new_size or any(len(item) != 32 for item in proof):
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    items = list(proof)
    if old_size & (old_size - 1) == 0:
        items.insert(0, old_root)
    if not items:
        return False
    first, last = old_size - 1, new_size - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    old = new = items[0]
    for item in items[1:]:
        if last == 0:
            return False
        if first & 1 or first == last:
            old, new = node_hash(item, old), node_hash(item, new)
            while not first & 1 and first != 0:
                first, last = first >> 1, last >> 1
        else:
            new = node_hash(new, item)
        first, last = first >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _split(size: int) -> int:
    """Largest power of two smaller than `size` (size > 1)."""
    return 1 << (size - 1).bit_length() - 1
