"""Opening a file beneath a folder, where somebody may swap a link into the path at any moment.

Invariant: what is opened is a regular file or a folder beneath `root`, reached through no symbolic link, whatever
happens to the path between the check and the opening: the kernel checks while it walks (openat2(2), Linux 5.6), or each
step is opened from the one before without following links. Hard links and mounts inside the root are not looked at.
"""

import ctypes
import errno
import os
import stat
from pathlib import Path

from agentops.errors import ToolError

_OPENAT2 = 437  # the same number on every architecture
_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS = 0x08, 0x04, 0x02
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK  # a FIFO must not hold the caller
_TRIES = 8  # EAGAIN: something was renamed meanwhile
_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall  # found now: the guard lets no tool look up native code


class _How(ctypes.Structure):
    """`struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: Path, path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of `path` beneath `root`; the caller closes it.

    Args:
        root: an existing folder, trusted; a link in its own path is followed.
        path: relative to it, without `..`; "." is the root itself.
        flags: as for `os.open`.
        mode: of a file that is created.

    Raises:
        ToolError: no such file, no permission, a link on the way, or neither a file nor a folder; names no path.
    """
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ToolError("the path leaves its folder")
    try:
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolError(f"the folder of the path cannot be opened: {os.strerror(error.errno or 0)}") from None
    try:
        file = _opened(folder, path, flags | _ALWAYS, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV, errno.EAGAIN):
            raise ToolError("the path leads through a link: it was not opened") from None
        raise ToolError(f"the path cannot be opened: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(folder)
    kind = os.fstat(file).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
        os.set_blocking(file, True)
        return file
    os.close(file)
    raise ToolError("the path is neither a file nor a folder: it was not opened")


def _opened(folder: int, path: str, flags: int, mode: int) -> int:
    how = _How(flags, mode if flags & os.O_CREAT else 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    code = errno.EAGAIN
    for _ in range(_TRIES):
        file = _SYSCALL(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if file >= 0:
            return file
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EPERM):  # an older kernel, or a filter that does not know the call
            return _walked(folder, path, flags, mode)
        if code != errno.EAGAIN:
            break
    raise OSError(code, os.strerror(code))


def _walked(folder: int, path: str, flags: int, mode: int) -> int:
    """The same without openat2: each folder is opened from its parent, and a link is an error (ELOOP or ENOTDIR)."""
    *parents, last = [segment for segment in path.split("/") if segment not in ("", ".")] or ["."]
    here = os.dup(folder)
    try:
        for name in parents:
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(last, flags, mode, dir_fd=here)
    finally:
        os.close(here)
