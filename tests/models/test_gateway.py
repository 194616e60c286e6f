"""The model gateway against a real HTTP server that speaks the OpenAI protocol."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import ModelError
from agentops.graph import RealClock
from agentops.models import gateway
from agentops.models.gateway import complete
from agentops.policy import Budgets, TokenMeter
from agentops.redact import Redactor
from agentops.store import Lake, MemoryState, State
from agentops.trace import Tracing
from agentops.types import AgentSpec, Principal, Run

pytestmark = pytest.mark.anyio
KEY = "sk-very-secret-0123456789"
HELLO = [{"role": "user", "content": "hello there"}]


class Provider:
    """A stand-in provider: `answers` are functions from the request to (status, body), used in turn; the last stays."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.answers: list[Callable[[dict[str, Any]], tuple[int, Any]]] = [lambda request: (200, said("hi"))]
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.requests.append(request)
                provider.asked.set()
                answer = provider.answers.pop(0) if len(provider.answers) > 1 else provider.answers[0]
                status, body = answer(request)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client gave up, as a test wants

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


def said(text: str | None, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def failed(status: int, text: str = "no") -> Callable[[dict[str, Any]], tuple[int, Any]]:
    return lambda request: (status, {"error": {"message": text, "type": "x", "code": None}})


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    found = Provider()
    monkeypatch.setenv("OPENAI_API_BASE", found.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(gateway, "BACKOFF_S", 0.01)
    yield found
    found.server.shutdown()
    found.server.server_close()


async def test_an_answer_with_its_usage(provider: Provider) -> None:
    answer = await complete("openai/tiny", HELLO, max_tokens=9, temperature=0.5)
    assert (answer.text, answer.input_tokens, answer.output_tokens, answer.model) == ("hi", 7, 3, "tiny-2026")
    assert answer.attempts == 1
    [request] = provider.requests
    assert request["messages"] == HELLO
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("tiny", 9, 0.5)


async def test_tool_calls_both_ways(provider: Provider) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "SO-1"}'}}
    provider.answers = [lambda request: (200, said(None, [call]))]
    earlier = {"id": "z", "type": "function", "function": {"name": "get_order", "arguments": {"order_id": "SO-0"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "z", "content": "{}"},
    ]
    schema = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
    answer = await complete("openai/tiny", messages, tools=[schema])
    assert [(found.id, found.tool, found.arguments) for found in answer.tool_calls] == [
        ("a", "get_order", {"order_id": "SO-1"})
    ]
    sent = provider.requests[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"order_id": "SO-0"}  # providers take text, trajectories hold objects


async def test_a_passing_failure_is_retried(provider: Provider) -> None:
    provider.answers = [failed(503), failed(429), lambda request: (200, said("third time"))]
    answer = await complete("openai/tiny", HELLO)
    assert (answer.text, answer.attempts) == ("third time", 3)


async def test_retries_are_bounded(provider: Provider) -> None:
    provider.answers = [failed(500)]
    with pytest.raises(ModelError, match=r"'openai/tiny' failed after 3 attempt\(s\).*try again later"):
        await complete("openai/tiny", HELLO)
    assert len(provider.requests) == 1 + gateway.RETRIES


@pytest.mark.parametrize(("status", "advice"), [(401, "API key"), (404, "does not have this model"), (400, "refused")])
async def test_what_cannot_pass_is_not_retried_and_leaks_nothing(provider: Provider, status: int, advice: str) -> None:
    provider.answers = [failed(status, f"Incorrect API key provided: {KEY}. You said: hello there")]
    with pytest.raises(ModelError, match=advice) as caught:
        await complete("openai/tiny", HELLO)
    assert len(provider.requests) == 1
    text = f"{caught.value} {caught.value.__cause__} {caught.value.__suppress_context__}"
    assert "secret" not in text
    assert "hello" not in text
    assert caught.value.__suppress_context__


async def test_the_deadline_holds_with_retries(provider: Provider) -> None:
    provider.answers = [lambda request: (time.sleep(1.5), (200, said("late")))[1]]
    started = time.monotonic()
    with pytest.raises(ModelError, match="Timeout"):
        await complete("openai/tiny", HELLO, timeout_s=0.4)
    assert time.monotonic() - started < 1.2


async def test_nobody_listens(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match="attempt"):
        await complete("openai/tiny", HELLO, timeout_s=5)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"{}", b'{"choices": []}', b"\xff\xfe"])
async def test_an_answer_that_is_none(provider: Provider, body: bytes) -> None:
    provider.answers = [lambda request: (200, body)]
    with pytest.raises(ModelError, match="openai/tiny"):
        await complete("openai/tiny", HELLO)


@pytest.mark.parametrize(
    "arguments",
    [
        "{not json",
        "[1]",
        '{"to": "a@corp.example", "to": "b@evil.test"}',
        '{"to": "a", "\uff54\uff4f": "b"}',
        '{"share": NaN}',
        '{"share": 1e999}',
        '{"text": "\\ud800"}',
        '{"text": "' + "x" * 70_000 + '"}',
    ],
)
async def test_malformed_tool_arguments(provider: Provider, arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    provider.answers = [lambda request: (200, said(None, [call]))]
    with pytest.raises(ModelError, match="no chat completion"):
        await complete("openai/tiny", HELLO)


async def test_an_unknown_provider() -> None:
    with pytest.raises(ModelError, match="provider/model"):
        await complete("no-such-model", HELLO)


async def test_values_are_checked() -> None:
    for wrong in ({"max_tokens": 0}, {"temperature": -1}, {"timeout_s": 0}):
        with pytest.raises(ModelError, match="max_tokens"):
            await complete("openai/tiny", HELLO, **wrong)
    with pytest.raises(ModelError, match="messages"):
        await complete("openai/tiny", [])


async def test_cancelling_is_not_swallowed(provider: Provider) -> None:
    provider.answers = [lambda request: (time.sleep(0.5), (200, said("late")))[1]]
    task = asyncio.create_task(complete("openai/tiny", HELLO))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_litellms_own_mock_needs_no_server() -> None:
    answer = await complete("openai/tiny", HELLO, mock_response="mocked")
    assert answer.text == "mocked"


async def test_nothing_is_printed(provider: Provider, capfd: pytest.CaptureFixture[str]) -> None:
    provider.answers = [failed(401)]
    with pytest.raises(ModelError):
        await complete("openai/tiny", HELLO)
    assert capfd.readouterr().out == ""


async def test_the_call_leaves_one_span(provider: Provider, tmp_path: Path) -> None:
    provider.answers = [failed(503), lambda request: (200, said("fine"))]
    lake = Lake(tmp_path / "lake")
    tracing = Tracing(lake, "desk", Redactor(b"k" * 32))
    await complete("openai/tiny", HELLO, tracing=tracing)
    provider.answers = [failed(401)]
    with pytest.raises(ModelError):
        await complete("openai/tiny", HELLO, tracing=tracing)
    tracing.close()
    good, bad = lake.sql("select * from spans order by start_ns")
    assert (good["name"], good["operation"], good["model"]) == ("chat openai/tiny", "chat", "tiny-2026")
    assert (good["input_tokens"], good["output_tokens"]) == (7, 3)
    attributes = json.loads(good["attributes"])
    assert json.loads(attributes["gen_ai.input.messages"]) == HELLO
    assert json.loads(attributes["gen_ai.output.messages"])[0]["content"] == "fine"
    assert "retry" in good["events"]
    assert bad["status"].lower() == "error"
    assert KEY not in json.dumps([good, bad], default=str)


def limited(tokens: int, state: State | None = None) -> TokenMeter:
    agent = AgentSpec("planner", frozenset(), frozenset(), max_tokens=tokens)
    run = Run("r", "s", Principal("acme", "ann"), agent, 1e12)
    return TokenMeter(Budgets(state or MemoryState(), RealClock()), run)


async def test_a_metered_call_is_charged_what_it_used(provider: Provider) -> None:
    meter = limited(1_000)
    for _ in range(30):  # each reserves about 120 and uses 10
        await complete("openai/tiny", HELLO, max_tokens=100, meter=meter)
    meter.settle(meter.reserve(700), 700, 0)
    with pytest.raises(ModelError, match=r"was not asked: the limit of tokens for this request is reached"):
        await complete("openai/tiny", HELLO, max_tokens=1, meter=meter)
    assert len(provider.requests) == 30


async def test_a_long_conversation_is_refused_before_it_is_sent(provider: Provider) -> None:
    meter = limited(1_000)
    with pytest.raises(ModelError, match="limit of tokens"):
        await complete("openai/tiny", [{"role": "user", "content": "word " * 1_000}], meter=meter)
    assert provider.requests == []


@pytest.mark.parametrize("how", ["fails", "says nothing", "cancelled"])
async def test_tokens_stay_charged_when_nobody_says_what_was_used(provider: Provider, how: str) -> None:
    meter = limited(1_000)
    answer = {**said("hi"), "usage": None}
    provider.answers = [failed(400) if how == "fails" else lambda request: (200, answer)]
    if how == "cancelled":
        provider.answers = [lambda request: (time.sleep(0.3), (200, answer))[1]]
    call = asyncio.create_task(complete("openai/tiny", HELLO, max_tokens=900, meter=meter))
    if how == "cancelled":
        await asyncio.to_thread(provider.asked.wait, 10)
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    with pytest.raises(ModelError, match="limit of tokens"):
        await complete("openai/tiny", HELLO, max_tokens=100, meter=meter)


async def test_a_call_that_is_cancelled_before_it_is_sent_costs_nothing(provider: Provider) -> None:
    class Slow(MemoryState):
        """Answers late: the caller is gone meanwhile."""

        def compare_and_set(self, *arguments: Any) -> bool:
            time.sleep(0.1)
            return super().compare_and_set(*arguments)

    meter = limited(1_000, Slow())
    call = asyncio.create_task(complete("openai/tiny", HELLO, max_tokens=900, meter=meter))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert provider.requests == []
    await complete("openai/tiny", HELLO, max_tokens=900, meter=meter)


async def test_without_the_budgets_no_model_is_asked(provider: Provider) -> None:
    state = MemoryState()
    meter = limited(10_000, state)
    state.close()
    with pytest.raises(ModelError, match="was not asked: the state in memory was closed"):
        await complete("openai/tiny", HELLO, meter=meter)
    assert provider.requests == []
