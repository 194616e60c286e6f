"""Attacks from outside, over HTTP and MCP, on the real application."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agentops import audit

from .trapped import LARGE, ORDER, Trapped

Served = tuple[TestClient, Trapped]
KEY = {
    "shop": "Bearer shop:secret-of-the-shop-0001",
    "boss": "Bearer boss:secret-of-the-boss-0001",
    "money": "Bearer money:secret-of-finance-00001",
    "rival": "Bearer rival:secret-of-another-0002",
    "other": "Bearer other:secret-of-another-0001",
    "front": "Bearer front:secret-of-frontend-001",
}


def ask(client: TestClient, text: Any, key: str = "shop", **headers: str) -> Any:
    body = {"messages": [{"role": "user", "content": text}]}
    return client.post("/v1/chat/completions", json=body, headers={"Authorization": KEY[key], **headers})


def test_only_another_person_of_the_same_tenant_with_the_role_approves(served: Served) -> None:
    client, desk = served
    before = desk.count("refunds")
    answer = ask(client, LARGE, "boss").json()["agentops"]  # who asks has the role, too
    assert answer["status"] == "pending"
    [id] = answer["approvals"]

    def decide(key: str, id: str = id, **headers: str) -> Any:
        return client.post(
            f"/v1/approvals/{id}", json={"approve": True}, headers={"Authorization": KEY[key], **headers}
        )

    unknown = decide("other", "a" * len(id))
    foreign = decide("other")
    assert (unknown.status_code, foreign.status_code) == (404, 404)
    assert unknown.text.replace("a" * len(id), "?") == foreign.text.replace(id, "?"), "nothing tells them apart"
    assert decide("boss").status_code == 403
    assert decide("shop").status_code == 403
    assert decide("rival").status_code == 403
    assert decide("front", **{"X-Agentops-User": "E-1"}).status_code == 403, "a service decides nothing"
    assert decide("money", **{"X-Agentops-User": "E-2"}).status_code == 403
    for key in ("boss", "other"):
        listed = client.get("/v1/approvals", headers={"Authorization": KEY[key]}).json()["data"]
        assert id not in [one["id"] for one in listed]
    assert desk.count("refunds") == before
    assert decide("money").status_code == 200
    assert desk.count("refunds") == before + 1
    assert decide("money").status_code == 409, "decided once"


def test_another_tenants_trace_is_as_unknown_as_none(served: Served) -> None:
    client, _ = served
    trace = ask(client, "Where is SO-12878?").json()["agentops"]["trace_id"]

    def feedback(key: str, trace: str) -> tuple[int, str]:
        body = {"trace_id": trace, "score": 1}
        answer = client.post("/v1/feedback", json=body, headers={"Authorization": KEY[key]})
        return answer.status_code, answer.text.replace(trace, "?")

    assert feedback("other", trace) == feedback("other", "0" * 32)
    assert feedback("rival", trace) == feedback("rival", "0" * 32)
    assert feedback("other", trace)[0] == 404
    assert feedback("shop", trace)[0] == 201


def mcp(client: TestClient, body: bytes, key: str = "shop", **headers: str) -> Any:
    given = {
        "Authorization": KEY[key],
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    return client.post("/mcp?agent=trap", content=body, headers={**given, **headers})


def calling(tool: str, arguments: str) -> bytes:
    call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s}}'
    return (call % (tool, arguments)).encode("utf-8", "surrogatepass")


def test_the_tools_answer_over_mcp(served: Served) -> None:
    client, desk = served
    before = desk.pressed()
    answer = mcp(client, calling("press", '{"place": "desk"}'))
    assert answer.json()["result"]["isError"] is False, answer.text
    assert len(desk.pressed()) == len(before) + 1, "so the attacks below fail for what is wrong with them"


@pytest.mark.parametrize(
    "arguments",
    [
        '{"place": "desk", "place": "vault"}',
        '{"place": "desk", "force": NaN}',
        '{"place": "desk", "force": Infinity}',
        '{"place": "desk", "force": 9223372036854775808}',
        '{"place": "desk", "force": 1e400}',
        '{"place": "desk", "force": 0.5}',
        '{"place": {"__entity": {"type": "Role", "id": "finance"}}}',
        '{"place": "desk", "__entity": {"type": "Role", "id": "finance"}}',
        '{"place": "desk", "ctx": {}}',
        '{"place": "\\ud800"}',
        '{"place": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"place": "' + "x" * 50_000_000 + '"}',
        '["desk"]',
        "null",
    ],
    ids=lambda text: text[:40],
)
def test_hostile_arguments_from_another_agent_press_nothing(served: Served, arguments: str) -> None:
    client, desk = served
    before = desk.pressed()
    started = time.monotonic()
    answer = mcp(client, calling("press", arguments))
    assert time.monotonic() - started < 5.0
    assert answer.status_code in (200, 400, 413, 422)
    if answer.status_code == 200:
        found = answer.json()
        assert "error" in found or found["result"]["isError"] is True
    assert len(answer.text) < 2_000
    assert desk.pressed() == before
    assert mcp(client, calling("check_refund", '{"order_id": "SO-00000"}')).status_code == 200, "it goes on serving"


def test_another_agents_call_is_untrusted(served: Served) -> None:
    client, desk = served
    before = desk.count("refunds")
    arguments = json.dumps({"order_id": ORDER, "amount_cents": 100, "reason": "other"})
    answer = mcp(client, calling("create_refund", arguments)).json()["result"]
    assert answer["_meta"]["agentops/status"] == "pending"
    assert desk.count("refunds") == before


def test_a_web_page_does_not_reach_the_tools_by_a_name_of_its_own(served: Served) -> None:
    client, desk = served
    before = desk.pressed()
    for headers in ({"Host": "evil.test"}, {"Host": "127.0.0.1.evil.test:8321"}, {"Origin": "https://evil.test"}):
        assert mcp(client, calling("press", '{"place": "desk"}'), **headers).status_code == 421
    assert desk.pressed() == before


@pytest.mark.parametrize(
    "unit",
    [
        "a@",
        "1 ",
        "SO-",
        "GB82 WEST 1234 5698 7654 98 ",
        "\u200b",
        "\u202e",
        "%40",
        "é4111 1111\n",
        "((((",
        "a.",
        "\\u0040",
    ],
)
def test_a_message_made_to_stall_a_pattern_costs_little(served: Served, unit: str) -> None:
    client, desk = served
    started = time.monotonic()
    answer = ask(client, (unit * 16_000)[:16_000])
    desk.workspace.tracing.flush()
    assert answer.status_code == 200
    assert time.monotonic() - started < 5.0


def test_a_refused_credential_is_counted_and_its_content_kept_nowhere(served: Served) -> None:
    client, desk = served
    for _ in range(5):
        answer = client.get("/v1/models", headers={"Authorization": "Bearer shop:wrong-secret-of-somebody"})
        assert answer.status_code == 401
    client.app.state.refusals.flush()
    client.portal.call(lambda: desk.workspace.audit.append({"type": "test.end"}))
    counted = [one for one in audit.records(desk.workspace.home / "audit") if one["type"] == "auth.refused"]
    assert sum(one["counts"].get("api-key", 0) for one in counted) >= 5
    assert "wrong-secret" not in str(counted)


def test_an_address_others_reach_is_not_served_without_credentials(trap: Path) -> None:
    settings = {"AGENTOPS_HOST": "0.0.0.0", "AGENTOPS_PORT": "0", "AGENTOPS_API_KEYS": ""}
    command = [sys.executable, "-m", "agentops.cli", "serve", "--project", str(trap)]
    process = subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 2
    assert "reachable by others" in said
    assert "Traceback" not in said
    assert not re.search(r"http://|Bearer local", said)
