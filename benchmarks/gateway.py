"""What the gateway costs: a governed call against a bare function call and against LangGraph's ToolNode.

    python -m benchmarks.gateway [--json FILE] [--quick]

The governed call takes the full path on real parts: strict arguments, kill switch and budgets in SQLite, labels and
provenance, Cedar with the reference project's base policies, an encrypted decision record, and an audit log whose
intents are on disk before the tool runs. `calls_per_s` is that of two processes on one state and one audit folder, each
with 32 callers of a tool that does nothing. "audit off" is the same path with the audit log in memory. Spans are not
part of the path; `details.with_tracing` shows what they add. Microsoft's agent-governance-toolkit-core is measured when
it is installed: policy evaluation and audit entry around the same tool, as its documentation shows.
"""

import argparse
import asyncio
import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentops.act import Context, ToolGateway, tool
from agentops.audit import AuditLog, MemoryAudit
from agentops.audit.subjects import SubjectKeys
from agentops.cache import MemoryCache
from agentops.graph import RealClock
from agentops.policy import (
    Approvals,
    Budgets,
    DailyLimits,
    DecisionRecords,
    Effects,
    KillSwitch,
    Limits,
    PolicySet,
    Readings,
)
from agentops.redact import Redactor
from agentops.store import Lake, open_state
from agentops.trace import Tracing
from agentops.types import AgentSpec, Principal, Run, ToolCall
from benchmarks.report import main, publish

BASE = Path(__file__).resolve().parent.parent / "policies" / "base.cedar"
CALLERS = 32
PROCESSES = 2
Call = Callable[[int], Awaitable[object]]  # number of the call -> its result


@tool(effect="write", scopes={"notes:write"}, timeout_s=30.0, pack="bench")
async def write_note(ctx: Context, order_id: str, note: str, copies: int = 1, wait_ms: int = 0) -> dict[str, Any]:
    """Write a note to an order."""
    return await _work(order_id, wait_ms)


@tool(effect="read", scopes={"notes:read"}, timeout_s=30.0, pack="bench")
async def read_note(ctx: Context, order_id: str, note: str, copies: int = 1, wait_ms: int = 0) -> dict[str, Any]:
    """Read a note of an order."""
    return await _work(order_id, wait_ms)


@tool(effect="money", scopes={"notes:write"}, timeout_s=30.0, pack="bench", amount="cents")
async def pay_note(ctx: Context, order_id: str, cents: int) -> dict[str, Any]:
    """Pay for a note: there so that the policies on money apply to something."""
    return await _work(order_id, 0)


@tool(effect="egress", scopes={"notes:write"}, timeout_s=30.0, pack="bench")
async def send_note(ctx: Context, order_id: str, to: str) -> dict[str, Any]:
    """Send a note: there so that the policies on egress apply to something."""
    return await _work(order_id, 0)


async def _work(order_id: str, wait_ms: int) -> dict[str, Any]:
    if wait_ms:
        await asyncio.sleep(wait_ms / 1000)
    return {"order_id": order_id, "status": "written", "items": [{"sku": "SKU-1042", "quantity": 2}]}


TOOLS = {one.spec.name: one for one in (write_note, read_note, pay_note, send_note)}
AGENT = AgentSpec("desk", frozenset(TOOLS), frozenset({"notes:read", "notes:write"}), max_calls=2**40)
WHO = Principal("acme", "ann", frozenset({"notes:read", "notes:write"}), frozenset({"customer"}))


class Desk:
    """A gateway on the parts a deployment has, in `folder`; of several processes each opens its own."""

    def __init__(self, folder: Path, durable: bool = True, tracing: bool = False) -> None:
        clock = RealClock()
        policies = folder / "policies"
        policies.mkdir(parents=True, exist_ok=True)
        shutil.copy(BASE, policies / "base.cedar")
        self._close = contextlib.ExitStack()
        self._ids = itertools.count()  # with the process, an id of each call: no effect is repeated
        self.state = open_state(folder, None)
        self._close.callback(self.state.close)
        audit: Any = MemoryAudit()
        if durable:
            audit = AuditLog(folder / "audit", "bench", clock)
            self._close.callback(audit.close)
        subjects = SubjectKeys(folder / "audit" / "subjects.db")
        self._close.callback(subjects.close)
        decisions = DecisionRecords(folder / "decisions", subjects, clock)
        self._close.callback(decisions.close)
        redactor = Redactor(b"k" * 32)
        spans = None
        if tracing:
            spans = Tracing(Lake(folder / "lake"), "bench", redactor)
            self._close.callback(spans.close)
        specs = {name: one.spec for name, one in TOOLS.items()}
        limits = Limits(user=DailyLimits(calls=2**40))
        self.gateway = ToolGateway(
            TOOLS,
            PolicySet.load(policies, specs, {"desk": AGENT}),
            audit,
            Approvals(self.state, clock),
            Budgets(self.state, clock, limits),
            Readings(self.state, clock),
            Effects(self.state, clock),
            MemoryCache(),
            None,
            clock,
            spans,
            redactor,
            kill=KillSwitch(self.state, clock, audit),
            decisions=decisions,
        )

    def call(self, name: str, seconds: float) -> Call:
        """A governed call of `name`; every 20 calls are one run, as a conversation of a few turns would have."""

        @functools.lru_cache(maxsize=4096)
        def run_of(turn: int) -> Run:
            return Run(f"r-{turn}", f"s-{turn}", WHO, AGENT, time.time() + 3600, request="a note for SO-10001")

        async def one(number: int) -> object:
            run = run_of(number // 20)
            id = f"c-{os.getpid()}-{next(self._ids)}"
            result = await self.gateway.call(run, ToolCall(id, name, _arguments(number, seconds)))
            if result.status != "ok":
                raise RuntimeError(result.error)
            return result.value

        return one

    def close(self) -> None:
        self._close.close()


def _arguments(number: int, seconds: float) -> dict[str, Any]:
    return {
        "order_id": f"SO-{10000 + number % 997}",
        "note": "Please call before you come.",
        "wait_ms": round(1000 * seconds),
    }


def bare(name: str, seconds: float) -> Call:
    """The function itself, called."""

    async def one(number: int) -> object:
        return await TOOLS[name].function(None, **_arguments(number, seconds))

    return one


def toolnode(name: str, seconds: float) -> Call:
    """LangGraph's ToolNode around the same function, ungoverned."""
    from langchain_core.messages import AIMessage
    from langchain_core.tools import StructuredTool
    from langgraph.prebuilt import ToolNode
    from langgraph.runtime import Runtime

    async def note(order_id: str, note: str, copies: int = 1, wait_ms: int = 0) -> dict[str, Any]:
        """Write a note to an order."""
        return await _work(order_id, wait_ms)

    node = ToolNode([StructuredTool.from_function(coroutine=note, name=name, description="Write a note.")])
    config: Any = {"configurable": {"__pregel_runtime": Runtime()}}

    async def one(number: int) -> object:
        asked = [{"name": name, "args": _arguments(number, seconds), "id": f"c-{number}", "type": "tool_call"}]
        return await node.ainvoke({"messages": [AIMessage("", tool_calls=asked)]}, config)

    return one


def toolkit(name: str, seconds: float) -> Call:
    """Microsoft's toolkit around the same function.

    Raises:
        ImportError: it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policies: Any = importlib.import_module("agent_os.policies")  # by name: type checkers need not find them
        schema: Any = importlib.import_module("agent_os.policies.schema")
        trail: Any = importlib.import_module("agentmesh.governance.audit")

    refused = ("shell", "evaluate", "wire", "delete", "drop", "format", "grant", "run")  # as many rules as ours
    rules = [
        schema.PolicyRule(
            name=f"no-{tool}",
            condition=schema.PolicyCondition(field="tool_name", operator=schema.PolicyOperator.EQ, value=tool),
            action=schema.PolicyAction.DENY,
            priority=10,
        )
        for tool in refused
    ]
    allow = schema.PolicyDefaults(action=schema.PolicyAction.ALLOW)
    evaluator, audit = policies.PolicyEvaluator([schema.PolicyDocument(rules=rules, defaults=allow)]), trail.AuditLog()

    async def one(number: int) -> object:
        arguments = _arguments(number, seconds)
        decision = evaluator.evaluate({"tool_name": name, "agent_id": "desk", **arguments})
        if not decision.allowed:
            raise RuntimeError(decision.reason)
        value = await TOOLS[name].function(None, **arguments)
        audit.log("tool_invocation", "desk", name, data=arguments, policy_decision="allow")
        return value

    return one


async def latencies(call: Call, callers: int, calls: int, start: int = 0) -> tuple[list[float], float]:
    """Seconds of each of `calls` calls by `callers` concurrent callers, and of all together."""
    numbers = iter(range(start, start + calls))
    taken: list[float] = []

    async def caller() -> None:
        for number in numbers:
            began = time.perf_counter()
            await call(number)
            taken.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return taken, time.perf_counter() - began


def compare(calls: dict[str, Call], callers: int, each: int, rounds: int) -> dict[str, dict[str, float]]:
    """p50 and p95 in milliseconds and calls per second of each; in turns, so that all meet the same machine."""

    async def measure() -> dict[str, tuple[list[float], float]]:
        found: dict[str, tuple[list[float], float]] = {name: ([], 0.0) for name in calls}
        for name, call in calls.items():
            await latencies(call, callers, callers)  # warm
            found[name] = ([], 0.0)
        for turn in range(rounds):
            for name, call in calls.items():
                taken, whole = await latencies(call, callers, each // rounds, (turn + 1) * each)
                found[name] = (found[name][0] + taken, found[name][1] + whole)
        return found

    return {
        name: {
            "p50_ms": 1000 * statistics.median(taken),
            "p95_ms": 1000 * statistics.quantiles(taken, n=20)[-1],
            "calls_per_s": len(taken) / whole,
        }
        for name, (taken, whole) in asyncio.run(measure()).items()
    }


def _replica(folder: Path, name: str, calls: int, durable: bool, ready: Any, start: Any, done: Any) -> None:
    desk = Desk(folder, durable)
    try:
        call = desk.call(name, 0.0)

        async def work() -> float:
            await latencies(call, CALLERS, CALLERS, 10**9)
            ready.release()
            start.wait()
            _, whole = await latencies(call, CALLERS, calls)
            return whole

        done.put(asyncio.run(work()))
    finally:
        desk.close()


def throughput(folder: Path, name: str, calls: int, durable: bool) -> float:
    """Governed calls per second of all processes together, from when the first begins to when the last ends."""
    context = multiprocessing.get_context("spawn")
    ready, start, done = context.Semaphore(0), context.Event(), context.Queue()
    workers = [
        context.Process(target=_replica, args=(folder, name, calls, durable, ready, start, done))
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        if not ready.acquire(timeout=120):
            raise RuntimeError("a process did not start")
    start.set()
    slowest = max(done.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join(30)
    return PROCESSES * calls / slowest


def run(options: argparse.Namespace) -> bool:
    each, many = (320, 500) if options.quick else (3_200, 10_000)
    details: dict[str, Any] = {"callers": CALLERS, "processes": PROCESSES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        desk = Desk(folder / "durable")
        memory = Desk(folder / "memory", durable=False)
        traced = Desk(folder / "traced", tracing=True)
        try:
            slow = {"bare": bare("write_note", 0.05), "governed": desk.call("write_note", 0.05)}
            details["50 ms tool, 32 callers"] = at_32 = compare(slow, CALLERS, each, 5)
            details["50 ms tool, 1 caller"] = compare(slow, 1, 100 if not options.quick else 20, 1)
            quick: dict[str, Call] = {
                "bare": bare("write_note", 0.001),
                "toolnode": toolnode("write_note", 0.001),
                "governed": desk.call("write_note", 0.001),
                "governed, audit off": memory.call("write_note", 0.001),
                "governed read": desk.call("read_note", 0.001),
                "governed, with_tracing": traced.call("write_note", 0.001),
            }
            try:
                quick["agent-governance-toolkit"] = toolkit("write_note", 0.001)
            except ImportError as error:
                details["agent-governance-toolkit"] = (
                    f"not measured, {error}: pip install agent-governance-toolkit-core"
                )
            details["1 ms tool, 32 callers"] = at_1ms = compare(quick, CALLERS, each, 5)
            details["1 ms tool, 1 caller"] = compare(quick, 1, each // 8, 2)
        finally:
            for one in (desk, memory, traced):
                one.close()
        details["calls per second, two processes"] = rates = {
            "write, durable": throughput(folder / "two", "write_note", many, True),
            "write, audit off": throughput(folder / "two-memory", "write_note", many, False),
            "read": throughput(folder / "two-reads", "read_note", many, True),
        }
    for title in details:
        if isinstance(details[title], dict):
            print(f"\n{title}")
            for row, values in details[title].items():
                shown = values if isinstance(values, dict) else {"calls_per_s": values}
                print(f"  {row:<28}" + "  ".join(f"{key} {value:10.2f}" for key, value in shown.items()))
    values = {
        "added_p50_ms": at_32["governed"]["p50_ms"] - at_32["bare"]["p50_ms"],
        "added_p95_ms": at_32["governed"]["p95_ms"] - at_32["bare"]["p95_ms"],
        "calls_per_s": rates["write, durable"],
        "slowdown_vs_toolnode": at_1ms["governed"]["p50_ms"] / at_1ms["toolnode"]["p50_ms"],
    }
    return publish("gateway", values, details, options)


if __name__ == "__main__":
    main(run, "Cost of a governed tool call")
