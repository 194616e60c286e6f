"""Spans of this process: redacted, complete, never in the way of what they measure."""

import asyncio
import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import opentelemetry.trace
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentops.errors import StoreError
from agentops.redact import FAILED, Redactor
from agentops.store import Lake
from agentops.trace import Tracing, continued, names, set_attributes, tracing


@pytest.fixture
def traced(lake: Lake, redactor: Redactor) -> Iterator[Tracing]:
    made = Tracing(lake, "shop", redactor)
    yield made
    made.close()


def test_spans_are_redacted_and_carry_what_the_outer_span_knows(lake: Lake, traced: Tracing) -> None:
    root = {names.TENANT: "acme", names.CONVERSATION: "c1", names.ROUTES: [{"label": "refund"}, {"label": "order"}]}
    with traced.span("invoke_agent shop", "invoke_agent", root) as span:
        set_attributes(span, {names.INPUT_MESSAGES: [{"role": "user", "content": "I'm Dana, dana@example.org"}]})
        with traced.span("execute_tool get_order", "execute_tool", {names.TOOL: "get_order", "absent": None}) as inner:
            set_attributes(inner, {names.TOOL_ARGUMENTS: {"order_id": "W1"}, names.CACHED: True, names.POLICIES: ["a"]})
    traced.flush()
    rows = {row["name"]: row for row in lake.sql("SELECT * FROM spans")}
    outer, tool = rows["invoke_agent shop"], rows["execute_tool get_order"]
    assert (tool["tenant"], tool["session"], tool["tool"], tool["cached"]) == ("acme", "c1", "get_order", True)
    assert (outer["route"], outer["source"], outer["service"], outer["kind"]) == (
        "refund,order",
        "live",
        "shop",
        "internal",
    )
    assert tool["parent_id"] == outer["span_id"]
    assert tool["trace_id"] == outer["trace_id"]
    assert json.loads(tool["attributes"])[names.TOOL_ARGUMENTS] == '{"order_id":"W1"}'
    assert "absent" not in tool["attributes"]
    assert "Dana" not in outer["attributes"]
    assert "<EMAIL:" in outer["attributes"]
    assert traced.counts["written"] == 2


def test_an_exception_is_recorded_redacted_and_passes_through(lake: Lake, traced: Tracing) -> None:
    with pytest.raises(ValueError, match="dana@example"), traced.span("work"):
        raise ValueError("no such customer: dana@example.org")
    traced.flush()
    row = lake.sql("SELECT * FROM spans")[0]
    assert row["status"] == "error"
    assert row["status_message"].startswith("ValueError: no such customer: <EMAIL:")
    event = json.loads(row["events"])[0]
    assert event["attributes"]["exception.type"] == "ValueError"
    assert "dana@example.org" not in row["events"]


@pytest.mark.anyio
async def test_parallel_tasks_keep_their_own_parents(lake: Lake, traced: Tracing) -> None:
    async def request(number: int) -> None:
        with traced.span(f"root {number}", attributes={names.TENANT: f"t{number}"}):
            await asyncio.sleep(0.001 * (5 - number))
            await asyncio.gather(*(step(number) for _ in range(3)))

    async def step(number: int) -> None:
        with traced.span(f"child {number}"):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(request(number) for number in range(5)))
    traced.flush()
    rows = lake.sql("SELECT * FROM spans")
    roots = {row["span_id"]: row for row in rows if not row["parent_id"]}
    assert len(rows) == 20
    assert len({row["trace_id"] for row in rows}) == 5
    for row in rows:
        if row["parent_id"]:
            assert roots[row["parent_id"]]["name"][-1] == row["name"][-1]
            assert row["tenant"] == f"t{row['name'][-1]}"


def test_a_span_can_continue_a_trace_of_another_process(lake: Lake, traced: Tracing) -> None:
    with continued("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"), traced.span("later"):
        pass
    traced.flush()
    row = lake.sql("SELECT trace_id, parent_id FROM spans")[0]
    assert row == {"trace_id": "0af7651916cd43dd8448eb211c80319c", "parent_id": "b7ad6b7169203331"}


def test_ids_do_not_depend_on_the_seed_training_code_sets(lake: Lake, traced: Tracing) -> None:
    for _ in range(2):
        random.seed(0)
        with traced.span("x"):
            pass
    traced.flush()
    assert lake.sql("SELECT count(DISTINCT trace_id) AS n FROM spans") == [{"n": 2}]


def test_the_global_provider_is_left_alone(traced: Tracing) -> None:
    assert type(opentelemetry.trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"


def test_a_full_disk_keeps_spans_until_it_can_write(
    lake: Lake, traced: Tracing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = Lake.write

    def refuse(*_: object) -> None:
        raise StoreError("cannot write a segment: No space left on device")

    monkeypatch.setattr(Lake, "write", refuse)
    with caplog.at_level(logging.WARNING), traced.span("kept"):
        pass
    with caplog.at_level(logging.WARNING):
        traced.flush()
    assert traced.counts["failed_writes"] >= 1
    assert "No space left" in caplog.text
    monkeypatch.setattr(Lake, "write", write)
    traced.flush()
    assert lake.sql("SELECT name FROM spans") == [{"name": "kept"}]


def test_a_fault_of_the_redactor_costs_the_content_not_the_span(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Redactor):
        def text(self, text: str, tenant: str = "") -> str:
            raise RuntimeError("boom")

    traced = Tracing(lake, "shop", Broken(b"a key of thirty-two bytes exactly"))
    with caplog.at_level(logging.WARNING):
        with traced.span("secret name", attributes={"a": "dana@example.org"}):
            pass
        traced.close()
    assert traced.counts["failed_redactions"] == 1
    row = lake.sql("SELECT name, attributes FROM spans")[0]
    assert row == {"name": FAILED, "attributes": "{}"}


def test_a_slow_disk_does_not_slow_the_work_and_overflow_is_counted(
    lake: Lake, redactor: Redactor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    write = Lake.write

    def wait(self: Lake, *given: object) -> object:
        gate.wait(20)
        return write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "write", wait)
    monkeypatch.setattr(tracing, "QUEUE_LIMIT", 100)
    monkeypatch.setattr(tracing, "BATCH", 10)
    traced = Tracing(lake, "shop", redactor)
    start = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            with traced.span("x"):
                pass
    assert time.perf_counter() - start < 5
    gate.set()
    traced.close()
    assert traced.counts["written"] + traced.counts["dropped"] == 300
    assert traced.counts["dropped"] > 100
    assert "dropped" in caplog.text
    with traced.span("after the end"):
        pass
    assert traced.counts["written"] + traced.counts["dropped"] == 301


def test_everything_ended_before_flush_is_in_the_lake_after_it(lake: Lake, traced: Tracing) -> None:
    def work() -> None:
        for _ in range(200):
            with traced.span("x"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    traced.flush()
    assert lake.sql("SELECT count(*) AS n, count(DISTINCT span_id) AS d FROM spans") == [{"n": 800, "d": 800}]


class Collector(BaseHTTPRequestHandler):
    received: list[bytes] = []  # noqa: RUF012 - one server a test

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_collector_gets_redacted_spans(lake: Lake, redactor: Redactor) -> None:
    Collector.received = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    traced = Tracing(lake, "shop", redactor, f"http://127.0.0.1:{server.server_port}/v1/traces", {"team": "support"})
    with traced.span("chat", "chat", {names.INPUT_MESSAGES: "write to dana@example.org", names.POLICIES: ["p"]}):
        pass
    with pytest.raises(KeyError), traced.span("fails"):
        raise KeyError("dana@example.org")
    traced.close()
    server.shutdown()
    thread.join()
    server.server_close()
    sent = b"".join(Collector.received)
    assert b"dana@example.org" not in sent
    request = ExportTraceServiceRequest.FromString(Collector.received[0])
    spans = request.resource_spans[0].scope_spans[0].spans
    assert {span.name for span in spans} == {"chat", "fails"}
    assert {a.key: a.value.string_value for a in request.resource_spans[0].resource.attributes}["team"] == "support"
    stored = {row["span_id"] for row in lake.sql("SELECT span_id FROM spans")}
    assert {span.span_id.hex() for span in spans} == stored


def test_an_unreachable_collector_is_counted_and_segments_are_written(
    lake: Lake, redactor: Redactor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "OTLP_TIMEOUT_S", 0.2)
    with caplog.at_level(logging.CRITICAL):
        traced = Tracing(lake, "shop", redactor, "http://127.0.0.1:1/v1/traces")
        with traced.span("x"):
            pass
        traced.close()
    assert traced.counts["failed_exports"] == 1
    assert lake.sql("SELECT count(*) AS n FROM spans") == [{"n": 1}]


def test_an_attribute_that_is_too_long_is_cut_and_counted(
    lake: Lake, traced: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentops.trace.rows.MAX_VALUE_CHARS", 1000)
    with traced.span("x", attributes={"big": "a b " * 1000, "small": "y"}):
        pass
    traced.flush()
    attributes = json.loads(lake.sql("SELECT attributes FROM spans")[0]["attributes"])
    assert attributes["big"].endswith(names.CUT_MARK)
    assert len(attributes["big"]) < 1100
    assert attributes[names.TRUNCATED] == 1


def test_nothing_heavy_is_imported(repo: Path) -> None:
    import subprocess
    import sys

    heavy = ("torch", "duckdb", "datasets", "sklearn", "phonenumbers")
    code = f"import sys, agentops.trace; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repo, check=True)
    assert result.stdout.strip() == "[]"
