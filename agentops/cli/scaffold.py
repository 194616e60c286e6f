"""`agentops init DIR`: lay out a small working project, a bookshop with two tools, to change piece by piece.

Invariant: nothing that exists is changed and nothing is written outside DIR: an existing path is skipped, a link inside
DIR is refused, and every refusal comes before the first write. The files are package data under `scaffold_files/`,
where linters and type checkers see them. Printing is the caller's.
"""

import os
from pathlib import Path

from agentops.errors import ProjectError

FILES = Path(__file__).parent / "scaffold_files"
SUFFIX = ".template"  # of files that would act on this repository under their own name
RENAMED = {"gitignore": ".gitignore"}


def scaffold(target: Path) -> list[tuple[str, str]]:
    """Write the project into `target`, which may exist.

    Args:
        target: the new project's folder; a file that is there already stays as it is.

    Returns:
        ("write" | "skip", path relative to `target`) for every file, in order.

    Raises:
        ProjectError: `target` or a folder in it is a file or a link, belongs to a Python project without
            `[tool.agentops]`, or cannot be written; nothing was written unless the message says so.
    """
    try:
        root = target.expanduser().resolve()
        files = {_placed(file.relative_to(FILES)): file.read_bytes() for file in _templates()}
        if root.exists() and not root.is_dir():
            raise ProjectError(f"{str(target)!r} is a file: give a new folder, for example `agentops init my-agent`")
        for path in files:
            _refuse_links(root, path)
        _refuse_foreign(root)
        done = []
        for path, data in files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            done.append(("write" if _write(place, data) else "skip", path.as_posix()))
    except OSError as error:
        raise ProjectError(
            f"{str(target)!r} cannot be laid out: {error.strerror or error} ({error.filename}); "
            "what was written so far stays, mend it and run the command again"
        ) from None
    return done


def _templates() -> list[Path]:
    files = [path for path in FILES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(files, key=lambda path: (len(path.relative_to(FILES).parts) > 1, path.relative_to(FILES).as_posix()))


def _placed(path: Path) -> Path:
    name = path.name.removesuffix(SUFFIX)
    return path.with_name(RENAMED.get(name, name))


def _refuse_links(root: Path, path: Path) -> None:
    """Every folder on the way to `path`, and `path` itself, must be real or absent."""
    place = root
    for part in path.parts:
        place = place / part
        shown = place.relative_to(root).as_posix()
        if place.is_symlink():
            raise ProjectError(f"{shown!r} in {str(root)!r} is a link: remove it first; nothing was written")
        if place != root / path and place.exists() and not place.is_dir():
            raise ProjectError(f"{shown!r} in {str(root)!r} is a file, not a folder: move it away; nothing was written")
        if place == root / path and place.is_dir():
            raise ProjectError(f"{shown!r} in {str(root)!r} is a folder, not a file: move it away; nothing was written")


def _refuse_foreign(root: Path) -> None:
    """A Python project keeps its pyproject.toml, so it must say itself that it is an agentops project."""
    file = root / "pyproject.toml"
    if file.is_file() and "[tool.agentops" not in file.read_text(encoding="utf-8", errors="replace"):
        raise ProjectError(
            f"{str(file)!r} exists without a [tool.agentops] table: add the line `[tool.agentops]` to it, "
            "or give another folder; nothing was written"
        )


def _write(place: Path, data: bytes) -> bool:
    """Create the file; False when there is one. A link that appeared meanwhile is not followed."""
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return True
