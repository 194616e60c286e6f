"""Replicas that share a real Redis: one call over processes, leaders that die, a Redis that vanishes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from agentops.cache import CacheKey
from agentops.cache.breaker import Breaker
from agentops.cache.shared import RedisCache
from agentops.types import CacheRule, Json

pytestmark = pytest.mark.anyio
RULE = CacheRule(60.0)
KEY = CacheKey("acme", "scope", "tool", "policy", {"n": 1})

WORKER = """
import asyncio, os, sys, time
from agentops.cache import CacheKey
from agentops.cache.breaker import Breaker
from agentops.cache.shared import RedisCache
from agentops.types import CacheRule

url, log, pause, callers = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])

def note(word):
    with open(log, "a") as file:
        file.write(f"{word} {os.getpid()}\\n")

async def backend():
    note("started")
    await asyncio.sleep(pause)
    note("completed")
    return {"n": 1}

async def main():
    cache = RedisCache(url, lease_s=0.5, breaker=Breaker((5.0,)))
    key = CacheKey("acme", "scope", "tool", "policy", {"n": 1})
    note("ready")
    while not os.path.exists(log + ".go"):
        await asyncio.sleep(0.005)
    answers = await asyncio.gather(*(cache.get_or_call(key, CacheRule(60.0), ("t",), backend) for _ in range(callers)))
    assert all(value == {"n": 1} for value, _ in answers)
    note("answered")
    await cache.close()

asyncio.run(main())
"""


class Workers:
    """Processes that all ask for the same thing at once, and the log of what they did."""

    def __init__(self, url: str, folder: Path, count: int, pause: float, callers: int) -> None:
        self.log = folder / "log"
        self.log.touch()
        command = [sys.executable, "-c", WORKER, url, str(self.log), str(pause), str(callers)]
        self.processes = [subprocess.Popen(command) for _ in range(count)]
        self.until("ready", count)
        (folder / "log.go").touch()

    def lines(self, word: str) -> list[int]:
        return [int(line.split()[1]) for line in self.log.read_text().splitlines() if line.startswith(word)]

    def until(self, word: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.lines(word)) < count:
            assert time.monotonic() < deadline, f"no {count} times {word!r}: {self.log.read_text()}"
            time.sleep(0.005)

    def join(self) -> list[int]:
        return [process.wait(30) for process in self.processes]


def test_four_processes_make_one_call(redis_url: str, tmp_path: Path) -> None:
    workers = Workers(redis_url, tmp_path, count=4, pause=0.3, callers=50)
    assert workers.join() == [0, 0, 0, 0]
    assert len(workers.lines("started")) == 1


def test_a_killed_leader_is_replaced_once(redis_url: str, tmp_path: Path) -> None:
    workers = Workers(redis_url, tmp_path, count=3, pause=0.7, callers=5)
    workers.until("started", 1)
    time.sleep(0.1)
    leader = workers.lines("started")[0]
    os.kill(leader, signal.SIGKILL)
    codes = dict(zip([process.pid for process in workers.processes], workers.join(), strict=True))
    assert [code for pid, code in codes.items() if pid != leader] == [0, 0]
    assert len(workers.lines("started")) == 2
    assert len(workers.lines("completed")) == 1


async def test_a_write_in_one_replica_makes_the_value_stale_in_another(redis_url: str) -> None:
    one, two = RedisCache(redis_url, breaker=Breaker((5.0,))), RedisCache(redis_url, breaker=Breaker((5.0,)))
    answer = {"value": "old"}
    release = asyncio.Event()

    async def read() -> Json:
        return answer["value"]

    async def slow_read() -> Json:
        found = answer["value"]
        await release.wait()
        return found

    await one.get_or_call(KEY, RULE, ("t",), read)
    assert await two.get_or_call(KEY, RULE, ("t",), read) == ("old", True)
    await two.invalidate("acme", ["t"])
    slow = asyncio.create_task(one.get_or_call(KEY, RULE, ("t",), slow_read))
    await asyncio.sleep(0.05)
    answer["value"] = "new"
    await two.invalidate("acme", ["t"])
    assert await two.get_or_call(KEY, RULE, ("t",), read) == ("new", False)  # takes the outdated leader's place
    release.set()
    assert (await slow)[0] == "old"
    assert await one.get_or_call(KEY, RULE, ("t",), read) == ("new", True)
    await one.close()
    await two.close()


async def test_lost_generations_are_a_miss_and_foreign_replies_are_never_served(redis_url: str) -> None:
    cache = RedisCache(redis_url, breaker=Breaker((5.0,)))

    async def read() -> Json:
        return "mine"

    await cache.get_or_call(KEY, RULE, ("t",), read)
    with redis.Redis.from_url(redis_url) as client:
        entry = next(iter(client.scan_iter("*:e:*")))
        assert entry.startswith(b"agentops:cache:{acme}:")
        client.set(entry, client.get(entry)[64:])  # an entry without its own key's digest
        assert await cache.get_or_call(KEY, RULE, ("t",), read) == ("mine", False)
        for generation in client.scan_iter("*:g:*"):
            client.delete(generation)
    assert await cache.get_or_call(KEY, RULE, ("t",), read) == ("mine", False)
    await cache.close()


async def test_redis_killed_and_restarted_under_traffic(server) -> None:
    cache = RedisCache(server.url, breaker=Breaker(rest_s=0.1))
    truth = dict.fromkeys(range(5), 0)
    slowest = 0.0
    errors: list[Exception] = []
    stop = asyncio.Event()

    async def reader(n: int) -> None:
        nonlocal slowest
        key = CacheKey("acme", "scope", "tool", "policy", {"n": n})

        async def read() -> Json:
            return truth[n]

        while not stop.is_set():
            at_least = truth[n]
            began = time.perf_counter()
            try:
                value, _ = await cache.get_or_call(key, RULE, (f"n:{n}",), read)
            except Exception as error:
                errors.append(error)
                return
            slowest = max(slowest, time.perf_counter() - began)
            assert at_least <= value <= truth[n]
            await asyncio.sleep(0.002)

    async def writer() -> None:
        while not stop.is_set():
            for n in truth:
                truth[n] += 1
                await cache.invalidate("acme", [f"n:{n}"])
                await asyncio.sleep(0.003)

    async def chaos() -> None:
        for _ in range(2):
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.3)
            server.pause()
            await asyncio.sleep(0.4)
            server.resume()
        await asyncio.sleep(0.3)
        stop.set()

    results = await asyncio.gather(*(reader(n) for n in truth), writer(), chaos(), return_exceptions=True)
    assert [one for one in results if one is not None] == []
    assert errors == []
    assert cache.breaker.failures > 0
    assert slowest < 2.0
    hits = []
    for _ in range(100):  # it is used again by itself
        hits.append((await cache.get_or_call(KEY, RULE, ("x",), lambda: asyncio.sleep(0, "v")))[1])
        if hits[-1]:
            break
        await asyncio.sleep(0.05)
    assert hits[-1]
    await cache.close()


async def test_a_redis_that_was_never_there(tmp_path: Path) -> None:
    cache = RedisCache("redis://127.0.0.1:1/0")
    began = time.perf_counter()
    for n in range(20):
        assert await cache.get_or_call(KEY, RULE, ("t",), lambda n=n: asyncio.sleep(0, n)) == (n, False)
    await cache.invalidate("acme", ["t"])
    assert time.perf_counter() - began < 1.0
    await cache.close()


async def test_a_full_redis_is_no_error(server) -> None:
    cache = RedisCache(server.url)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1")
        for n in range(3):
            assert await cache.get_or_call(KEY, RULE, ("t",), lambda n=n: asyncio.sleep(0, n)) == (n, False)
        await cache.invalidate("acme", ["t"])
        client.config_set("maxmemory", "0")
    await asyncio.sleep(1.1)
    assert await cache.get_or_call(KEY, RULE, ("t",), lambda: asyncio.sleep(0, "a")) == ("a", False)
    assert await cache.get_or_call(KEY, RULE, ("t",), lambda: asyncio.sleep(0, "b")) == ("a", True)
    await cache.close()
