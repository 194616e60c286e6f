"""Files that appear whole or not at all: write beside, fsync, rename, fsync the folder.

Invariant: a reader never sees a partly written file under its final name, also after a power cut.
Local POSIX file systems; an object store needs its own implementation.
"""

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

TEMPORARY = ".tmp-"  # prefix of names no reader looks at


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents durably: a segment must not vanish because its new folder did."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def write_atomically(folder: Path, write: Callable[[Path], None], name: Callable[[Path], str]) -> Path:
    """Let `write` fill a temporary file in `folder`, then give it its final name, all in one step for readers.

    Args:
        folder: created if missing.
        write: gets the temporary path and creates the file.
        name: gets the finished temporary file and returns its final name (for example one made from its content).

    Returns:
        The final path, durable.
    """
    make_folder(folder)
    temporary = folder / f"{TEMPORARY}{uuid4().hex}"
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        target = folder / name(temporary)
        temporary.rename(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return target


def write_bytes_atomically(target: Path, data: bytes, mode: int = 0o644) -> None:
    """`data` as the whole content of `target`, created with permission bits `mode`."""

    def write(temporary: Path) -> None:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)

    write_atomically(target.parent, write, lambda _: target.name)
