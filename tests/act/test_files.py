"""A file is opened beneath its folder or not at all, however quickly somebody swaps a link into the path."""

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentops.act import FilePath, files
from agentops.act.files import open_beneath
from agentops.errors import PolicyError, ToolError

SECRET = "the secret outside"


@pytest.fixture(params=["openat2", "walk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a file, beside a secret; once through the kernel, once as on a kernel without openat2."""
    if request.param == "walk":

        def missing(*_: object) -> int:
            ctypes.set_errno(errno.ENOSYS)
            return -1

        monkeypatch.setattr(files, "_SYSCALL", missing)
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    return root


def read(root: Path, path: str) -> str:
    with os.fdopen(open_beneath(root, path)) as file:
        return file.read()


def test_a_file_beneath(folder: Path) -> None:
    assert read(folder, "a/b/file") == read(folder, "./a//b/file") == "inside"
    os.close(open_beneath(folder, ".", os.O_DIRECTORY))
    with os.fdopen(open_beneath(folder, "a/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write("written")
    assert (folder / "a" / "new").read_text() == "written"
    assert (folder / "a" / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../outside/file", "a/../../outside/file", "..", "a\0b", "missing", "a/missing/x", "a/b/file/x"],
)
def test_what_is_not_beneath(folder: Path, path: str) -> None:
    with pytest.raises(ToolError) as caught:
        open_beneath(folder, path)
    assert "outside" not in str(caught.value)


def link_to_file(root: Path) -> None:
    (root / "x").symlink_to(root.parent / "outside" / "file")


def link_to_folder(root: Path) -> None:
    (root / "d").symlink_to(root.parent / "outside")


def folder_link_inside(root: Path) -> None:
    (root / "d").symlink_to("a")


def link_inside(root: Path) -> None:
    (root / "x").symlink_to("a/b/file")


def link_through_proc(root: Path) -> None:
    (root / "x").symlink_to("/proc/self/environ")


def fifo(root: Path) -> None:
    os.mkfifo(root / "x")


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (link_to_file, "x"),
        (link_to_folder, "d/file"),
        (link_to_folder, "d"),
        (link_inside, "x"),
        (folder_link_inside, "d/b/file"),
        (link_through_proc, "x"),
        (fifo, "x"),
    ],
)
def test_links_and_pipes_are_refused(folder: Path, make: Callable[[Path], None], path: str) -> None:
    make(folder)
    with pytest.raises(ToolError):
        open_beneath(folder, path)


def test_no_descriptor_is_left_behind(folder: Path) -> None:
    link_to_file(folder)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("x", "missing", "a/missing/x", ".."):
        for _ in range(20):
            with pytest.raises(ToolError):
                open_beneath(folder, path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_swapped_in_after_the_check_is_not_followed(folder: Path) -> None:
    """A thread swaps a folder on the way for a link as fast as it can; what is read is never outside."""
    real, link, place = folder / "a" / "real", folder / "link", folder / "a" / "b"
    link.symlink_to(folder.parent / "outside")
    stop, swaps = threading.Event(), 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            os.rename(place, real)
            os.rename(link, place)
            os.rename(place, link)
            os.rename(real, place)
            swaps += 1

    attacker = threading.Thread(target=swap)
    attacker.start()
    seen = {"inside": 0, "refused": 0}
    try:
        while (min(seen.values()) < 50 or swaps < 200) and sum(seen.values()) < 60_000:
            try:
                with os.fdopen(open_beneath(folder, "a/b/file")) as file:
                    text = file.read()
            except ToolError:
                seen["refused"] += 1
            else:
                assert text == "inside"
                seen["inside"] += 1
    finally:
        stop.set()
        attacker.join()
    assert swaps > 10
    assert min(seen.values()) > 0, "both sides of the race were met"


def test_the_value_of_a_path_argument_opens_its_file(folder: Path) -> None:
    with os.fdopen(FilePath(str(folder)).open(f"{folder}/a/b/file")) as file:
        assert file.read() == "inside"
    relative = FilePath("root")
    with os.fdopen(relative.open("root/a/b/file", base=folder.parent)) as file:
        assert file.read() == "inside"
    for odd in ("root/../outside/file", "outside/file", "root//a/b/file"):
        with pytest.raises(PolicyError):
            relative.open(odd, base=folder.parent)
    link_to_folder(folder)
    with pytest.raises(ToolError):
        relative.open("root/d/file", base=folder.parent)
