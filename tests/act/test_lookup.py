"""Hosts are looked up once, in bounded time; what was found is pinned."""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from agentops.act import bounds, lookup
from agentops.act.lookup import look_up, pins, system_resolver
from agentops.parsers import Url, url

pytestmark = pytest.mark.anyio


def asked(*texts: str) -> dict[str, Url]:
    return {f"u{number}": url(text) for number, text in enumerate(texts)}


async def test_addresses_by_argument_in_one_spelling() -> None:
    calls: list[tuple[str, int]] = []

    async def resolver(host: str, port: int) -> Sequence[str]:
        calls.append((host, port))
        return ["::ffff:93.184.216.34", "2606:4700:0::1111", "fe80::1%eth0"]

    hosts = asked("https://a.test/x", "https://a.test/y", "http://a.test:8080/")
    found = await look_up(hosts, resolver)
    assert found == {name: ["93.184.216.34", "2606:4700::1111", "fe80::1"] for name in hosts}
    assert sorted(calls) == [("a.test", 443), ("a.test", 8080)], "two arguments with one host share one answer"
    assert pins(hosts, found) == {"a.test:443": "93.184.216.34", "a.test:8080": "93.184.216.34"}


async def test_an_answer_that_changes_later_does_not_move_the_pin() -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    hosts = asked("https://a.test/")
    found = await look_up(hosts, rebinding)
    assert await rebinding("a.test", 443) == ["127.0.0.1"]
    assert pins(hosts, found) == {"a.test:443": "93.184.216.34"}


@pytest.mark.parametrize("answer", [[], ["not an address"], ["93.184.216.34", "0x7f.1"], OSError("no such host")])
async def test_what_is_not_found_is_left_out(answer: list[str] | OSError) -> None:
    async def resolver(host: str, port: int) -> Sequence[str]:
        if host == "good.test":
            return ["93.184.216.34"]
        if isinstance(answer, OSError):
            raise answer
        return answer

    hosts = asked("https://good.test/", "https://bad.test/")
    found = await look_up(hosts, resolver)
    assert found == {"u0": ["93.184.216.34"]}
    assert pins(hosts, found) == {"good.test:443": "93.184.216.34"}


async def test_a_resolver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real blocking lookup: the call goes on after the time limit, and hanging threads are bounded."""
    release = threading.Event()

    def hangs(*_: object, **__: object) -> list[object]:
        release.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    started = time.monotonic()
    try:
        hosts = asked(*(f"https://h{number}.test/" for number in range(lookup.MAX_THREADS)))
        assert await look_up(hosts, timeout_s=0.2) == {}
        assert time.monotonic() - started < 3
        before = threading.active_count()
        with pytest.raises(OSError, match="too many lookups"):
            await system_resolver("one-more.test", 443)
        assert threading.active_count() == before
    finally:
        release.set()
    for _ in range(100):
        if not any(thread.name == "lookup" for thread in threading.enumerate()):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("threads of lookups are still there")
    monkeypatch.undo()
    assert await system_resolver("localhost", 80), "and lookups work again"


async def test_the_systems_resolver() -> None:
    assert set(await look_up(asked("http://localhost:8080/"))) == {"u0"}
    assert {"127.0.0.1", "::1"} & set((await look_up(asked("http://localhost/")))["u0"])


# ------------------------------------------------------------------ how large arguments may be


def cyclic() -> list[object]:
    inside: list[object] = []
    inside.append(inside)
    return inside


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": "x" * 50_000_000}, "bytes"),
        ({"x" * 50_000_000: 1}, "bytes"),
        ({"a": [[]] * 3_000_000}, "bytes"),
        ({"a": ["x" * 60_000] * 2}, "bytes"),
        ({"a": list(range(20_000))}, "bytes"),
        ({"a": 10**100_000}, "bytes"),
        ({"a": deep(10_000)}, "deeper"),
        ({"a": cyclic()}, "deeper"),
        ({"a": deep(65)}, "deeper"),
    ],
)
def test_too_much_is_refused_in_bounded_time(value: dict, why: str) -> None:
    start = time.thread_time()
    assert why in bounds.excess(value)
    assert time.thread_time() - start < 0.25


@pytest.mark.parametrize("value", [{}, {"a": deep(60)}, {"a": "x" * 65_000}, {"a": [1, 2.5, None, True, "é", 2**53]}])
def test_what_fits(value: dict) -> None:
    assert bounds.excess(value) == ""
