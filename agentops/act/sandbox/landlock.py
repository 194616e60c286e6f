"""The Landlock ruleset of a profile: read on what Python and the profile need, write in the scratch folder, no TCP.

Invariant: every right that the running kernel can handle is handled, so what no rule grants is refused.
It does not apply the ruleset (`shim` does, in the child), and it cannot hide names and sizes: Landlock lets a process
look up and stat paths that it may not open.

Source: `landlock(7)` and Documentation/userspace-api/landlock.rst. What older kernels cannot handle (truncation before
ABI 3, signals before ABI 6, TCP before ABI 4, and file modes on all of them) `seccomp` refuses instead.
"""

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from agentops.act.sandbox.profile import Profile, interpreter, system

_CREATE_RULESET, _VERSION = 444, 1  # the call's number on every architecture; LANDLOCK_CREATE_RULESET_VERSION

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_DEVICES = 1 << 6 | 1 << 11  # making character and block devices: never granted
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # what a rule on a file may name
_READ = _EXECUTE | _READ_FILE | _READ_DIR

_PSEUDO = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo")
_FOLDERS = ("/sys/devices/system/cpu",)


@functools.cache
def abi() -> int:
    """Version of Landlock in this kernel (1 to 7 are known); 0 when it is absent or switched off."""
    answer = ctypes.CDLL(None, use_errno=True).syscall(
        _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION)
    )
    return max(0, answer)


def ruleset(profile: Profile, scratch: Path) -> dict[str, Any]:
    """What `shim` needs: the handled rights, and a (path, rights) pair for each path that may be opened."""
    version = abi()
    handled = (1 << (16 if version >= 5 else 15 if version >= 3 else 14 if version >= 2 else 13)) - 1
    read = [*interpreter(), *system(), *profile.read, *(Path(p) for p in (*_PSEUDO, *_FOLDERS) if os.path.exists(p))]
    rules = [(str(path), _READ) for path in read]
    rules += [("/dev/null", _READ_FILE | _WRITE_FILE), (str(scratch), handled & ~(_DEVICES | _EXECUTE | _IOCTL_DEV))]
    return {
        "handled_fs": handled,
        "handled_net": 0b11 if version >= 4 else 0,  # bind and connect TCP
        "scoped": 0b11 if version >= 6 else 0,  # abstract UNIX sockets and signals stay inside
        "file_rights": _FILE_RIGHTS & handled,
        "rules": rules,
    }
