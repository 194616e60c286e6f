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
        if len(subtrees) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} subtrees, not {len(subtrees)}")
        self.size = size
        self._subtrees = list(subtrees)  # largest first; one for each set bit of `size`

    def append(self, node: bytes, level: int = 0) -> None:
        """Add a leaf by its 32-byte hash, or at once 2^level leaves by the root over them.

        Raises:
            ValueError: a subtree of that height cannot start at this size.
        """
        rest = self.size >> level
        if rest << level != self.size:
            raise ValueError(f"a subtree of 2^{level} leaves cannot start at leaf {self.size}")
        subtrees = self._subtrees
        while rest & 1:
            node = hashlib.sha256(b"\x01" + subtrees.pop() + node).digest()
            rest >>= 1
        subtrees.append(node)
        self.size += 1 << level

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add leaves by their hashes, a level at a time: a third faster than one by one."""
        sha256, subtrees, items, made = hashlib.sha256, self._subtrees, list(leaves), []
        size = self.size
        self.size += len(items)
        while items:
            if size & 1:
                items.insert(0, subtrees.pop())
            if len(items) & 1:
                made.append(items.pop())
            items = [
                sha256(b"\x01" + left + right).digest() for left, right in zip(items[::2], items[1::2], strict=True)
            ]
            size >>= 1
        subtrees.extend(reversed(made))

    @property
    def subtrees(self) -> tuple[bytes, ...]:
        """Roots of the perfect subtrees, largest first: with `size` they are the whole tree."""
        return tuple(self._subtrees)

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
    tree.extend(leaves)
    return tree.root()


def rest_of_tree(leaves: Sequence[bytes], start: int) -> list[tuple[int, bytes]]:
    """What `Tree.append` needs to grow from `start` leaves to all of them: (level, root) of the largest subtrees.

    With the subtrees of the first leaves and a range of leaves this proves the whole range by one root.
    """
    nodes: list[tuple[int, bytes]] = []
    while start < len(leaves):
        level = (len(leaves) - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        nodes.append((level, root(leaves[start : start + (1 << level)])))
        start += 1 << level
    return nodes


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Audit path of leaf `index` (0-based) in the tree over all `leaves`, RFC 9162 section 2.1.3.1.

    Raises:
        ValueError: there is no such leaf.
    """
    return inclusion_path(levels(leaves), index)


def levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Every node of the tree over leaf hashes, from the leaves up: what many proofs of one tree share.

    A node without a partner goes up as it is, which gives the tree of RFC 9162 section 2.1.1.
    """
    rows = [list(leaves)]
    while len(rows[-1]) > 1:
        row = rows[-1]
        above = [node_hash(left, right) for left, right in zip(row[::2], row[1::2], strict=False)]
        rows.append(above + row[len(above) * 2 :])
    return rows


def inclusion_path(rows: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """As `inclusion_proof`, from the `levels` of the tree.

    Raises:
        ValueError: there is no such leaf.
    """
    if not 0 <= index < len(rows[0]):
        raise ValueError(f"leaf {index} does not exist: the tree has {len(rows[0])} leaves")
    path: list[bytes] = []
    for row in rows[:-1]:
        if index ^ 1 < len(row):
            path.append(row[index ^ 1])
        index >>= 1
    return path


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
