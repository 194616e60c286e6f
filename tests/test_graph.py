"""DAGs, references and the virtual clock."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.graph import VirtualClock, critical_path, holes, reference, references, render, resolve, topological
from agentops.types import Ref


@st.composite
def dags(draw: st.DrawFn) -> dict[str, list[str]]:
    count = draw(st.integers(1, 12))
    return {
        f"n{i}": [f"n{j}" for j in range(i) if draw(st.booleans())] for i in draw(st.permutations(list(range(count))))
    }


@given(dags())
def test_topological_puts_every_node_after_its_predecessors(graph: dict[str, list[str]]) -> None:
    order = topological(graph)
    assert sorted(order) == sorted(graph)
    assert all(order.index(before) < order.index(node) for node, all_before in graph.items() for before in all_before)


def test_topological_names_the_circle_and_the_unknown() -> None:
    with pytest.raises(ValueError, match="circle: a, b"):
        topological({"a": ["b"], "b": ["a"], "c": []})
    with pytest.raises(ValueError, match="'x', which is not a step"):
        topological({"a": ["x"]})


@given(dags(), st.data())
def test_critical_path_is_the_longest_of_all_paths(graph: dict[str, list[str]], data: st.DataObject) -> None:
    durations = {node: data.draw(st.integers(0, 9)) for node in graph}

    def longest(node: str) -> int:
        return durations[node] + max((longest(before) for before in graph[node]), default=0)

    length, path = critical_path(graph, durations)
    assert length == max(map(longest, graph)) == sum(durations[node] for node in path)
    assert all(a in graph[b] for a, b in itertools.pairwise(path))


@pytest.mark.anyio
async def test_virtual_clock_runs_parallel_sleeps_in_the_longest_ones_time() -> None:
    clock = VirtualClock(start=100.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async def work() -> None:
        await asyncio.gather(sleeper("slow", 30), sleeper("fast", 5), sleeper("mid", 7))
        await sleeper("after", 1)

    await clock.drive(work())
    assert woken == [("fast", 105.0), ("mid", 107.0), ("slow", 130.0), ("after", 131.0)]


@pytest.mark.anyio
async def test_virtual_clock_honours_a_cancelled_sleep() -> None:
    clock = VirtualClock()

    async def work() -> float:
        task = asyncio.ensure_future(clock.sleep(1000))
        await clock.sleep(1)
        task.cancel()
        await clock.sleep(1)
        return clock.now()

    assert await clock.drive(work()) == 2.0


@pytest.mark.anyio
async def test_virtual_clock_refuses_work_that_waits_elsewhere() -> None:
    clock = VirtualClock()
    with pytest.raises(RuntimeError, match="outside the virtual clock"):
        await clock.drive(asyncio.get_running_loop().create_future())


def test_references_are_parsed_found_and_resolved() -> None:
    assert reference("o.items.0.sku") == Ref("o", ("items", 0, "sku"))
    assert references({"a": [Ref("x"), {"b": Ref("y", ("z",))}], "c": 1}) == {"x", "y"}
    assert resolve({"a": [Ref("o", ("n",))]}, {"o": {"n": 3}}) == {"a": [3]}
    assert holes("{a.b} {{c}} {d}") == [Ref("a", ("b",)), Ref("d")]
    assert render("{o.n} of {{{o.tags}}}", {"o": {"n": 3, "tags": ["x", "y"]}}) == "3 of {x, y}"
    with pytest.raises(ValueError, match=r"'o\.m': the result has no 'm'"):
        resolve(Ref("o", ("m",)), {"o": {"n": 3}})
    with pytest.raises(ValueError, match="is not a reference"):
        reference("__class__")


def test_virtual_time_waits_for_work_that_takes_many_turns_of_the_loop() -> None:
    """Between two sleeps a task may pass through any number of awaits: a deadline further away must not overtake it."""

    async def deep(levels: int) -> float:
        if levels:
            return await asyncio.ensure_future(deep(levels - 1))
        return clock.now()

    async def work() -> float:
        deadline = asyncio.ensure_future(clock.sleep(1_000.0))
        await clock.sleep(1.0)
        at = await deep(200)
        deadline.cancel()
        return at

    async def main() -> float:
        return await clock.drive(work())

    clock = VirtualClock()
    assert asyncio.run(main()) == 1.0
    assert clock.now() == 1.0
