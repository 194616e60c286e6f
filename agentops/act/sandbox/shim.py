"""The child's side of a sandbox: it restricts itself, then becomes the tool's process. Run: `python -I -S shim.py FD`.

Invariant: the real command starts only after every restriction of the specification is in place; any failure is
reported on the status descriptor and nothing is executed. Restrictions are applied here, in a fresh process with one
thread, because code between fork and exec of a threaded engine may deadlock.
It imports nothing of the engine, and decides nothing: what to restrict is in the orders (JSON on descriptor FD,
so that neither arguments nor environment of this process hold it).

Without bubblewrap it also stays as a supervisor: it ends the process group and every orphan when the command ends, when
the engine says so or when the engine is gone, and removes the scratch folder.
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import sys
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_LIBC.syscall.restype = ctypes.c_long
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 1, 8, 22, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47
_CAP_DAC_READ_SEARCH = 1 << 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 8, 0x4000, 1 << 18, 2
_O_PATH = 0o10000000
LIMITS = ("scratch_mb", "memory_mb", "processes", "open_files", "cpu_s", "file_mb")  # of a profile
MAX_ENTRIES = 10_000  # files and folders of a scratch folder: small files fill a disk's table of inodes too
_LOOK_MS = 100  # between looks at the size of a scratch folder that has no limit of its own

Spec = dict[str, Any]


def main() -> None:
    with open(int(sys.argv[1]), "rb", buffering=65_536) as source:
        spec: Spec = json.loads(source.readline())
    try:
        _close_all_but({0, 1, 2, spec["status"], spec["lifeline"], spec["stderr"], *spec["keep"]})
        if spec["lifeline"] < 0:  # bubblewrap supervises
            confine(spec, None)
        supervise(spec)
    except (OSError, ValueError) as error:
        _fail(spec, error)


def _fail(spec: Spec, error: Exception) -> NoReturn:
    os.write(spec["status"], f"{type(error).__name__}: {error}"[:500].encode())
    os._exit(126)


# ------------------------------------------------------------------ the command


def confine(spec: Spec, supervisor: int | None) -> NoReturn:
    """Restrict this process and execute the command; it dies with `supervisor`. Raises OSError when a step fails."""
    os.dup2(spec["stderr"], 2)
    os.chdir(spec["scratch"])
    ruleset = _ruleset(spec["landlock"]) if spec["landlock"] else -1  # opens paths: before the user changes
    _limit(spec)
    _drop(spec)
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if supervisor is not None:
        _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent's death")  # a change of user clears it
        if os.getppid() != supervisor:
            os._exit(126)
    os.set_inheritable(spec["status"], False)
    _close_all_but({0, 1, 2, spec["status"], ruleset, *spec["keep"]})
    if ruleset >= 0:
        _check(_LIBC.syscall(446, ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")
        os.close(ruleset)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, and a program would inherit that
    if spec["seccomp"]:
        _filter(bytes.fromhex(spec["seccomp"]))
    os.write(spec["status"], b"armed\n")
    os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell is the point


def _ruleset(landlock: dict[str, Any]) -> int:
    """A Landlock ruleset's descriptor with every rule added."""
    fields = [landlock["handled_fs"], landlock["handled_net"], landlock["scoped"]]
    while len(fields) > 1 and not fields[-1]:  # a field that an older kernel does not know must not be sent
        fields.pop()
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    made = _LIBC.syscall(444, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), ctypes.c_uint(0))
    ruleset = _check(made, "landlock_create_ruleset")
    for path, rights in landlock["rules"]:
        fd = os.open(path, _O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= landlock["file_rights"]
        beneath = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)  # a packed structure
        _check(_LIBC.syscall(445, ctypes.c_int(ruleset), 1, beneath, ctypes.c_uint(0)), f"landlock_add_rule {path!r}")
        os.close(fd)
    return ruleset


def _limit(spec: Spec) -> None:
    """Resource limits. Each is the smaller of what is asked and the hard limit that holds already.

    RLIMIT_NPROC counts the user's processes, not this tree's: exact with a user (or user namespace) of its own,
    else what the user runs now is added. It does not hold for the machine's root, so level "none" as root has no
    limit of processes.
    """
    limits = spec["limits"]
    taken = 1 if spec.get("own_count", True) else _tasks_of(os.getuid())
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CPU, max(1, round(limits["cpu_s"]))),
        (resource.RLIMIT_NPROC, limits["processes"] + taken),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _tasks_of(uid: int) -> int:
    """Threads of a user on this machine."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                found += len(os.listdir(f"/proc/{pid}/task"))
    return found


def _drop(spec: Spec) -> None:
    """Become the sandbox's user without groups, and give up every capability but, where needed, reading.

    CAP_DAC_READ_SEARCH stays only when root's own Python lies where no other user may look (/root): Landlock or the
    mounts still hold it to the granted paths, and the filter refuses `open_by_handle_at`, the way around paths.
    """
    if spec["uid"] is not None:
        if spec["search"]:
            _check(_LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "keepcaps")
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    elif spec["level"] == "none":
        return
    kept = _CAP_DAC_READ_SEARCH if spec["search"] else 0
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)), "capset")
    if kept:
        _check(_LIBC.prctl(_PR_CAP_AMBIENT, 2, 2, 0, 0), "ambient capability")  # PR_CAP_AMBIENT_RAISE, number 2


def _filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    loaded = Program(len(program) // 8, program)
    _check(_LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(loaded), 0, 0), "system call filter")


# ------------------------------------------------------------------ the supervisor


def supervise(spec: Spec) -> NoReturn:
    """Run `confine` in a child, and end everything it started. Returns never."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # seen through `wake`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    separate = spec["level"] != "none" and _own_namespaces()
    spec["own_count"] = spec["uid"] is not None or separate
    sized = separate and _mount_scratch(spec)
    if not sized and spec["uid"] is not None:
        os.chown(spec["scratch"], spec["uid"], spec["uid"])
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()  # the group that `_end` ends; the filter lets nothing leave it
            confine(spec, supervisor)
        except (OSError, ValueError) as error:
            _fail(spec, error)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _close_all_but({0, 1, 2, spec["lifeline"], wake, woken})
    code = _watch(child, spec["lifeline"], wake, None if sized else spec)
    _end(child)
    if sized:
        _LIBC.umount2(os.fsencode(spec["scratch"]), _MNT_DETACH)
    with suppress(OSError):  # what is left there the engine tries again, and reports
        remove(spec["scratch"], tuple(spec["identity"]))
    os._exit(code)


def _own_namespaces() -> bool:
    """Enter a mount namespace, without root in a user namespace too; whether this machine lets us.

    In a user namespace the kernel counts the processes of this tree alone.
    """
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)):
        return False
    if user:
        for name, text in (("setgroups", "deny"), ("gid_map", f"{group} {group} 1"), ("uid_map", f"{user} {user} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


def _mount_scratch(spec: Spec) -> bool:
    """A file system of its own for the scratch folder: sized, and gone with the namespace. Whether it could be made."""
    options = f"size={spec['limits']['scratch_mb']}m,nr_inodes={MAX_ENTRIES},mode=700"
    if spec["uid"] is not None:
        options += f",uid={spec['uid']},gid={spec['uid']}"
    if _LIBC.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None):
        return False  # still in the machine's mount namespace, or not allowed to
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    return not _LIBC.mount(b"tmpfs", os.fsencode(spec["scratch"]), b"tmpfs", flags, options.encode())


def _watch(child: int, lifeline: int, wake: int, unsized: Spec | None) -> int:
    """Wait for the command's end, the engine's word or its death; the exit status to report.

    A scratch folder without a file system of its own is looked at every 0.1 s. Files that are open but have no name are
    not seen there: so the command also ends when the disk is about to fill.
    """
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.register(wake, select.POLLIN)
    reserve = _free(unsized["scratch"]) // 2 if unsized else 0
    while True:
        ready = dict(poller.poll(_LOOK_MS if unsized else None))
        if wake in ready and signal.SIGTERM in os.read(wake, 4096):
            return 128 + signal.SIGTERM
        ended = _reap(child)
        if ended is not None:
            return ended
        if lifeline in ready:
            return 128 + signal.SIGKILL
        if unsized:
            budget = unsized["limits"]["scratch_mb"] << 20
            if usage(unsized["scratch"], budget) > budget or _free(unsized["scratch"]) < min(reserve, 256 << 20):
                return 128 + signal.SIGXFSZ


def _free(folder: str) -> int:
    """Bytes that may still be written on the disk of a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _reap(child: int) -> int | None:
    """Take the status of every process that has ended; the exit status of `child` when it is one of them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return found


def _end(child: int) -> None:
    """End the command's process group, which the filter lets nothing leave, then whatever else became our child.

    The kernel signals a group at once, so a process that forks and exits in a loop does not get away. Without a filter
    (level "none") a process may have left the group; such ones are looked for, and a fast enough one may be missed.
    """
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        for pid in _children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], 0.001)


def _children(parent: int) -> list[int]:
    """Direct children, orphans that were handed to us included."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def usage(folder: str, enough: int) -> int:
    """Bytes that a folder's files take on disk; more than `enough` when they are too many or may not be looked at."""
    total, entries, folders = 0, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if entries > MAX_ENTRIES or total > enough:
                        return enough + 1
        except FileNotFoundError:
            continue  # removed while we looked
        except OSError:
            return enough + 1  # closed to us, or nested deeper than a path can say: what hides there is not bounded
    return total


def identity(folder: str) -> tuple[int, int]:
    """What makes a folder itself, whatever its path leads to later: device and inode."""
    found = os.stat(folder, follow_symlinks=False)
    return found.st_dev, found.st_ino


def remove(folder: str, known: tuple[int, int]) -> None:
    """Remove a scratch folder, however deep it is nested and whatever its modes are.

    It never leaves the folder: links are removed, not followed, and neither a mount (on it or in it) nor another folder
    that took its place is entered. All goes through descriptors, so nothing changes under a path meanwhile. Folders are
    lifted to the top before they are emptied, so that no depth exhausts paths, descriptors or the stack.

    Raises:
        OSError: it is not the folder that `known` says, or something is mounted there; that is left as it is.
    """
    parent_path, name = os.path.split(folder)
    with ExitStack() as stack:
        parent = os.open(parent_path, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, parent)
        mount = _mount_of(parent)
        top = _open_folder(name, parent, mount, known)
        stack.callback(os.close, top)
        serial = 0
        while names := os.listdir(top):
            for outer in names:
                if not _is_folder(outer, top):
                    os.unlink(outer, dir_fd=top)
                    continue
                middle = _open_folder(outer, top, mount)
                try:
                    for inner in os.listdir(middle):
                        if not _is_folder(inner, middle):
                            os.unlink(inner, dir_fd=middle)
                            continue
                        os.close(_open_folder(inner, middle, mount))  # moving rewrites its `..`: it must be writable
                        while _exists(lifted := f"lifted-{serial}", top):
                            serial += 1
                        os.rename(inner, lifted, src_dir_fd=middle, dst_dir_fd=top)
                finally:
                    os.close(middle)
                os.rmdir(outer, dir_fd=top)
        os.rmdir(name, dir_fd=parent)


def _open_folder(name: str, parent: int, mount: int, known: tuple[int, int] | None = None) -> int:
    """A folder of `parent`, made readable, if it is `known` and on the same mount (a device can be mounted twice)."""
    place = os.open(name, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        found = os.fstat(place)
        if _mount_of(place) != mount or known not in (None, (found.st_dev, found.st_ino)):
            raise OSError(errno.EXDEV, f"{name!r} is a mount or another folder now: it is left as it is")
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
    finally:
        os.close(place)


def _mount_of(fd: int) -> int:
    """The mount a descriptor was opened through."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _exists(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


# ------------------------------------------------------------------ small pieces


def _close_all_but(kept: set[int]) -> None:
    """Close every descriptor that is not named, whatever its number."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
