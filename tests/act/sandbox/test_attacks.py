"""What a hostile tool would try. Each attack is shown to work without isolation, where the test's user could do it."""

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentops.act.sandbox import Profile, missing
from agentops.types import Level

PREAMBLE = """
import ctypes, json, os, resource, signal, socket, sys
a = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *args):
    number = x86 if os.uname().machine == "x86_64" else arm
    check(libc.syscall(number, *[ctypes.c_long(x) for x in args]))
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attack():
    {attack}
try:
    attack()
except OSError as error:
    print("refused", error.errno)
else:
    print("succeeded")
"""

# name -> (code, who is shown to succeed without isolation: "anyone", the machine's "root", or "" nobody)
ATTACKS: dict[str, tuple[str, str]] = {
    "shadow passwords": ('open("/etc/shadow").read()', "root"),
    "state of the project": ('open(a["secret"]).read()', "anyone"),
    "names in the project": ('os.listdir(a["project"])', "anyone"),
    "environment of a process": ('open(f"/proc/{a[\'victim\']}/environ", "rb").read()', "anyone"),
    "arguments of a process": ('open(f"/proc/{a[\'victim\']}/cmdline", "rb").read()', "anyone"),
    "memory of a process": ('open(f"/proc/{a[\'victim\']}/mem", "rb")', "root"),
    "root of the first process": ('open("/proc/1/root" + a["secret"]).read()', ""),
    "own root": ('open("/proc/self/root" + a["secret"]).read()', "anyone"),
    "way up": ('open("/tmp/.." + a["secret"]).read()', "anyone"),
    "link from scratch": ('os.symlink(a["secret"], "link"); open("link").read()', "anyone"),
    "hard link from scratch": ('os.link(a["secret"], a["project"] + "/hard")', "anyone"),
    "file moved away": ('os.rename(a["spare"], a["spare"] + "-moved")', "anyone"),
    "new file outside": ('open(a["project"] + "/new", "w")', "anyone"),
    "new file in a shared folder": ('open(a["shared"] + "/new", "w")', "anyone"),
    "new folder": ('os.mkdir(a["project"] + "/folder")', "anyone"),
    "new pipe": ('os.mkfifo(a["shared"] + "/pipe")', "anyone"),
    "file changed": ('open(a["shared"] + "/open", "r+")', "anyone"),
    "file cut": ('os.truncate(a["shared"] + "/open", 0)', "anyone"),
    "readable file changed": ('open(a["granted"], "r+")', "anyone"),
    "readable file cut": ('os.close(os.open(a["granted"], os.O_RDONLY | os.O_TRUNC))', "anyone"),
    "readable file's mode": ('os.chmod(a["granted"], 0o777)', "anyone"),
    "readable file's mode by descriptor": ('os.fchmod(os.open(a["granted"], os.O_RDONLY), 0o777)', "anyone"),
    "readable file's times": ("os.utime(a['granted'], (1, 1))", "anyone"),
    "readable file's attributes": ("os.setxattr(a['granted'], 'user.x', b'1')", ""),
    "readable file removed": ('os.remove(a["granted"] + "-too")', "anyone"),
    "mode of a file outside": ('os.chmod(a["secret"], 0o777)', "anyone"),
    "loopback": ('socket.create_connection(("127.0.0.1", a["port"]), 2)', "anyone"),
    "name": ('socket.getaddrinfo("localhost", 80)', "anyone"),
    "UDP": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "anyone"),
    "IPv6": ("socket.socket(socket.AF_INET6, socket.SOCK_STREAM)", ""),
    "raw socket": ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "root"),
    "netlink": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "anyone"),
    "packets": ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "root"),
    "local socket": ("socket.socket(socket.AF_UNIX)", "anyone"),
    "local datagram pair": ("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "anyone"),
    "pair listens": ("socket.socketpair()[0].listen()", ""),
    "signal to a process": ("os.kill(a['victim'], 0)", "anyone"),
    "signal to the engine": ("os.kill(a['engine'], 0)", "anyone"),
    "signal by descriptor": ("signal.pidfd_send_signal(os.pidfd_open(a['victim']), 0)", "anyone"),
    "signal to a thread": ("call(234, 131, a['victim'], a['victim'], 0)", "anyone"),
    "limits of a process": ("resource.prlimit(a['victim'], resource.RLIMIT_NOFILE, (9, 9))", "anyone"),
    "priority of a process": ("os.setpriority(os.PRIO_PROCESS, a['victim'], 19)", "anyone"),
    "priority of a user": ("os.setpriority(os.PRIO_USER, 0, 19)", ""),
    "processors of a process": ("os.sched_setaffinity(a['victim'], {0})", "anyone"),
    "trace a process": ("check(libc.ptrace(16, a['victim'], None, None))", "root"),
    "memory of a process by call": ("call(310, 270, a['victim'], 0, 0, 0, 0, 0)", "root"),
    "descriptor of a process": ("call(438, 438, os.pidfd_open(a['victim']), 0, 0)", "root"),
    "be root": ("os.setuid(0)", "root"),
    "groups": ("os.setgroups([0])", "root"),
    "mount": ('check(libc.mount(b"none", b".", b"tmpfs", 0, None))', ""),
    "bind mount": ('check(libc.mount(b"/etc", b".", None, 4096, None))', ""),
    "user namespace": ("check(libc.unshare(0x10000000))", "root"),
    "network namespace": ("check(libc.unshare(0x40000000))", "root"),
    "namespace by clone": ("call(56, 220, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)", ""),
    "other root": ('os.chroot(".")', "root"),
    "memory file": ("os.memfd_create('x')", "anyone"),
    "shared memory": ("call(29, 194, 0, 4096, 0o1600)", "anyone"),
    "message queue": ("call(68, 186, 0, 0o1600)", "anyone"),
    "keys": ("call(250, 219, 0, -3, 0)", ""),
    "BPF": ("call(321, 280, 0, 0, 0)", ""),
    "performance counters": ("call(298, 241, 0, 0, -1, -1, 0)", ""),
    "user faults": ("call(323, 282, 1)", ""),
    "io_uring": ("call(425, 425, 1, 0)", ""),
    "modules": ("call(175, 105, 0, 0, 0)", ""),
    "open by handle": ("call(304, 265, -100, 0, 0)", ""),
    "personality": ("call(135, 92, 0x0040000)", ""),
    "outlive the supervisor": ("check(libc.prctl(1, 0, 0, 0, 0))", "anyone"),
    "signals by file": ("import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, a['victim'])", ""),
    "type into a terminal": ("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", ""),
    "leave the group": (
        "child = os.fork()\n    if child == 0:\n        try:\n            os.setsid()\n        except OSError:\n"
        "            os._exit(1)\n        os._exit(0)\n    check(-os.waitpid(child, 0)[1])",
        "anyone",
    ),
}
ROOT = 1 << 19 | 1 << 21  # CAP_SYS_PTRACE, CAP_SYS_ADMIN: a container's root has neither
_held = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
SHOWN = [name for name, (_, by) in ATTACKS.items() if by == "anyone" or (by == "root" and _held & ROOT == ROOT)]


@pytest.fixture(scope="module")
def victim() -> Iterator[int]:
    """A process with secrets in its arguments and environment."""
    sleeper = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)", "secret-argument"]
    process = subprocess.Popen(sleeper, env={"TOKEN": "secret"})
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def target(tmp_path: Path, victim: int) -> Iterator[dict[str, object]]:
    """A project with state, a process, a server; files open to every user, so that only the isolation refuses."""
    for folder in (*tmp_path.parents[:2], tmp_path):
        folder.chmod(0o755)
    project = tmp_path / "project"
    (project / ".agentops").mkdir(parents=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    for folder in (project, project / ".agentops", shared):
        folder.chmod(0o777)
    files = {"secret": project / ".agentops" / "audit.log", "spare": shared / "spare", "open": shared / "open"}
    granted = tmp_path / "granted"
    granted.mkdir()
    granted.chmod(0o777)
    files |= {"granted": granted / "file", "too": granted / "file-too"}
    for file in files.values():
        file.write_text("secret")
        file.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "secret": str(files["secret"]),
            "spare": str(files["spare"]),
            "granted": str(files["granted"]),
            "project": str(project),
            "shared": str(shared),
            "victim": victim,
            "engine": os.getpid(),
            "port": server.getsockname()[1],
        }


def attempt(inside: Callable[..., tuple[int, str]], level: Level, name: str, target: dict[str, object]) -> str:
    code = PREAMBLE.replace("{attack}", ATTACKS[name][0])
    profile = Profile(read=(Path(str(target["granted"])).parent,))
    _, said = inside(level, code, profile, [json.dumps(target)])
    return said


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused(inside, level: Level, name: str, target) -> None:
    assert attempt(inside, level, name, target).startswith("refused")
    assert Path(target["secret"]).read_text() == "secret"
    assert Path(target["granted"]).read_text() == "secret"


@pytest.mark.parametrize("name", SHOWN)
def test_it_works_without_isolation(inside, name: str, target) -> None:
    """So that the refusal above is the isolation's doing. It is why "none" is for tools that are trusted."""
    assert attempt(inside, "none", name, target) == "succeeded\n"


def test_what_is_granted_can_be_read(inside, level: Level, target) -> None:
    code = "import sys; print(open(sys.argv[1]).read())"
    granted = Path(target["granted"])
    assert inside(level, code, Profile(read=(granted.parent,)), [str(granted)]) == (0, "secret\n")
    assert inside(level, code, Profile(read=(granted,)), [str(granted)]) == (0, "secret\n")


def test_newer_calls_do_not_exist(inside, level: Level) -> None:
    code = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
    code += "print(libc.syscall({}, -1, 0, 0, 0), ctypes.get_errno())"
    for number in (435, 437, 451, 500, 100_000):  # clone3, openat2, cachestat, ...
        assert inside(level, code.replace("{}", str(number))) == (0, "-1 38\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a second calling convention is x86-64's own")
def test_the_other_calling_convention_is_deadly(inside, level: Level) -> None:
    code = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"
    assert inside(level, code)[0] == 128 + signal.SIGSYS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_root_becomes_a_user_of_its_own(inside, level: Level) -> None:
    code = "import os; print(*os.getresuid(), *os.getresgid(), os.getgroups())"
    first, second = inside(level, code)[1], inside(level, code)[1]
    user = first.split()[0]
    assert int(user) > 60_000
    assert first == f"{' '.join([user] * 6)} []\n"
    assert missing(level) == ""
    assert first != second
