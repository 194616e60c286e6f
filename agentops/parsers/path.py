"""Paths of files beneath a root.

Invariant: what is returned begins with its root, has no empty, `.` or `..` segment and no character that a shell, a
server or another file system would read differently, so `like "/files/reports/*"` means what it says. It never looks at
the disk: a symbolic link is refused where the file is opened (`agentops.act.files`).
"""

import re
import unicodedata

from agentops.errors import PolicyError
from agentops.parsers.text import identifier

MAX_PATH = 4095  # bytes (PATH_MAX without the final NUL)
MAX_SEGMENT = 255  # bytes (NAME_MAX)
_ROOT = re.compile(r"/?[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_ESCAPED = re.compile(r"%(?:00|2[EeFf]|5[Cc])")  # NUL, dot, slash, backslash to whoever decodes once more


def root_path(text: str) -> str:
    """A root as it may be declared: absolute (`/workspace`) or relative to the project (`data/reports`).

    Raises:
        PolicyError: any other form.
    """
    if not _ROOT.fullmatch(text) or any(part.endswith(".") for part in text.split("/")):
        raise PolicyError(f"root {text[:80]!r} is not usable: write /workspace or data/reports, in plain characters")
    return text


def file_path(text: str, root: str, name: str = "path") -> str:
    """A path beneath `root`, or the root itself; `.` and empty segments are removed.

    Args:
        text: begins with the root, as it was declared.
        root: what `root_path` accepts.
        name: of the argument, for the message.

    Raises:
        PolicyError: it leaves the root, or is ambiguous; the message does not repeat it.
    """
    refusal = f"{name!r} is not one plain path beneath {root}"
    if len(text) > MAX_PATH:
        raise PolicyError(f"{refusal}: at most {MAX_PATH} bytes")
    identifier(text, name)
    if "\\" in text or _ESCAPED.search(text) or (text != root and not text.startswith(f"{root}/")):
        raise PolicyError(f"{refusal}: begin with {root}/, without backslashes and escapes")
    kept: list[str] = []
    for segment in text[len(root) :].split("/"):
        if segment in ("", "."):
            continue
        odd = segment[0] in "~ " or segment[-1] in ". " or unicodedata.category(segment[0])[0] == "M"
        if odd or len(segment.encode()) > MAX_SEGMENT:
            raise PolicyError(f"{refusal}: no segment is .., begins with ~ or a space, or ends in a dot or a space")
        kept.append(segment)
    path = "/".join([root, *kept])
    if len(path.encode()) > MAX_PATH:
        raise PolicyError(f"{refusal}: at most {MAX_PATH} bytes")
    return path
