"""The system call filter, run by an interpreter of classic BPF: no kernel of the other architecture is needed."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.act.sandbox.seccomp import NEWEST, build
from agentops.errors import SandboxError

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
FILTERS = {
    (machine, mounts, shared, abi): build(mounts=mounts, shared_uid=shared, landlock_abi=abi, machine=machine)
    for machine in ARCH
    for mounts in (True, False)
    for shared in (True, False)
    for abi in (0, 2, 3, 5, 6)
}
# numbers by architecture, from the kernel's own headers
SOCKET, SOCKETPAIR, CLONE, KILL_CALL = (41, 198), (53, 199), (56, 220), (62, 129)
READ, OPENAT, TRUNCATE, IOCTL, FCHMOD = (0, 63), (257, 56), (76, 45), (16, 29), (91, 52)


def decide(program: bytes, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """What the filter answers to one call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *(*args, *[0] * (6 - len(args))))
    code = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        op, then, otherwise, k = code[at]
        at += 1
        if op == 0x06:
            return k
        if op == 0x20:
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif op == 0x54:
            accumulator &= k
        else:
            holds = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: accumulator & k != 0}
            at += then if holds[op] else otherwise


def answer(machine: str, call: tuple[int, int], *args: int, mounts=False, shared=True, abi=6) -> int:
    program = FILTERS[machine, mounts, shared, abi]
    return decide(program, ARCH[machine], call[list(ARCH).index(machine)], args)


@given(st.sampled_from(sorted(FILTERS)), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_call_gets_one_of_four_answers(which, number, args) -> None:
    said = decide(FILTERS[which], ARCH[which[0]], number, tuple(args))
    assert said in (ALLOW, KILL, EPERM, ENOSYS)
    if number > NEWEST:
        assert said in (KILL, ENOSYS)


@given(st.sampled_from(sorted(FILTERS)), st.integers(0, NEWEST), st.integers(0, 2**32 - 1))
def test_another_architecture_is_deadly(which, number, arch) -> None:
    if arch != ARCH[which[0]]:
        assert decide(FILTERS[which], arch, number) == KILL


@given(st.sampled_from(["x86_64", "aarch64"]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_only_a_local_stream_pair_can_be_made(machine, family, kind) -> None:
    assert answer(machine, SOCKET, family, kind) == EPERM
    fine = family & 0xFFFFFFFF == 1 and kind & 0xF == 1
    assert answer(machine, SOCKETPAIR, family, kind) == (ALLOW if fine else EPERM)


@given(st.sampled_from(["x86_64", "aarch64"]), st.integers(0, 2**64 - 1))
def test_no_namespace_is_made_by_clone(machine, flags) -> None:
    assert answer(machine, CLONE, flags) == (EPERM if flags & 0x7E020000 else ALLOW)


@pytest.mark.parametrize("machine", ARCH)
def test_what_landlock_lacks_is_refused(machine: str) -> None:
    read_and_cut = (0, 0, 0o1000)
    assert answer(machine, READ) == ALLOW
    assert answer(machine, TRUNCATE, abi=2) == EPERM
    assert answer(machine, TRUNCATE, abi=3) == ALLOW
    assert answer(machine, OPENAT, *read_and_cut, abi=2) == EPERM
    assert answer(machine, OPENAT, 0, 0, 0o1001, abi=2) == ALLOW
    assert answer(machine, OPENAT, *read_and_cut, abi=3) == ALLOW
    assert answer(machine, KILL_CALL, 1, 9, abi=5) == EPERM
    assert answer(machine, KILL_CALL, 1, 9, abi=5, shared=False) == ALLOW
    assert answer(machine, KILL_CALL, 1, 9, abi=6) == ALLOW
    assert answer(machine, FCHMOD, abi=6) == EPERM
    assert answer(machine, FCHMOD, abi=6, mounts=True) == ALLOW
    assert answer(machine, IOCTL, 0, 0x5412) == EPERM
    assert answer(machine, IOCTL, 0, 2**32 + 0x5412) == EPERM
    assert answer(machine, IOCTL, 0, 0x5413) == ALLOW


def test_an_unknown_architecture_has_no_filter() -> None:
    with pytest.raises(SandboxError, match="riscv64"):
        build(mounts=True, shared_uid=False, landlock_abi=6, machine="riscv64")
