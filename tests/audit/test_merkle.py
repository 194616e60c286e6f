"""The tree against RFC 6962's vectors, and every proof by brute force for sizes 1 to 64."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.audit import merkle

# Leaves and roots of the reference implementation of Certificate Transparency (RFC 6962).
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def hashes(count: int) -> list[bytes]:
    return [merkle.leaf_hash(bytes([number])) for number in range(count)]


def recursive_root(leaves: list[bytes]) -> bytes:
    """The definition of RFC 9162 section 2.1.1, as written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return merkle.node_hash(recursive_root(leaves[:split]), recursive_root(leaves[split:]))


def test_vectors_of_the_rfc() -> None:
    tree = merkle.Tree()
    assert tree.root().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for leaf, root in zip(LEAVES, ROOTS, strict=True):
        tree.append(merkle.leaf_hash(leaf))
        assert tree.root().hex() == root


@pytest.mark.parametrize("size", range(1, 65))
def test_every_inclusion_proof_holds_and_no_other_leaf_passes(size: int) -> None:
    leaves = hashes(size)
    root = merkle.root(leaves)
    assert root == recursive_root(leaves)
    for index, leaf in enumerate(leaves):
        proof = merkle.inclusion_proof(leaves, index)
        assert merkle.verify_inclusion(leaf, index, size, proof, root)
        assert not merkle.verify_inclusion(merkle.leaf_hash(b"other"), index, size, proof, root)
        assert not merkle.verify_inclusion(leaf, size, size, proof, root)
        assert not merkle.verify_inclusion(leaf, index, size, [*proof, leaf], root)
        if proof:
            assert not merkle.verify_inclusion(leaf, index, size, proof[:-1], root)
            assert not merkle.verify_inclusion(leaf, (index + 1) % size, size, proof, root)


@pytest.mark.parametrize("size", range(1, 65))
def test_every_consistency_proof_holds_and_no_other_history_passes(size: int) -> None:
    leaves = hashes(size)
    root = merkle.root(leaves)
    for old in range(1, size + 1):
        proof = merkle.consistency_proof(leaves, old)
        before = merkle.root(leaves[:old])
        assert merkle.verify_consistency(old, size, before, root, proof)
        changed = merkle.root([merkle.leaf_hash(b"rewritten"), *leaves[1:old]])
        assert not merkle.verify_consistency(old, size, changed, root, proof)
        assert not merkle.verify_consistency(old, size, before, merkle.leaf_hash(b""), proof)
        if old < size:
            assert not merkle.verify_consistency(old, size, before, root, [*proof, root])


def test_an_inner_node_is_no_leaf() -> None:
    left, right = hashes(2)
    root = merkle.root([left, right])
    assert merkle.leaf_hash(left + right) != root
    assert merkle.leaf_hash(b"\x01" + left + right) != root


@given(st.integers(0, 200), st.data())
def test_a_tree_grown_in_two_steps_is_the_tree(size: int, data: st.DataObject) -> None:
    leaves = hashes(min(size, 255))
    cut = data.draw(st.integers(0, len(leaves)))
    tree = merkle.Tree()
    for leaf in leaves[:cut]:
        tree.append(leaf)
    assert tree.root() == recursive_root(leaves[:cut])
    for leaf in leaves[cut:]:
        tree.append(leaf)
    assert tree.root() == recursive_root(leaves)


def test_a_proof_for_a_leaf_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="5 does not exist"):
        merkle.inclusion_proof(hashes(3), 5)
    with pytest.raises(ValueError, match="between 1 and 3"):
        merkle.consistency_proof(hashes(3), 4)


# Consistency proofs of the reference implementation of Certificate Transparency over the leaves above.
CONSISTENCY = {
    (1, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (6, 8): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 5): (
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}


@pytest.mark.parametrize(("old", "new"), CONSISTENCY)
def test_consistency_vectors(old: int, new: int) -> None:
    leaves = [merkle.leaf_hash(leaf) for leaf in LEAVES]
    assert [item.hex() for item in merkle.consistency_proof(leaves[:new], old)] == list(CONSISTENCY[old, new])


@pytest.mark.parametrize("size", range(1, 65))
def test_a_range_leads_to_the_root_from_what_is_left_and_right_of_it(size: int) -> None:
    leaves = hashes(size)
    for first in range(size):
        before = merkle.Tree()
        before.extend(leaves[:first])
        for last in range(first + 1, size + 1, 1 + size // 16):
            tree = merkle.Tree(first, before.subtrees)
            for leaf in leaves[first:last]:
                tree.append(leaf)
            for level, node in merkle.rest_of_tree(leaves, last):
                tree.append(node, level)
            assert (tree.size, tree.root()) == (size, recursive_root(leaves))


@given(st.lists(st.integers(0, 40), max_size=8))
def test_many_leaves_at_once_are_the_same_as_one_by_one(counts: list[int]) -> None:
    leaves = [merkle.leaf_hash(number.to_bytes(2, "big")) for number in range(sum(counts))]
    at_once, single, done = merkle.Tree(), merkle.Tree(), 0
    for count in counts:
        at_once.extend(leaves[done : done + count])
        for leaf in leaves[done : done + count]:
            single.append(leaf)
        done += count
        assert at_once.subtrees == single.subtrees


def test_a_subtree_where_none_can_be_is_refused() -> None:
    tree = merkle.Tree()
    tree.append(merkle.EMPTY)
    with pytest.raises(ValueError, match="cannot start at leaf 1"):
        tree.append(merkle.EMPTY, 1)
    with pytest.raises(ValueError, match="has 2 subtrees"):
        merkle.Tree(3, [merkle.EMPTY])
