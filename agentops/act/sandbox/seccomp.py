"""A classic BPF filter for system calls, assembled by hand for x86-64 and aarch64.

Invariant: a call from another architecture or calling convention kills the process, and a call newer than the newest
this file knows does not exist (ENOSYS); so a kernel update never opens a door by itself.
It does not confine paths (Landlock, mounts do), nor load the filter: `shim` does, as its last step.

Sources: Linux `seccomp(2)` and `struct seccomp_data`, numbers of `asm/unistd_64.h` and `asm-generic/unistd.h` (6.1).
Arguments that the kernel itself cuts to 32 bits (flags, commands, process ids) are compared by their low word only.
"""

import errno
import platform
import struct
from dataclasses import dataclass

from agentops.errors import SandboxError

NEWEST = 450  # set_mempolicy_home_node; the same on both architectures
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # x86-64 calls with this bit belong to another calling convention

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _AND, _JEQ, _JGT, _JGE, _JSET, _RET = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
_WORD = 0xFFFFFFFF

Numbers = tuple[int | None, int | None]  # of one call on x86-64 and aarch64; None: no such call there

# Refused whatever the arguments.
_REFUSED: dict[str, Numbers] = {
    # sockets: only a connected pair may be made (below); `connect` would turn one that was handed in elsewhere
    "socket": (41, 198),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # leaving the process group: `kill` ends the group at once, so nothing may leave it
    "setsid": (112, 157),
    "setpgid": (109, 154),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    # kernel surface no tool needs, often the way into the kernel
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # files by handle go around every path rule
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # the machine
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "nfsservctl": (180, 42),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "personality": (135, 92),
    # memory that no limit of a process counts, and objects all processes of a user share
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
}

# Arguments in memory cannot be checked: "not there" makes the C library use the older call, which can.
_ABSENT: dict[str, Numbers] = {"clone3": (435, 435), "openat2": (437, 437)}

# Landlock knows no right for these. A process that shares its user with the engine could change the engine's files.
_METADATA: dict[str, Numbers] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
}
# Nor for these, which a file that every user may write allows every user.
_ATTRIBUTES: dict[str, Numbers] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_TRUNCATE: dict[str, Numbers] = {"truncate": (76, 45)}  # a Landlock right only from ABI 3 on
_SIGNALS: dict[str, Numbers] = {  # scoped by Landlock only from ABI 6 on
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}


@dataclass(frozen=True, slots=True)
class _Test:
    """`args[arg] & mask == value`, or with `value` None: any bit of `mask` is set."""

    arg: int
    value: int | None
    mask: int = _WORD


# Refused when any test holds.
_REFUSED_WHEN: dict[str, tuple[Numbers, tuple[_Test, ...]]] = {
    "clone": ((56, 220), (_Test(0, None, 0x7E020000),)),  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
    "ioctl": ((16, 29), (_Test(1, 0x5412), _Test(1, 0x541C))),  # TIOCSTI, TIOCLINUX: typing into a terminal
    "fcntl": ((72, 25), (_Test(1, 8), _Test(1, 15))),  # F_SETOWN, F_SETOWN_EX: signals to another process
    "prctl": ((157, 167), (_Test(0, 1),)),  # PR_SET_PDEATHSIG: the first process dies with its supervisor
}
# O_TRUNC without a right to write: Landlock sees a read only before ABI 3.
_TRUNCATING = (0o1000, 0o1003)  # O_TRUNC; O_TRUNC | O_ACCMODE
_OPENS: dict[str, tuple[Numbers, tuple[_Test, ...]]] = {
    "open": ((2, None), (_Test(1, *_TRUNCATING),)),
    "openat": ((257, 56), (_Test(2, *_TRUNCATING),)),
}
# Allowed only when every test holds.
_ALLOWED_WHEN: dict[str, tuple[Numbers, tuple[_Test, ...]]] = {
    "socketpair": ((53, 199), (_Test(0, 1), _Test(1, 1, 0xF))),  # AF_UNIX, SOCK_STREAM: a datagram one can be re-aimed
    "prlimit64": ((302, 261), (_Test(0, 0),)),  # its own limits
    "sched_setaffinity": ((203, 122), (_Test(0, 0),)),
    "sched_setscheduler": ((144, 119), (_Test(0, 0),)),
    "sched_setparam": ((142, 118), (_Test(0, 0),)),
    "sched_setattr": ((314, 274), (_Test(0, 0),)),
    "setpriority": ((141, 140), (_Test(0, 0), _Test(1, 0))),
    "ioprio_set": ((251, 30), (_Test(0, 1), _Test(1, 0))),
}


def build(*, mounts: bool, shared_uid: bool, landlock_abi: int, machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`.

    Args:
        mounts: paths and signals are confined by namespaces (bubblewrap), so Landlock's gaps need not be filled.
        shared_uid: the process runs as the engine's own user.
        landlock_abi: the kernel's Landlock version, 0 without.
        machine: an architecture as `platform.machine()` names it; this one's by default.

    Raises:
        SandboxError: the architecture is not x86-64 or aarch64.
    """
    machine = machine or platform.machine()
    if machine not in _ARCH:
        raise SandboxError(f"no system call filter for {machine!r}: use x86_64 or aarch64, or ask for level 'none'")
    column = list(_ARCH).index(machine)
    refused, refused_when = dict(_REFUSED), dict(_REFUSED_WHEN)
    if not mounts:
        refused |= _ATTRIBUTES
        if shared_uid:
            refused |= _METADATA
        if landlock_abi < 3:
            refused |= _TRUNCATE
            refused_when |= _OPENS
        if shared_uid and landlock_abi < 6:
            refused |= _SIGNALS
    code = _prologue(machine)
    for table, error in ((refused, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                code += [_op(_JEQ, number, 0, 1), _op(_RET, _ERRNO | error)]
    for rules, all_must_hold in ((refused_when, False), (_ALLOWED_WHEN, True)):
        for numbers, tests in rules.values():
            if (number := numbers[column]) is not None:
                code += _conditional(number, tests, all_must_hold)
    return b"".join([*code, _op(_RET, _ALLOW)])


def _op(code: int, k: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One `struct sock_filter`; the jumps count instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, k)


def _prologue(machine: str) -> list[bytes]:
    """Kill what does not come from `machine`; leave the call's number in the accumulator."""
    code = [_op(_LOAD, 4), _op(_JEQ, _ARCH[machine], 1, 0), _op(_RET, _KILL), _op(_LOAD, 0)]
    if machine == "x86_64":
        code += [_op(_JGE, _X32, 0, 1), _op(_RET, _KILL)]
    return [*code, _op(_JGT, NEWEST, 0, 1), _op(_RET, _ERRNO | errno.ENOSYS)]


def _conditional(number: int, tests: tuple[_Test, ...], all_must_hold: bool) -> list[bytes]:
    """A block that decides call `number` by its arguments and returns on every path through it."""
    body = []
    jump = (1, 0) if all_must_hold else (0, 1)  # skip the refusal when the test holds, or when it does not
    for test in tests:
        body.append(_op(_LOAD, 16 + 8 * test.arg))  # low word: both architectures are little-endian
        if test.value is None:
            body.append(_op(_JSET, test.mask, *jump))
        else:
            if test.mask != _WORD:
                body.append(_op(_AND, test.mask))
            body.append(_op(_JEQ, test.value, *jump))
        body.append(_op(_RET, _ERRNO | errno.EPERM))
    body.append(_op(_RET, _ALLOW))
    return [_op(_JEQ, number, 0, len(body)), *body]
