"""The command line of bubblewrap: new namespaces, and a root folder that holds only what Python needs, read-only.

Invariant: the process sees no path that is not named here or in the profile, and can write nowhere but its scratch.
It does not set limits, change the user or load the system call filter: `shim` does, inside, before the real command.
"""

import os
import shutil
from pathlib import Path

from agentops.act.sandbox.profile import Profile, interpreter, system

SCRATCH = Path("/tmp")  # noqa: S108 - inside: a private tmpfs
_KEPT = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_READ_SEARCH")  # for the shim, which gives up all it does not need


def executable() -> str:
    """Path of `bwrap`, "" when it is not installed."""
    return shutil.which("bwrap", path=os.environ.get("PATH", os.defpath)) or ""


def command(profile: Profile, info: int) -> list[str]:
    """bubblewrap and its options, up to where the inner command follows.

    Root needs no user namespace: the shim inside changes to an unused user, which is what makes the kernel count its
    processes (root mapped to nobody is still root to RLIMIT_NPROC).

    Args:
        profile: what may be read, and the size of the scratch folder.
        info: descriptor to which bubblewrap writes the number of the first inner process.
    """
    root = os.geteuid() == 0
    mounts: list[str] = []
    paths = dict.fromkeys((*system(), *interpreter(), *profile.read))
    # bubblewrap makes the folders above a mount for their owner alone; the user inside is another
    for folder in sorted({above for path in paths for above in path.parents if not above.is_symlink()}):
        mounts += ["--perms", "0755", "--dir", str(folder)]
    for path in paths:
        if path.is_symlink() and path.parent == Path("/"):  # /lib -> usr/lib
            mounts += ["--symlink", os.readlink(path), str(path)]
        else:
            mounts += ["--ro-bind", str(path), str(path)]
    user = [] if root else ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    keep = [option for name in _KEPT for option in ("--cap-add", name)] if root else []
    return [
        executable(),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", *user),
        *("--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"),
        *("--cap-drop", "ALL", *keep, "--info-fd", str(info)),
        *("--perms", "1777", "--size", str(profile.scratch_mb << 20), "--tmpfs", str(SCRATCH)),
        *mounts,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(SCRATCH)),
        "--",
    ]
