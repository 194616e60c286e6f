"""Personal data, plain, disguised and split, on every way out: spans, audit records, data sets, log lines, errors."""

import base64
import html
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agentops import audit
from agentops.improve import harvest_dataset
from agentops.runtime import new_request
from agentops.trace import names, write_feedback
from agentops.types import Feedback
from agentops.workspace import local_principal

from .trapped import CUSTOMER, Trapped

MAIL, CARD = "ann.lee@corp.test", "4111 1111 1111 1111"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


DISGUISES = {
    "plain": MAIL,
    "zero width": "ann\u200b.lee\u200d@corp\u2060.test",
    "full width": "ａｎｎ．ｌｅｅ＠ｃｏｒｐ．ｔｅｓｔ",
    "URL twice": "ann.lee%2540corp%252Etest",
    "JSON": "ann.lee\\u0040corp.test",
    "HTML": html.escape(MAIL).replace("@", "&#64;"),
    "base64": b64(MAIL),
    "base64 twice": b64(b64(MAIL)),
    "hex": MAIL.encode().hex(),
    "card": CARD,
    "card, zero width": CARD.replace(" ", "\u200b"),
    "card, other digits": CARD.translate({ord("0") + n: 0x0660 + n for n in range(10)}),
    "card over two lines": "4111 1111\n1111 1111",
    "card, base64": b64(CARD),
}
READABLE = [MAIL, MAIL.partition("@")[0], "4111 1111", "41111111", *DISGUISES.values()]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a plain handler on the root logger writes."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield text
    root.removeHandler(handler)
    root.setLevel(before)


async def told(desk: Trapped, value: str) -> list[str]:
    """Say `value` wherever a person, a model or a tool can say something; what callers were shown."""
    who = local_principal(desk.workspace, CUSTOMER)
    history = ({"role": "user", "content": f"before: {value}"}, {"role": "assistant", "content": f"noted {value}"})
    answer = await desk.runtime.ask(new_request(f"where is SO-12878? I am {value}", who, "s", history))
    assert answer.status == "ok"
    shown = []
    run = desk.run(session=answer.request_id)
    attributes = {names.TENANT: "default", names.CONVERSATION: "s"}
    with desk.workspace.tracing.span("invoke_agent desk", names.INVOKE_AGENT, attributes):
        for n, more in enumerate(({}, {"fail": True}, {"second": "crash"}, {"second": f"and {value}"})):
            result = await desk.call("hear", run, key=f"key-{n}", text=f"x {value} y", **more)
            shown.append(result.error)
        wrong = await desk.call("check_refund", run, key="wrong", order_id=value)
        nobody = await desk.call(value, run, order_id="SO-12878")
        shown += [wrong.error, nobody.error]
    logging.getLogger("a.library.of.others").warning("cannot reach %s", value)
    given = Feedback(answer.trace_id, 1, desk.workspace.clock.now(), "u", f"call {value}", f"it was {value}", ())
    write_feedback(desk.workspace.lake, [given], "desk", desk.workspace.redactor, "default")
    return shown


def found_in(text: str) -> list[str]:
    """Which disguises of the planted values stand in `text`, also as JSON writes them."""
    forms = {form for one in READABLE for form in (one, one.encode("unicode_escape").decode(), repr(one)[1:-1])}
    return [form for form in forms if form in text]


def test_no_disguise_gets_out(within: Callable[..., Any], tmp_path: Path, logged: io.StringIO) -> None:
    async def attack(desk: Trapped) -> dict[str, str]:
        errors = [error for value in DISGUISES.values() for error in await told(desk, value)]
        workspace = desk.workspace
        workspace.tracing.flush()
        await workspace.audit.append({"type": "test.end"})
        made = harvest_dataset(workspace, "sft", tmp_path / "rows", options={"include_undecided": True})
        return {
            "spans": str(workspace.lake.sql("SELECT * FROM spans")),
            "feedback": str(workspace.lake.sql("SELECT * FROM feedback")),
            "audit": str(list(audit.records(workspace.home / "audit"))),
            "rows": "".join(file.read_text() for file in made.path.iterdir()),
            "errors": "\n".join(errors),
            "log": logged.getvalue(),
        }

    out = within(attack, "order_status")
    leaks = {way: found for way, text in out.items() if (found := found_in(text))}
    assert leaks == {}
    for way in ("spans", "feedback", "rows", "errors", "log"):
        assert "<EMAIL:" in out[way], f"{way}: nothing was planted there"
        assert "<CARD:" in out[way], f"{way}: nothing was planted there"


def test_files_that_others_may_read_hold_nothing_in_plain(within: Callable[..., Any], trap: Path) -> None:
    async def attack(desk: Trapped) -> None:
        await told(desk, MAIL)
        await told(desk, CARD)
        desk.workspace.tracing.flush()

    within(attack, "order_status")
    home = trap / ".agentops"
    own = {"world.db", "state.db"}  # the tools' own data; what approvers must see
    files = [file for file in home.rglob("*") if file.is_file() and not file.name.startswith(tuple(own))]
    assert {"audit", "decisions", "lake"} <= {file.relative_to(home).parts[0] for file in files}
    for file in files:
        data = file.read_bytes()
        assert MAIL.encode() not in data, file
        assert CARD.encode() not in data, file


def test_halves_are_not_put_together(within: Callable[..., Any]) -> None:
    """What is split over fields or messages is recognised in neither; nothing on our side makes one value of them."""

    async def attack(desk: Trapped) -> str:
        who = local_principal(desk.workspace, CUSTOMER)
        history = ({"role": "user", "content": "4111 1111"}, {"role": "assistant", "content": "Which order?"})
        await desk.runtime.ask(new_request("1111 1111 where is SO-12878", who, "s", history))
        await desk.call("hear", text="4111 1111", second="1111 1111")
        await desk.call("hear", text="ann.lee@", second="corp.test")
        desk.workspace.tracing.flush()
        return str(desk.workspace.lake.sql("SELECT * FROM spans"))

    spans = within(attack, "order_status")
    assert "ann.lee@" in spans
    for whole in (MAIL, CARD, "4111111111111111", "4111 1111\\n1111", "4111 1111\\\\n1111"):
        assert whole not in spans


def test_a_card_over_two_parts_of_a_message(served: tuple[TestClient, Trapped]) -> None:
    client, desk = served
    parts = [{"type": "text", "text": "refund SO-12878 to 4111 1111"}, {"type": "text", "text": "1111 1111, please"}]
    headers = {"Authorization": "Bearer shop:secret-of-the-shop-0001"}
    body = {"messages": [{"role": "user", "content": parts}]}
    trace = client.post("/v1/chat/completions", json=body, headers=headers).json()["agentops"]["trace_id"]
    desk.workspace.tracing.flush()
    spans = str(desk.workspace.lake.sql(f"SELECT * FROM spans WHERE trace_id = '{trace}'"))
    assert "<CARD:" in spans
    assert "4111" not in spans


def test_an_error_of_the_server_is_logged_without_what_was_in_it(
    served: tuple[TestClient, Trapped], logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, desk = served

    async def broken(*_: Any) -> Any:
        raise RuntimeError(f"no row for {MAIL}")

    monkeypatch.setattr(desk.runtime, "ask", broken)
    quiet = TestClient(client.app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    headers = {"Authorization": "Bearer shop:secret-of-the-shop-0001"}
    answer = quiet.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 500
    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=RuntimeError(f"row of {MAIL}"))
    assert MAIL not in answer.text + logged.getvalue()
    assert "RuntimeError" in logged.getvalue()
