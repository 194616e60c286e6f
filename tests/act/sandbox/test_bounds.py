"""Bombs stay small, nothing leaks in, and nothing is left behind."""

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest

from agentops.act.sandbox import Profile, missing
from agentops.act.sandbox.process import start
from agentops.types import Level

FORK_BOMB = """
import os, sys, time
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made, flush=True)
time.sleep(100)
"""
# Each process forks and leaves at once, so a list of processes is old before it is read.
HOPPERS = """
import os, sys
print("go", flush=True)
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4().hex}"


def test_a_fork_bomb_stays_small_and_ends_whole(launch, level: Level, marker: str, processes) -> None:
    bomb = launch(level, FORK_BOMB, Profile(processes=10), [marker], stdout=subprocess.PIPE)
    assert 5 <= int(bomb.process.stdout.readline()) <= 10
    assert 6 <= len(processes(marker)) <= 12
    bomb.kill()
    assert processes(marker) == []


def test_processes_that_fork_and_leave_end_too(launch, level: Level, marker: str, processes) -> None:
    code = "import os\nfor _ in range(6):\n    if os.fork() == 0:\n        break\n" + HOPPERS
    bomb = launch(level, code, Profile(processes=10), [marker], stdout=subprocess.PIPE)
    bomb.process.stdout.readline()
    time.sleep(0.3)
    bomb.kill()
    assert processes(marker) == []


def test_what_the_command_leaves_running_ends_with_it(launch, level: Level, marker: str, processes) -> None:
    code = (
        "import os, time\nif os.fork() == 0:\n    os.dup2(os.open('/dev/null', 2), 1); os.dup2(1, 2); time.sleep(100)"
    )
    sandboxed = launch(level, code, None, [marker])
    assert sandboxed.process.wait(20) == 0
    sandboxed.kill()
    assert processes(marker) == []


def test_memory_is_bounded(inside, level: Level) -> None:
    code = """
held = []
try:
    while True:
        held.append(bytearray(1 << 20))
except MemoryError:
    megabytes = len(held)
    held.clear()
    print(megabytes)
"""
    status, said = inside(level, code, Profile(memory_mb=200))
    assert status == 0
    assert 100 < int(said) < 200


def test_files_and_folder_are_bounded(inside, level: Level) -> None:
    one = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('one', 'wb').write(bytes(3 << 20))"
    status, said = inside(level, one, Profile(file_mb=2))
    assert (status, "File too large" in said) == (1, True)
    many = "import time\nfor n in range(100):\n    open(str(n), 'wb').write(bytes(1 << 20))\ntime.sleep(1)"
    assert inside(level, many, Profile(scratch_mb=8))[0] != 0
    unnamed = "import os\nfor n in range(100):\n    f = os.open('x', 66); os.unlink('x')\n"
    unnamed += "    print(os.write(f, bytes(1 << 20)), flush=True)"
    if level == "bubblewrap":
        status, said = inside(level, unnamed, Profile(scratch_mb=8, open_files=200))
        assert (status, "No space left" in said) == (1, True)


def test_processor_time_is_bounded(inside, level: Level) -> None:
    assert inside(level, "while True: pass", Profile(cpu_s=1))[0] == 128 + signal.SIGKILL


def test_descriptors_are_bounded(inside, level: Level) -> None:
    code = "import os\nn = 0\ntry:\n    while True:\n        n = os.open('/dev/null', 0)\nexcept OSError:\n    print(n)"
    assert 20 < int(inside(level, code, Profile(open_files=40))[1]) < 40


def test_only_given_descriptors_are_inherited(inside, level: Level, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    ours, given = socket.socketpair()
    code = """
import os, socket, sys
found = []
for fd in range(3, 1024):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
socket.socket(fileno=int(sys.argv[1])).sendall(str(found).encode())
"""
    with ours, given:
        assert inside(level, code, None, [str(given.fileno())], pass_fds=[given.fileno()]) == (0, "")
        assert ours.recv(1000).decode() == str([given.fileno()])
    os.close(secret)


def test_environment_is_what_was_given(inside, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    code = "import os; print(sorted(os.environ.items()))"
    _, said = inside(level, code, None, env={"CITY": "Bonn"})
    assert said == "[('CITY', 'Bonn'), ('LANG', 'C.UTF-8'), ('PATH', '/usr/bin:/bin')]\n"


def test_orders_are_in_no_command_line(launch, level: Level, marker: str) -> None:
    """What another process of this machine can see of ours: neither the environment nor the restrictions."""
    code = "import time; print(1, flush=True); time.sleep(100)"
    sandboxed = launch(level, code, env={"TOKEN": marker}, stdout=subprocess.PIPE)
    sandboxed.process.stdout.readline()
    assert marker.encode() not in Path(f"/proc/{sandboxed.pid}/cmdline").read_bytes()
    assert marker.encode() not in Path(f"/proc/{sandboxed.pid}/environ").read_bytes()


def test_scratch_is_private_and_gone_afterwards(inside, level: Level) -> None:
    code = "import os, tempfile; open('kept', 'w').write('x'); tempfile.TemporaryFile().write(b'x')\n"
    code += "print(os.getcwd(), [name for name in os.listdir() if not os.path.ismount(name) and os.path.isfile(name)])"
    (_, first), (_, second) = inside(level, code), inside(level, code)
    assert first.endswith(" ['kept']\n"), "a folder there leads to an interpreter that lies below /tmp"
    assert second.endswith(" ['kept']\n")
    folder = first.split()[0]
    assert folder == "/tmp" or not os.path.exists(folder)


def test_nothing_is_left_of_fifty(level: Level, marker: str, processes, tmp_path: Path, monkeypatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os, time; os.makedirs('a/b'); os.symlink('/etc', 'a/link'); os.fork(); time.sleep(100)"
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(50):
        sandboxed = start(level, [sys.executable, "-I", "-S", "-c", code, marker], Profile())
        if turn % 5 == 0:
            time.sleep(0.02)
        sandboxed.kill()
        sandboxed.kill()
    assert len(os.listdir("/proc/self/fd")) == before
    assert processes(marker) == []
    assert list(tmp_path.iterdir()) == []
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    assert not children.exists() or not children.read_text()


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_the_supervisor_may_be_killed(launch, level: Level, death: signal.Signals, marker: str, processes, eventually):
    sandboxed = launch(
        level, "import time; print(1, flush=True); time.sleep(100)", None, [marker], stdout=subprocess.PIPE
    )
    sandboxed.process.stdout.readline()
    sandboxed.process.send_signal(death)
    assert eventually(lambda: processes(marker) == [])
    sandboxed.kill()


def test_the_engine_may_be_killed(level: Level, marker: str, processes, eventually, tmp_path: Path, repo: Path) -> None:
    code = f"""
import sys, tempfile, time
from agentops.act.sandbox import Profile
from agentops.act.sandbox.process import start
tempfile.tempdir = {str(tmp_path)!r}
command = [sys.executable, "-I", "-S", "-c", "import os, time; os.fork(); time.sleep(100)", {marker!r}]
start({level!r}, command, Profile())
print("up", flush=True)
time.sleep(100)
"""
    tmp_path.chmod(0o755)
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=repo)
    assert engine.stdout.readline() == b"up\n"
    assert eventually(lambda: len(processes(marker)) >= 3)  # the engine's own command line holds it too
    engine.kill()
    engine.wait()
    engine.stdout.close()
    assert eventually(lambda: processes(marker) == [])
    assert eventually(lambda: list(tmp_path.iterdir()) == [])


def test_it_outlives_the_thread_that_started_it(launch, level: Level) -> None:
    """bubblewrap's --die-with-parent means the thread, so starting it from a pool's short-lived thread would end it."""
    begun = []
    code = "import sys; print(sys.stdin.readline(), flush=True)"
    more = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    thread = threading.Thread(target=lambda: begun.append(launch(level, code, **more)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    said, _ = begun[0].process.communicate(b"still here\n", timeout=20)
    assert said == b"still here\n\n"


def test_exit_statuses(inside, level: Level) -> None:
    assert inside(level, "raise SystemExit(7)")[0] == 7
    assert inside(level, "import ctypes; ctypes.string_at(0)", Profile())[0] == 128 + signal.SIGSEGV


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes capabilities from root")
def test_a_container_that_allows_no_mounts(tmp_path: Path, repo: Path) -> None:
    """Root without CAP_SYS_ADMIN: the scratch folder gets no file system of its own, so it is watched."""
    if reason := missing("landlock"):
        pytest.skip(reason)
    code = f"""
import subprocess, sys, tempfile
from agentops.act.sandbox import Profile, detect
from agentops.act.sandbox.process import start
tempfile.tempdir = {str(tmp_path)!r}
many = "import sys, time\\nfor n in range(int(sys.argv[1])):\\n    open(str(n), 'wb').write(bytes(int(sys.argv[2])))\\n"
for count, size in ((10, 1000), (1000, 1 << 16), (20_000, 0)):
    command = [sys.executable, "-I", "-S", "-c", many + "time.sleep(2)", str(count), str(size)]
    with start("landlock", command, Profile(scratch_mb=8)) as sandboxed:
        print(sandboxed.process.wait())
print(detect())
"""
    tmp_path.chmod(0o755)
    caps = "-all,+chown,+dac_override,+dac_read_search,+fowner,+kill,+setgid,+setuid,+setpcap"
    command = ["setpriv", f"--bounding-set={caps}", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, cwd=repo, timeout=60)
    full = 128 + signal.SIGXFSZ
    assert said.stdout.split() == ["0", str(full), str(full), "landlock"], said.stderr
    assert list(tmp_path.iterdir()) == []
