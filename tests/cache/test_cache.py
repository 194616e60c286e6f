"""What every cache promises, for the one in memory and the one over a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.cache import Cache, CacheKey, MemoryCache, open_cache, scope
from agentops.cache.breaker import Breaker
from agentops.cache.shared import RedisCache
from agentops.errors import ConfigError
from agentops.types import CacheRule, Json

pytestmark = pytest.mark.anyio
RULE = CacheRule(60.0)
KEY = CacheKey("acme", scope("ann", {"orders:read"}), "sha256:tool", "sha256:policy", {"order_id": "A-1"})


class Backend:
    """Counts its calls and answers when told to."""

    def __init__(self, value: Json = None, pause: float = 0.0) -> None:
        self.value = {"status": "shipped"} if value is None else value
        self.pause = pause
        self.calls = 0

    async def __call__(self) -> Json:
        self.calls += 1
        answer = self.value
        await asyncio.sleep(self.pause)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(params=["memory", "redis"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[Cache]:
    if request.param == "memory":
        yield MemoryCache()
        return
    shared = RedisCache(request.getfixturevalue("redis_url"), breaker=Breaker((5.0,)))
    yield shared
    await shared.close()


async def test_a_second_caller_gets_the_stored_value(cache: Cache) -> None:
    backend = Backend()
    assert await cache.get_or_call(KEY, RULE, (), backend) == ({"status": "shipped"}, False)
    assert await cache.get_or_call(KEY, RULE, (), backend) == ({"status": "shipped"}, True)
    assert backend.calls == 1


async def test_callers_never_share_an_object(cache: Cache) -> None:
    backend = Backend({"items": [1]}, pause=0.01)
    answers = await asyncio.gather(*(cache.get_or_call(KEY, RULE, (), backend) for _ in range(3)))
    answers[0][0]["items"].append(2)
    assert [answer["items"] for answer, _ in answers[1:]] == [[1], [1]]
    assert (await cache.get_or_call(KEY, RULE, (), backend))[0] == {"items": [1]}


async def test_200_identical_misses_make_one_call(cache: Cache) -> None:
    backend = Backend(pause=0.05)
    answers = await asyncio.gather(*(cache.get_or_call(KEY, RULE, (), backend) for _ in range(200)))
    assert backend.calls == 1
    assert sorted(hit for _, hit in answers) == [False] + [True] * 199


async def test_an_error_reaches_everyone_who_waited_and_is_not_stored(cache: Cache) -> None:
    backend = Backend(ValueError("broken"), pause=0.02)
    failed = await asyncio.gather(
        *(cache.get_or_call(KEY, RULE, (), backend) for _ in range(5)), return_exceptions=True
    )
    assert [type(one) for one in failed] == [ValueError] * 5
    assert backend.calls == 1
    backend.value = "fine"
    assert await cache.get_or_call(KEY, RULE, (), backend) == ("fine", False)


async def test_a_cancelled_leader_does_not_take_the_call_away(cache: Cache) -> None:
    backend = Backend(pause=0.05)
    leader = asyncio.create_task(cache.get_or_call(KEY, RULE, (), backend))
    await asyncio.sleep(0.02)
    waiter = asyncio.create_task(cache.get_or_call(KEY, RULE, (), backend))
    await asyncio.sleep(0.01)
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    assert await asyncio.wait_for(waiter, 2) == ({"status": "shipped"}, True)
    assert backend.calls == 1


async def test_a_call_nobody_waits_for_ends_and_blocks_nobody(cache: Cache) -> None:
    ended = asyncio.Event()

    async def slow() -> Json:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    only = asyncio.create_task(cache.get_or_call(KEY, RULE, (), slow))
    await asyncio.sleep(0.05)
    only.cancel()
    await asyncio.wait_for(ended.wait(), 2)
    assert await asyncio.wait_for(cache.get_or_call(KEY, RULE, (), Backend("new")), 2) == ("new", False)


async def test_a_write_makes_its_tags_stale_for_its_tenant_only(cache: Cache) -> None:
    other = replace(KEY, tenant="globex")
    kept = replace(KEY, arguments={"order_id": "B-2"})
    backend = Backend()
    for key, tag in ((KEY, "order:A-1"), (other, "order:A-1"), (kept, "order:B-2")):
        await cache.get_or_call(key, RULE, (tag,), backend)
    await cache.invalidate("acme", ["order:A-1"])
    hits = [
        (await cache.get_or_call(key, RULE, (tag,), backend))[1]
        for key, tag in ((KEY, "order:A-1"), (other, "order:A-1"), (kept, "order:B-2"))
    ]
    assert hits == [False, True, True]


async def test_a_read_that_began_before_a_write_is_not_stored_nor_joined_after_it(cache: Cache) -> None:
    old = Backend("old", pause=0.1)
    before = asyncio.create_task(cache.get_or_call(KEY, RULE, ("order:A-1",), old))
    await asyncio.sleep(0.04)
    await cache.invalidate("acme", ["order:A-1"])
    new = Backend("new")
    assert await cache.get_or_call(KEY, RULE, ("order:A-1",), new) == ("new", False)
    assert (await before)[0] == "old"
    assert await cache.get_or_call(KEY, RULE, ("order:A-1",), Backend("unused")) == ("new", True)


async def test_entries_expire(cache: Cache) -> None:
    rule = CacheRule(0.05)
    await cache.get_or_call(KEY, rule, (), Backend("old"))
    await asyncio.sleep(0.08)
    assert await cache.get_or_call(KEY, rule, (), Backend("new")) == ("new", False)
    assert await cache.get_or_call(KEY, CacheRule(0.0), (), Backend("never kept")) == ("new", True)


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "globex"},
        {"scope": scope("bob", {"orders:read"})},
        {"scope": scope("ann", {"orders:read", "orders:write"})},
        {"tool_digest": "sha256:other"},
        {"policy_digest": "sha256:other"},
        {"arguments": {"order_id": "A-2"}},
        {"arguments": {"order_id": ["A-1"]}},
    ],
)
async def test_every_part_of_the_key_counts(cache: Cache, changed: dict) -> None:
    await cache.get_or_call(KEY, RULE, (), Backend("mine"))
    assert await cache.get_or_call(replace(KEY, **changed), RULE, (), Backend("theirs")) == ("theirs", False)


PARTS = st.text(alphabet='ab":,[]{}\\\x00', max_size=6)
VALUES = st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 2) | st.booleans() | PARTS, max_size=2)
KEYS = st.builds(CacheKey, PARTS, PARTS, PARTS, PARTS, VALUES)


def typed(value: Json) -> Json:
    """Tells 1 from True, which compare equal in Python and are different arguments."""
    return {name: (type(item).__name__, item) for name, item in value.items()}


@given(KEYS, KEYS)
async def test_equal_digests_mean_equal_keys(one: CacheKey, other: CacheKey) -> None:
    same = replace(one, arguments={}) == replace(other, arguments={}) and typed(one.arguments) == typed(other.arguments)
    assert (one.digest() == other.digest()) == same


def test_a_key_with_no_json_form_is_refused() -> None:
    with pytest.raises(ValueError):
        replace(KEY, arguments={"x": float("nan")}).digest()


@given(
    st.lists(st.tuples(st.sampled_from(["get", "write", "tick"]), st.integers(0, 3), st.integers(0, 2)), max_size=60)
)
async def test_random_traffic_never_crosses_tenants_nor_serves_a_stale_value(steps: list[tuple[str, int, int]]) -> None:
    now = [0.0]
    cache = MemoryCache(max_entries=4, max_bytes=3_000, now=lambda: now[0])
    truth = {(tenant, order): 0 for tenant in range(4) for order in range(3)}
    for kind, tenant, order in steps:
        if kind == "tick":
            now[0] += order
        elif kind == "write":
            truth[tenant, order] += 1
            await cache.invalidate(str(tenant), [f"order:{order}"])
        else:
            key = CacheKey(str(tenant), "s", "t", "p", {"order": order})

            async def read(at: tuple[int, int] = (tenant, order)) -> Json:
                return [*at, truth[at]]

            value, _ = await cache.get_or_call(key, CacheRule(2.0), (f"order:{order}",), read)
            assert value == [tenant, order, truth[tenant, order]]


async def test_memory_is_bounded_by_entries_and_by_bytes() -> None:
    async def fill(cache: MemoryCache, size: int) -> list[bool]:
        for order in range(10):
            await cache.get_or_call(replace(KEY, arguments={"n": order}), RULE, (f"n:{order}",), Backend("x" * size))
        return [
            (await cache.get_or_call(replace(KEY, arguments={"n": order}), CacheRule(0), (), Backend("y")))[1]
            for order in range(10)
        ]

    assert await fill(MemoryCache(max_entries=3), 10) == [False] * 7 + [True] * 3
    assert await fill(MemoryCache(max_bytes=6_000), 2_000) == [False] * 8 + [True] * 2
    assert await fill(MemoryCache(max_bytes=1_000), 2_000) == [False] * 10


def test_entries_outlive_an_event_loop_and_a_dead_loops_call_blocks_nobody() -> None:
    cache = MemoryCache()

    async def abandon(call: Callable[[], Awaitable[Json]]) -> None:
        task = asyncio.create_task(cache.get_or_call(KEY, RULE, (), call))
        await asyncio.sleep(0.01)
        assert not task.done()

    asyncio.run(abandon(Backend(pause=30)))
    assert asyncio.run(cache.get_or_call(KEY, RULE, (), Backend("kept"))) == ("kept", False)
    assert asyncio.run(cache.get_or_call(KEY, RULE, (), Backend())) == ("kept", True)


def test_open_cache_chooses_by_address_and_never_repeats_a_password() -> None:
    assert isinstance(open_cache(None), MemoryCache)
    assert isinstance(open_cache("redis://:pw@localhost:1/0"), RedisCache)
    with pytest.raises(ConfigError) as caught:
        open_cache("http://:hunter2@host")
    assert "hunter2" not in str(caught.value)
