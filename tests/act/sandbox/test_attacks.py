"""What a hostile tool would try. Each attack is shown to work without isolation, where the test's user could do it."""

import functools
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
from agentops.act.sandbox.process import start
from agentops.types import Level

# Each attack in a process of its own, so that one cannot help or hinder the next.
CODE = """
import ctypes, json, os, resource, signal, socket, sys
a = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *args):
    number = x86 if os.uname().machine == "x86_64" else arm
    check(libc.syscall(number, *[ctypes.c_long(x) for x in args]))
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
for name, code in json.loads(sys.argv[2]).items():
    child = os.fork()
    if child == 0:
        try:
            exec(code)
            os._exit(0)
        except OSError:
            os._exit(1)
        finally:
            os._exit(2)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep="=", flush=True)
"""
SUCCEEDED, REFUSED = 0, 1

# name -> (code, who is shown to succeed without isolation: "anyone", the machine's "root", or "" nobody)
ATTACKS: dict[str, tuple[str, str]] = {
    "shadow passwords": ('open("/etc/shadow").read()', ""),
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
    # never shown at level none: a mount that root makes there is the machine's
    "mount": ('check(libc.mount(b"none", b".", b"tmpfs", 0, None))', ""),
    "bind mount": ('check(libc.mount(a["shared"].encode(), b".", None, 4096, None))', ""),
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
        "os.setsid()",
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


def lay(folder: Path, victim: int, port: int) -> dict[str, str | int]:
    """A project with state, files; open to every user, so that only the isolation refuses."""
    for above in (*folder.parents[:2], folder):
        above.chmod(0o755)
    project, shared, granted = folder / "project", folder / "shared", folder / "granted"
    state = project / ".agentops"
    for made in (project, state, shared, granted):
        made.mkdir()
        made.chmod(0o777)
    for file in (state / "audit.log", shared / "spare", shared / "open", granted / "file", granted / "file-too"):
        file.write_text("secret")
        file.chmod(0o666)
    places = {"secret": state / "audit.log", "spare": shared / "spare", "granted": granted / "file"}
    places |= {"project": project, "shared": shared}
    return {name: str(path) for name, path in places.items()} | {"victim": victim, "engine": os.getpid(), "port": port}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, victim: int) -> Callable[[Level], dict[str, int]]:
    """What each attack came to at a level: `SUCCEEDED`, `REFUSED`, or how its process died. All are tried once."""

    @functools.cache
    def outcome(level: Level) -> dict[str, int]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            target = lay(tmp_path_factory.mktemp(level), victim, server.getsockname()[1])
            attacks = {name: code for name, (code, _) in ATTACKS.items() if level != "none" or name in SHOWN}
            command = [sys.executable, "-I", "-S", "-c", CODE, json.dumps(target), json.dumps(attacks)]
            granted = Path(str(target["granted"]))
            profile = Profile(read=(granted.parent,))
            with start(level, command, profile, stdout=subprocess.PIPE) as sandboxed:
                said, _ = sandboxed.process.communicate(timeout=60)
        if level != "none":
            assert Path(str(target["secret"])).read_text() == granted.read_text() == "secret"
        results = dict(line.split("=") for line in said.decode().splitlines())
        return {name: int(result) for name, result in results.items()}

    return outcome


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_refused(outcome, level: Level, name: str) -> None:
    assert outcome(level)[name] == REFUSED


@pytest.mark.parametrize("name", SHOWN)
def test_it_works_without_isolation(outcome, name: str) -> None:
    """So that the refusal above is the isolation's doing. It is why "none" is for tools that are trusted."""
    assert outcome("none")[name] == SUCCEEDED


def test_what_is_granted_can_be_read(inside, level: Level, tmp_path: Path) -> None:
    code = "import sys; print(open(sys.argv[1]).read())"
    granted = Path(str(lay(tmp_path, 0, 0)["granted"]))
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
