"""Random attacks on an audit folder whose heads an anchor keeps: each is done to a fresh copy, then verified.

Kinds: a bit, a byte range, records removed, swapped or doubled, a log cut (alone, or put back
with its older checkpoint), a tenant removed, renamed or put over another, the whole folder put back, and rewrites with
the stolen key of one record, of its checkpoint and of the system log. An attack that changed no byte is drawn again.
"""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentops.audit import AuditLog, anchors, frames, heads, logfile, names, notes, proofs, verify

TENANTS = ("acme", "Beta.Corp@eu", "gamma", "delta")
Attack = Callable[[Path, Path, random.Random], None]  # the folder, an earlier state of it


def run(place: Path, count: int, rng: random.Random) -> tuple[int, dict[str, int]]:
    """How many attacks were not caught, and how many of each kind there were."""
    now, old, copy = place / "now", place / "old", place / "copy"
    anchor = anchors.open_anchor(f"file:{place / 'anchor'}")
    for state in range(3):
        with AuditLog(now, "desk") as log:
            for number in range(20):
                for tenant in TENANTS:
                    log.post({"type": "tool.intent", "tenant": tenant, "number": state * 20 + number})
        for head in heads.heads(now, notes.load_public_key(now)):
            anchor.publish(head)
        if state == 0:
            shutil.copytree(now, old)
    public = notes.load_public_key(now)
    claims = anchors.claims(anchor, public)
    if not verify(now, public, claims).ok:
        raise AssertionError("the folder does not verify before it is attacked")
    before = contents(now)
    missed, kinds = 0, Counter[str]()
    while kinds.total() < count:
        shutil.copytree(now, copy)
        attack = rng.choice(ATTACKS)
        attack(copy, old, rng)
        if contents(copy) != before:
            kinds[attack.__name__] += 1
            missed += verify(copy, public, claims).ok
        shutil.rmtree(copy)
    return missed, dict(kinds)


def contents(folder: Path) -> dict[str, bytes]:
    """The files that verification reads."""
    files = [path for path in folder.rglob("*") if path.suffix in (".log", ".checkpoint")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def some_log(folder: Path, rng: random.Random) -> tuple[Path, list[bytes]]:
    """A log and its frames."""
    path = folder / f"{rng.choice(names.log_names(folder))}.log"
    data = path.read_bytes()
    offsets = [offset for offset, _ in frames.leaves(data, len(data))] + [len(data)]
    return path, [data[start:end] for start, end in itertools.pairwise(offsets)]


def flip_a_bit(folder: Path, old: Path, rng: random.Random) -> None:
    name = rng.choice(names.log_names(folder))
    path = folder / f"{name}.{rng.choice(['log', 'log', 'log', 'checkpoint'])}"
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def overwrite_bytes(folder: Path, old: Path, rng: random.Random) -> None:
    path, _ = some_log(folder, rng)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at + rng.randrange(64) :])


def remove_records(folder: Path, old: Path, rng: random.Random) -> None:
    path, parts = some_log(folder, rng)
    at = rng.randrange(len(parts))
    path.write_bytes(b"".join(parts[:at] + parts[at + rng.randrange(1, 4) :]))


def double_a_record(folder: Path, old: Path, rng: random.Random) -> None:
    path, parts = some_log(folder, rng)
    at = rng.randrange(len(parts))
    path.write_bytes(b"".join(parts[: at + 1] + parts[at:]))


def swap_records(folder: Path, old: Path, rng: random.Random) -> None:
    path, parts = some_log(folder, rng)
    first, second = rng.sample(range(len(parts)), 2)
    parts[first], parts[second] = parts[second], parts[first]
    path.write_bytes(b"".join(parts))


def cut(folder: Path, old: Path, rng: random.Random) -> None:
    path, parts = some_log(folder, rng)
    path.write_bytes(b"".join(parts)[: rng.randrange(sum(map(len, parts)))])


def cut_and_put_the_checkpoint_back(folder: Path, old: Path, rng: random.Random) -> None:
    name = rng.choice(names.log_names(folder))
    for suffix in ("log", "checkpoint"):
        shutil.copy(old / f"{name}.{suffix}", folder / f"{name}.{suffix}")


def put_the_folder_back(folder: Path, old: Path, rng: random.Random) -> None:
    shutil.rmtree(folder)
    shutil.copytree(old, folder)


def remove_a_tenant(folder: Path, old: Path, rng: random.Random) -> None:
    shutil.rmtree(tenant(folder, rng))


def rename_a_tenant(folder: Path, old: Path, rng: random.Random) -> None:
    tenant(folder, rng).rename(folder / "tenants" / "someone-else")


def put_a_tenant_over_another(folder: Path, old: Path, rng: random.Random) -> None:
    first, second = rng.sample(sorted((folder / "tenants").iterdir()), 2)
    for suffix in ("log", "checkpoint"):
        shutil.copy(next(first.glob(f"*.{suffix}")), next(second.glob(f"*.{suffix}")))


def rewrite_with_the_key(folder: Path, old: Path, rng: random.Random) -> None:
    """One record of one log, its checkpoint, and (half of the time) the system log's lines about it."""
    key = notes.load_or_create_key(folder)
    public = notes.public_bytes(key)
    name = rng.choice([name for name in names.log_names(folder) if name.startswith(names.TENANTS)])
    chosen = rng.randrange(60)
    lines = lines_about(folder, name, public)
    rewrite(folder, name, key, lambda body: body.replace(b'"number":%d,' % chosen, b'"number":%d,' % (chosen + 100)))
    if rng.random() < 0.5:
        walk = frames.walk(logfile.read_log(folder, name), name, public, {size for _, size in lines})
        new = {root: walk.roots[size].hex() for root, size in lines}
        rewrite(folder, names.system_names(folder)[0], key, lambda body: replaced(body, new))


def replaced(body: bytes, new: dict[str, str]) -> bytes:
    for root, other in new.items():
        body = body.replace(root.encode(), other.encode())
    return body


def lines_about(folder: Path, name: str, public: bytes) -> list[tuple[str, int]]:
    """(root, size) of every line of the system log about a log."""
    found = []
    for system in names.system_names(folder):
        for _, envelope in frames.walk(logfile.read_log(folder, system), system, public).control:
            for log, (size, root) in proofs.heads_of(envelope).items():
                if log == name:
                    found.append((root, size))
    return found


def rewrite(folder: Path, name: str, key: Ed25519PrivateKey, change: Callable[[bytes], bytes]) -> None:
    """Change records and recompute chain, seals, tree and signature."""
    path, public, parts = folder / f"{name}.log", notes.public_bytes(key), []
    data, link = path.read_bytes(), frames.genesis(name, public)
    for _, leaf in frames.leaves(data, len(data)):
        part, link = frames.frame(link, change(leaf[frames.BODY :]), notes.seal_secret(key))
        parts.append(part)
    path.write_bytes(b"".join(parts))
    walk = frames.walk(path.read_bytes(), name, public)
    note = notes.sign(notes.Checkpoint(name, walk.tree.size, walk.tree.root(), 0), key)
    path.with_suffix(".checkpoint").write_bytes(note)


def tenant(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted((folder / "tenants").iterdir()))


ATTACKS: tuple[Attack, ...] = (
    flip_a_bit,
    overwrite_bytes,
    remove_records,
    double_a_record,
    swap_records,
    cut,
    cut_and_put_the_checkpoint_back,
    put_the_folder_back,
    remove_a_tenant,
    rename_a_tenant,
    put_a_tenant_over_another,
    rewrite_with_the_key,
)
