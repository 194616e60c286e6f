"""What a tool's process may touch and use, and the folders that any Python process needs.

Invariant: whatever a profile does not name is refused. The project's folder, its policies and its state are never part
of it unless a caller names them in `read`.
It does not enforce anything: `landlock`, `bubblewrap` and `shim` do.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from agentops.act.sandbox.shim import LIMITS
from agentops.errors import SandboxError

ENGINE = Path(__file__).resolve().parents[2]  # the import package `agentops`
SHIM = Path(__file__).resolve().with_name("shim.py")

# Shared libraries and what the loader and the C library read; folders that a system lacks are skipped.
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32")
_FILES = ("/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/localtime")


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits of one isolated process and its descendants.

    Attributes:
        read: files and folders that may be read (and executed) besides the interpreter, its libraries and the engine.
        scratch_mb: MiB of the private writable folder, which is the working directory and is gone afterwards.
        memory_mb: MiB of address space of *each* process; the whole tree is bounded by `memory_mb * processes`.
        processes: processes and threads at a time, the first one included.
        open_files: descriptors a process may have open.
        cpu_s: seconds of processor time of each process.
        file_mb: MiB of the largest file it may write.
        network: always False: outside calls go through the broker's descriptor.

    Raises:
        SandboxError: a limit is not positive, a path is not absolute, or `network` is asked for.
    """

    read: tuple[Path, ...] = ()
    scratch_mb: int = 64
    memory_mb: int = 512
    processes: int = 16
    open_files: int = 64
    cpu_s: float = 60
    file_mb: int = 64
    network: bool = False

    def __post_init__(self) -> None:
        for name in LIMITS:
            if getattr(self, name) <= 0:
                raise SandboxError(f"a sandbox's {name} is {getattr(self, name)!r}: it must be above 0")
        for path in self.read:
            if not path.is_absolute():
                raise SandboxError(f"a sandbox's read path is {str(path)!r}: give an absolute path")
        if self.network:
            raise SandboxError("a sandbox has no network: reach outside services through the broker")


def interpreter() -> tuple[Path, ...]:
    """The Python that runs now, its environment and the engine: existing absolute folders, none inside another."""
    found = {Path(p) for p in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)}
    found |= {Path(os.path.realpath(p)) for p in found} | {ENGINE}
    if Path("/") in found:
        raise SandboxError("Python's prefix is '/': a sandbox would show the whole machine; use a virtual environment")
    return tuple(sorted(p for p in found if p.exists() and not any(q in found for q in p.parents)))


def system() -> tuple[Path, ...]:
    """Libraries and files of the system that Python needs, links left as they are."""
    return tuple(Path(p) for p in (*_LIBRARIES, *_FILES) if os.path.lexists(p))
