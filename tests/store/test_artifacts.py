"""Artifacts: one digest per content, verified before use, never half there."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentops.errors import StoreError
from agentops.store import Artifacts

MANIFEST = {"kind": "head", "labels": ["a", "é"], "accuracy": 0.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "sub").mkdir(parents=True)
    (made / "weights.bin").write_bytes(bytes(range(256)) * 10)
    (made / "sub" / "labels.txt").write_text("a\nb\n")
    return made


def test_put_then_read_back(tmp_path: Path, folder: Path) -> None:
    store = Artifacts(tmp_path / "artifacts")
    digest = store.put(folder, MANIFEST)
    assert digest.startswith("sha256:")
    assert len(digest) == 71
    assert store.put(folder, dict(reversed(MANIFEST.items()))) == digest
    assert (store.path(digest) / "sub" / "labels.txt").read_text() == "a\nb\n"
    assert store.manifest(digest) == MANIFEST
    assert store.list() == [(digest, MANIFEST)]
    assert Artifacts(tmp_path / "elsewhere").put(folder, MANIFEST) == digest
    assert not [path for path in (tmp_path / "artifacts").iterdir() if path.name.startswith(".tmp")]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 2559), bit=st.integers(0, 7))
def test_any_flipped_bit_is_caught_and_repaired_by_putting_again(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    root = tmp_path_factory.mktemp("artifact")
    made = root / "made"
    made.mkdir()
    (made / "weights.bin").write_bytes(bytes(range(256)) * 10)
    digest = Artifacts(root / "store").put(made, MANIFEST)
    file = root / "store" / digest.removeprefix("sha256:") / "files" / "weights.bin"
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)
    store = Artifacts(root / "store")
    with pytest.raises(StoreError, match="damaged"):
        store.path(digest)
    assert store.put(made, MANIFEST) == digest
    assert (store.path(digest) / "weights.bin").read_bytes() == bytes(range(256)) * 10
    assert len(list((root / "store").glob("*.damaged-*"))) == 1, "the damaged copy is kept"
    shutil.rmtree(root)


def test_digest_depends_on_manifest_names_and_bytes(tmp_path: Path, folder: Path) -> None:
    store = Artifacts(tmp_path / "artifacts")
    digests = {store.put(folder, MANIFEST), store.put(folder, MANIFEST | {"accuracy": 0.6})}
    (folder / "sub" / "labels.txt").write_text("a\nc\n")
    digests.add(store.put(folder, MANIFEST))
    (folder / "sub" / "labels.txt").rename(folder / "sub" / "names.txt")
    digests.add(store.put(folder, MANIFEST))
    assert len(digests) == len(store.list()) == 4


def test_an_added_file_is_damage(tmp_path: Path, folder: Path) -> None:
    store = Artifacts(tmp_path / "artifacts")
    digest = store.put(folder, MANIFEST)
    (tmp_path / "artifacts" / digest[7:] / "files" / "extra.py").write_text("x")
    with pytest.raises(StoreError, match="damaged"):
        Artifacts(tmp_path / "artifacts").path(digest)


def test_what_is_refused_is_named(tmp_path: Path, folder: Path) -> None:
    store = Artifacts(tmp_path / "artifacts")
    with pytest.raises(StoreError, match="not one"):
        store.put(tmp_path / "absent", {})
    with pytest.raises(StoreError, match="plain JSON"):
        store.put(folder, {"loss": float("nan")})
    with pytest.raises(StoreError, match="64 hexadecimal"):
        store.path("../../etc")
    with pytest.raises(StoreError, match="is not in"):
        store.path("sha256:" + "0" * 64)
    os.symlink("/etc/hostname", folder / "link")
    with pytest.raises(StoreError, match="link or special file"):
        store.put(folder, {})
    assert store.list() == []


def test_concurrent_puts_of_the_same_content_agree(tmp_path: Path, folder: Path) -> None:
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(Artifacts(tmp_path / "artifacts").put(folder, MANIFEST)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8
    assert len(set(digests)) == 1
    assert len(list((tmp_path / "artifacts").iterdir())) == 1
