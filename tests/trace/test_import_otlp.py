"""OTLP exports of other frameworks: complete, redacted, once; and hostile ones, counted and never a crash."""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentops.errors import TraceError
from agentops.redact import Redactor
from agentops.store import Lake
from agentops.trace import import_files, names, summaries, trajectories
from agentops.types import Trajectory

Export = Callable[..., bytes]
FILES = ("langgraph_openinference", "openai_openinference", "pydantic_ai_genai")
PERSONAL = ("Dana", "dana.k", "example.org", "4242 4242")


def imported(lake: Lake, redactor: Redactor, file: Path) -> list[Trajectory]:
    import_files(lake, redactor, [file], tenant="acme")
    return list(trajectories(lake))


@pytest.mark.data
@pytest.mark.parametrize("name", FILES)
def test_each_recorded_dialect_gives_both_conversations_whole(
    lake: Lake, redactor: Redactor, data_dir: Path, name: str
) -> None:
    file = data_dir / "otlp" / f"{name}.otlp.pb"
    found = imported(lake, redactor, file)
    assert len(found) == 2
    good, bad = sorted(found, key=lambda one: "W2077" in one.request)
    for one, order in ((good, "W1042"), (bad, "W2077")):
        assert [step.tool for step in one.steps] == ["get_order", "search_policy", "issue_refund"]
        look, search, refund = one.steps
        assert look.arguments == {"order_id": order}
        assert search.arguments == {"query": "refund window"}
        assert refund.arguments == {"order_id": order, "amount_cents": 4599}
        assert look.result == {**look.result, "order_id": order, "status": "delivered", "total_cents": 4599}
        assert "Refunds are allowed within 30 days" in search.result
        assert refund.started_at >= max(look.ended_at, search.ended_at)
        assert all(0.04 < step.ended_at - step.started_at < 0.2 for step in one.steps)
        assert [schema["function"]["name"] for schema in one.tools] == ["get_order", "search_policy", "issue_refund"]
        assert {call.model for call in one.model_calls} == {"gpt-4.1-mini"}
        assert [call.input_tokens for call in one.model_calls] == [140, 170, 190][: len(one.model_calls)]
        assert one.messages[0] == {"role": "system", "content": "You are a support agent."}
        assert one.messages[1]["role"] == "user"
        first = one.messages[2]["tool_calls"]
        assert [call["function"]["arguments"] for call in first] == [look.arguments, search.arguments]
        answered = [turn["tool_call_id"] for turn in one.messages if turn["role"] == "tool"]
        assert answered == [step.call_id for step in one.steps], "every call has its result, in order"
        assert one.source.startswith("import:")
        assert one.timed
        assert one.session
        assert one.tenant == "acme"
    if name != "openai_openinference":  # its client ran the tools one after the other
        assert good.steps[1].started_at < good.steps[0].ended_at, "the two look-ups ran at the same time"
    assert good.status == "ok"
    assert good.answer.startswith("Order W1042 has been refunded: 45.99")
    assert good.steps[2].result == {"ok": True, "refund_id": "R-9"}
    assert bad.steps[2].status == "error"
    assert bad.steps[2].error == "payment gateway timeout"
    answers = {turn.get("tool_call_id"): turn["content"] for turn in bad.messages}
    assert "payment gateway timeout" in answers["call_W2077_3"]


@pytest.mark.data
def test_nobody_recorded_in_the_exports_survives_in_the_lake(lake: Lake, redactor: Redactor, data_dir: Path) -> None:
    report = import_files(lake, redactor, [data_dir / "otlp"], tenant="acme")
    assert (report.trajectories, report.spans, report.failed, report.refused) == (6, 51, {}, {})
    everything = json.dumps(lake.sql("SELECT * EXCLUDE (date) FROM spans"))
    for gone in (*PERSONAL, "u-17"):
        assert gone not in everything, gone
    for kept in ("W1042", "W2077", "R-9", "45.99", "call_W1042_1", "payment gateway timeout"):
        assert kept in everything, kept
    emails = {step.result["email"] for one in trajectories(lake) for step in one.steps if step.tool == "get_order"}
    assert len(emails) == 1, "one customer has one pseudonym"
    assert "metadata" in report.unknown
    kinds = [(row["model_calls"], row["tool_calls"]) for row in summaries(lake)]
    assert sorted(kinds) == [(2, 3), (2, 3), (3, 3), (3, 3), (3, 3), (3, 3)]
    assert report.summary().startswith("6 traces, 51 spans from 3 files")


@pytest.mark.data
def test_importing_again_adds_nothing(lake: Lake, redactor: Redactor, data_dir: Path) -> None:
    first = import_files(lake, redactor, [data_dir / "otlp"])
    again = import_files(lake, redactor, [data_dir / "otlp", data_dir / "otlp" / f"{FILES[0]}.otlp.pb"])
    assert (again.trajectories, again.spans, again.duplicates) == (0, 0, 51 + 24)
    assert len(list(trajectories(lake))) == first.trajectories == 6


@pytest.mark.data
@pytest.mark.parametrize("ids", ["hex", "base64"])
def test_json_exports_say_the_same_as_protobuf(
    lake: Lake, redactor: Redactor, data_dir: Path, tmp_path: Path, ids: str
) -> None:
    documents = []
    for name in FILES:
        request = ExportTraceServiceRequest.FromString((data_dir / "otlp" / f"{name}.otlp.pb").read_bytes())
        document = MessageToDict(request)
        for group in document["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in span and ids == "hex":
                            span[key] = base64.b64decode(span[key]).hex()
        documents.append(document)
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "one.json").write_text(json.dumps(documents[0], indent=1))
    from_json = imported(lake, redactor, tmp_path / "all.jsonl")
    assert import_files(lake, redactor, [tmp_path / "one.json"]).duplicates == 24
    other = Lake(tmp_path / "other")
    import_files(other, redactor, [data_dir / "otlp"], tenant="acme")
    assert from_json == list(trajectories(other))


CHAT = {"openinference.span.kind": "LLM", "llm.model_name": "m"}


def test_hostile_spans_are_mended_or_refused_and_counted(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    spans: list[dict[str, Any]] = [
        {"id": 1, "name": "root", "start": 5, "end": 3},
        {"id": 2, "parent": 3, "name": "circle"},
        {"id": 3, "parent": 2, "name": "circle"},
        {"id": 4, "parent": 4, "name": "self"},
        {"id": 5, "parent": 1, "start": 0, "end": 0},
        {"id": 6, "parent": 1, "start": time.time() + 1e6, "end": time.time() + 1e6},
        {"id": 7, "parent": 99, "attributes": {"big": "x y " * 400_000, "bytes": b"\xff" * 10}},
        {"id": 7, "parent": 1, "name": "again"},
        {"id": 8, "trace": 0},
    ]
    data = export(spans)
    data = data.replace(b"\x12\x08" + (5).to_bytes(8, "big"), b"\x12\x08" + bytes(8))
    (tmp_path / "hostile.pb").write_bytes(data)
    report = import_files(lake, redactor, [tmp_path / "hostile.pb"])
    assert report.refused == {"trace id is not 16 bytes": 1, "span id is not 8 bytes": 1}
    assert report.noted == {
        "duration is negative: taken as 0": 1,
        "parents lead in a circle": 1,
        "span is its own parent: taken as a root": 1,
        "start time is in the future": 1,
    }
    assert (report.spans, report.duplicates, report.trajectories) == (6, 1, 1)
    assert report.truncated == 1
    assert report.unknown == {"big": 1, "bytes": 1}
    [found] = trajectories(lake)
    assert found.status == "ok"
    assert summaries(lake)[0]["id"] == found.trace_id


def test_a_cut_off_export_gives_every_whole_span(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    spans = [{"id": i, "name": f"span {i}", "attributes": {"note": "x" * 50}} for i in range(1, 11)]
    data = export(spans)
    (tmp_path / "cut.pb").write_bytes(data[: len(data) * 6 // 10])
    report = import_files(lake, redactor, [tmp_path / "cut.pb"])
    assert report.noted["protobuf damaged: read leniently"] == 1
    assert report.refused["bytes that are no protobuf (cut off or damaged)"] >= 1
    names_ = [row["name"] for row in lake.sql("SELECT name FROM spans ORDER BY span_id")]
    assert names_ == [f"span {i}" for i in range(1, len(names_) + 1)]
    assert len(names_) == 5


def test_text_that_is_not_utf8_costs_its_characters_only(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path
) -> None:
    data = export(
        [
            {
                "id": 1,
                "name": "good",
                "attributes": {"a": "PLACE", "n": -5, "f": 1.5, "b": True, "l": ["x", 1]},
                "error": "e",
            }
        ]
    )
    (tmp_path / "bad.pb").write_bytes(data.replace(b"PLACE", b"\xff\xfe\xfdok"))
    report = import_files(lake, redactor, [tmp_path / "bad.pb"])
    assert report.spans == 1
    row = lake.sql("SELECT * FROM spans")[0]
    assert json.loads(row["attributes"]) == {
        "a": "\ufffd\ufffd\ufffdok",
        "n": -5,
        "f": 1.5,
        "b": True,
        "l": ["x", 1],
        names.SOURCE: "import:otlp",
    }
    assert (row["name"], row["status"], row["status_message"], row["service"]) == ("good", "error", "e", "shop")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bits_and_cuts_never_crash(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, redactor: Redactor, export: Export
) -> None:
    messages = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hello"}]}])
    good = export(
        [
            {
                "id": 1,
                "name": "invoke_agent",
                "attributes": {names.OPERATION: "invoke_agent", names.INPUT_MESSAGES: messages},
            },
            {
                "id": 2,
                "parent": 1,
                "attributes": {names.OPERATION: "execute_tool", names.TOOL: "t", names.TOOL_RESULT: "{}"},
            },
            {"id": 3, "parent": 1, "attributes": {**CHAT, "llm.input_messages.0.message.role": "user"}, "error": "bad"},
        ]
    )
    broken = bytearray(good[: data.draw(st.integers(1, len(good)))])
    for _ in range(data.draw(st.integers(0, 6))):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    folder = tmp_path_factory.mktemp("broken")
    (folder / "x.pb").write_bytes(broken)
    lake = Lake(folder / "lake")
    report = import_files(lake, redactor, [folder / "x.pb"])
    assert report.spans or report.refused or report.failed
    assert sum(len(one.steps) + 1 for one in trajectories(lake)) >= report.trajectories
    assert len(summaries(lake)) == report.trajectories


KEYS = [
    "resourceSpans",
    "scopeSpans",
    "spans",
    "traceId",
    "spanId",
    "attributes",
    "key",
    "value",
    "events",
    "status",
    "stringValue",
    "intValue",
    "kvlistValue",
    "values",
    "messages",
    "role",
    "content",
    "tool_calls",
    "function",
    "traj",
    "reward",
    "feedback",
    "startTimeUnixNano",
    "kind",
    "code",
    "tools",
    "request",
    "response",
    "choices",
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("00" * 16),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
def test_json_of_any_shape_never_crashes(
    value: object, tmp_path_factory: pytest.TempPathFactory, redactor: Redactor
) -> None:
    folder = tmp_path_factory.mktemp("shape")
    (folder / "x.json").write_text(json.dumps(value))
    report = import_files(Lake(folder / "lake"), redactor, [folder / "x.json"])
    assert report.files == 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.pb", b"", "is empty"),
        ("picture.pb", b"\x89PNG\r\n\x1a\n" + bytes(100), "holds no span"),
        ("text.json", b"{not json", "is not valid JSON"),
        ("deep.json", b"[" * 200_000, "nested|valid"),
        ("list.json", b"[]", "holds no span"),
        ("other.json", b'{"resourceSpans": []}', "holds no span"),
    ],
)
def test_a_file_that_is_no_export_is_named_and_stops_no_other(
    lake: Lake, redactor: Redactor, export: Export, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.pb").write_bytes(export([{"id": 1}]))
    report = import_files(lake, redactor, [tmp_path / name, tmp_path / "good.pb"])
    assert (report.files, report.spans) == (2, 1)
    left_out = " ".join([*report.failed.values(), *report.refused])
    assert any(part in left_out for part in why.split("|")), (report.failed, report.refused)


def test_a_missing_path_is_one_sentence(lake: Lake, redactor: Redactor, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not a file"):
        import_files(lake, redactor, [tmp_path / "absent.pb"])
