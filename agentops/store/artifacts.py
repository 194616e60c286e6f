"""Artifacts: folders of files with a manifest, named by the digest of both, never changed afterwards.

Invariant: `path` returns a folder whose every byte matches its digest (checked on first use in each process), and `put`
of the same content gives the same digest wherever and however often it runs. Nothing is ever deleted here.
Which artifact serves is the business of `agentops.release`.
"""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentops.errors import StoreError
from agentops.store.files import TEMPORARY, make_folder, sync_folder, write_bytes_atomically

MAX_FILES = 10_000
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FILES, _MANIFEST = "files", "artifact.json"


class Artifacts:
    """The content-addressed store under `root`; any number of processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._verified: set[str] = set()
        self._lock = threading.Lock()

    def put(self, folder: Path, manifest: Mapping[str, Any]) -> str:
        """Copy `folder` in and return its digest, "sha256:…" over the manifest and every file's path and bytes.

        Idempotent; a damaged copy of the same content is moved aside (`<digest>.damaged-…`) and replaced.

        Raises:
            StoreError: no such folder, a link or special file in it, too many files, or a manifest that is not JSON.
        """
        source = folder.resolve()
        if not source.is_dir():
            raise StoreError(f"an artifact is a folder; {str(folder)!r} is not one")
        text = _canonical(manifest)
        staging = self.root / f"{TEMPORARY}{uuid4().hex}"
        make_folder(staging)
        try:
            names = _copy(source, staging / _FILES)
            digest = _digest(text, staging / _FILES, names)
            write_bytes_atomically(staging / _MANIFEST, text.encode())
            self._publish(staging, digest)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return digest

    def path(self, digest: str) -> Path:
        """Folder with the artifact's files, verified. Do not write into it.

        Raises:
            StoreError: no such artifact here, or it is damaged; names the digest and the folder.
        """
        folder = self._folder(digest)
        with self._lock:
            if digest not in self._verified:
                fault = _fault(folder, digest)
                if fault:
                    raise StoreError(
                        f"artifact {digest} is damaged: {fault} in {str(folder)!r}; "
                        "put the same content again to repair it, or release another version"
                    )
                self._verified.add(digest)
        return folder / _FILES

    def manifest(self, digest: str) -> dict[str, Any]:
        """The manifest given to `put`.

        Raises:
            StoreError: as `path`.
        """
        self.path(digest)
        return json.loads((self._folder(digest) / _MANIFEST).read_text(encoding="utf-8"))

    def resolve(self, prefix: str) -> str:
        """The one artifact whose digest starts with `prefix` (with or without "sha256:").

        Raises:
            StoreError: none, or several.
        """
        wanted = prefix.removeprefix("sha256:")
        found = [f"sha256:{folder.name}" for folder in sorted(self.root.glob("*/")) if folder.name.startswith(wanted)]
        found = [digest for digest in found if _DIGEST.fullmatch(digest)]
        if len(found) != 1 or not wanted:
            many = f"{len(found)} artifacts start" if found else "no artifact starts"
            raise StoreError(f"{many} with {prefix!r}: give more of the digest `agentops train` printed")
        return found[0]

    def list(self) -> list[tuple[str, dict[str, Any]]]:
        """Every artifact as (digest, manifest), oldest first. Manifests are read, files are not verified.

        Raises:
            StoreError: a manifest that cannot be read; names its folder.
        """
        found = []
        for folder in self.root.glob("*/"):
            if re.fullmatch(r"[0-9a-f]{64}", folder.name):
                try:
                    manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
                    found.append((folder.stat().st_mtime_ns, f"sha256:{folder.name}", manifest))
                except (OSError, ValueError) as error:
                    raise StoreError(
                        f"artifact {folder.name} has no readable manifest ({type(error).__name__}): move "
                        f"{str(folder)!r} elsewhere, or put the same content again to repair it"
                    ) from None
        return [(digest, manifest) for _, digest, manifest in sorted(found, key=lambda item: item[:2])]

    def _folder(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise StoreError(f"{digest!r} is not an artifact digest: write sha256: and 64 hexadecimal digits")
        folder = self.root / digest.removeprefix("sha256:")
        if not folder.is_dir():
            raise StoreError(f"artifact {digest} is not in {str(self.root)!r}: train it again or copy it there")
        return folder

    def _publish(self, staging: Path, digest: str) -> None:
        target = self.root / digest.removeprefix("sha256:")
        while True:
            try:
                staging.rename(target)  # fails when the target exists and is not empty
                sync_folder(self.root)
                return
            except OSError:
                if not target.is_dir():
                    raise
            if not _fault(target, digest):
                return
            target.rename(target.with_name(f"{target.name}.damaged-{uuid4().hex[:8]}"))
            with self._lock:
                self._verified.discard(digest)


def _canonical(manifest: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(manifest), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"an artifact's manifest must be plain JSON: {error}") from None
    if size > MAX_MANIFEST_BYTES:
        raise StoreError(f"an artifact's manifest has {size} bytes, at most {MAX_MANIFEST_BYTES} are allowed")
    return text


def _copy(source: Path, target: Path) -> list[str]:
    """Copy regular files durably; returns their relative POSIX names, sorted."""
    names: list[str] = []
    make_folder(target)
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        for name in (*folders, *files):
            path = here / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise StoreError(f"an artifact holds plain files only; {str(path)!r} is a link or special file")
        for name in files:
            relative = (here / name).relative_to(source)
            make_folder((target / relative).parent)
            shutil.copyfile(here / name, target / relative)
            with (target / relative).open("rb") as handle:
                os.fsync(handle.fileno())
            names.append(relative.as_posix())
            if len(names) > MAX_FILES:
                raise StoreError(f"an artifact holds at most {MAX_FILES} files; {str(source)!r} has more")
    return sorted(names)


def _digest(manifest: str, files: Path, names: list[str]) -> str:
    lines = [hashlib.sha256(manifest.encode()).hexdigest()]
    for name in names:
        with (files / name).open("rb") as stream:
            lines.append(json.dumps([name, hashlib.file_digest(stream, "sha256").hexdigest()]))
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _fault(folder: Path, digest: str) -> str:
    """What is wrong with a stored artifact; "" when every byte matches."""
    try:
        text = (folder / _MANIFEST).read_text(encoding="utf-8")
        files = folder / _FILES
        names = sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if not path.is_dir())
        found = _digest(text, files, names)
    except (OSError, UnicodeDecodeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return "" if found == digest else "its content no longer matches the digest"
