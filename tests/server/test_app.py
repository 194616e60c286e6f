"""The HTTP interface in front of the real runtime."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agentops import project as projects
from agentops.errors import StoreError
from agentops.improve import ensure_router
from agentops.policy import ApiKeys
from agentops.runtime import open_runtime
from agentops.server import create_app
from agentops.server.app import MAX_BODY
from agentops.trace import trajectory
from agentops.workspace import Workspace

KEYS = (
    "shop:secret-of-the-shop-0001:default:C-1054:customer,"
    "money:secret-of-finance-00001:default:E-1:finance,"
    "front:secret-of-frontend-001:default:frontend:service,"
    "other:secret-of-another-0001:globex:C-9:customer,"
    "desk:secret-of-the-desk-0001:default:E-2:staff,"
    "rival:secret-of-another-0002:default:C-1001:customer"
)
SHOP, MONEY = "Bearer shop:secret-of-the-shop-0001", "Bearer money:secret-of-finance-00001"
DESK, RIVAL = "Bearer desk:secret-of-the-desk-0001", "Bearer rival:secret-of-another-0002"
FRONT, OTHER = "Bearer front:secret-of-frontend-001", "Bearer other:secret-of-another-0001"


@pytest.fixture(scope="module")
def served(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Workspace]]:
    home = tmp_path_factory.mktemp("server")
    with Workspace(projects.load(repo, {**os.environ, "AGENTOPS_HOME": str(home)})) as workspace:
        ensure_router(workspace)
        app = create_app(workspace, ApiKeys.parse(KEYS, workspace.project.policies), open_runtime)
        with TestClient(app) as client:
            yield client, workspace


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "a"}], "messages": [{"role": "user", "content": "b"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b"\xff\xfe",
    ],
)
def test_a_body_that_two_readers_would_read_differently_is_refused(
    served: tuple[TestClient, Workspace], body: bytes
) -> None:
    client, _ = served
    headers = {"Authorization": SHOP, "Content-Type": "application/json"}
    assert client.post("/v1/chat/completions", content=body, headers=headers).status_code == 422


def chat(client: TestClient, text: str, key: str = SHOP, **headers: str) -> Any:
    body = {"model": "agentops", "messages": [{"role": "user", "content": text}]}
    return client.post("/v1/chat/completions", json=body, headers={"Authorization": key, **headers})


def test_a_chat_completion_has_openais_shape_and_our_extension(served: tuple[TestClient, Workspace]) -> None:
    client, workspace = served
    answer = chat(client, "Which orders have I placed so far?").json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["agentops"]["status"] in ("ok", "handoff")
    workspace.tracing.flush()
    found = trajectory(workspace.lake, answer["agentops"]["trace_id"])
    assert found is not None
    assert found.answer == answer["choices"][0]["message"]["content"]


def test_a_streamed_completion_ends_with_done(served: tuple[TestClient, Workspace]) -> None:
    client, _ = served
    body = {"messages": [{"role": "user", "content": "Which orders have I placed?"}], "stream": True}
    lines = client.post("/v1/chat/completions", json=body, headers={"Authorization": SHOP}).text.strip().split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert chunks[0]["choices"][0]["delta"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer shop:wrong", "Basic abc", "Bearer nobody:x", "Bearer é:x"]
)
def test_nothing_works_without_a_valid_key(served: tuple[TestClient, Workspace], header: str | None) -> None:
    client, _ = served
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/approvals")):
        response = client.request(method, path, headers=headers, json={"messages": [{"role": "user", "content": "x"}]})
        assert response.status_code == 401, (path, response.text)
        assert response.headers["www-authenticate"] == "Bearer"


def test_anybody_sees_which_policies_are_in_force_and_not_what_is_wrong_with_them(
    served: tuple[TestClient, Workspace],
) -> None:
    client, workspace = served
    shown = client.get("/healthz").json()
    now = workspace.policy.status()
    assert shown["status"] == "ok"
    assert shown["policy"] == {"digest": now.digest[:19], "since": int(now.since), "problems": 0}


def test_a_service_key_acts_for_the_user_it_names_and_others_may_not(served: tuple[TestClient, Workspace]) -> None:
    client, _ = served
    assert chat(client, "hello", FRONT).status_code == 400
    assert chat(client, "Which orders have I placed?", FRONT, **{"X-Agentops-User": "C-1054"}).status_code == 200
    assert chat(client, "hello", SHOP, **{"X-Agentops-User": "C-1001"}).status_code == 403


def test_feedback_joins_its_trace_and_only_the_own_tenants(served: tuple[TestClient, Workspace]) -> None:
    client, workspace = served
    trace = chat(client, "Which orders have I placed so far?").json()["agentops"]["trace_id"]
    given = {"trace_id": trace, "score": -1, "comment": "mail me at jo@evil.test", "corrected_labels": ["list_orders"]}
    assert client.post("/v1/feedback", json=given, headers={"Authorization": OTHER}).status_code == 404
    assert client.post("/v1/feedback", json=given, headers={"Authorization": RIVAL}).status_code == 404
    refused = client.post("/v1/feedback", json=given, headers={"Authorization": SHOP})
    assert refused.status_code == 403  # a customer may judge, not teach
    assert "staff" in refused.json()["error"]["message"]
    assert client.post("/v1/feedback", json=given, headers={"Authorization": DESK}).status_code == 201
    workspace.tracing.flush()
    found = trajectory(workspace.lake, trace)
    assert found is not None
    [feedback] = found.feedback
    assert (feedback.score, feedback.corrected_labels) == (-1, ("list_orders",))
    assert "jo@evil.test" not in feedback.comment
    assert client.post("/v1/feedback", json={**given, "score": 7}, headers={"Authorization": SHOP}).status_code == 422
    unknown = {**given, "trace_id": "0" * 32}
    assert client.post("/v1/feedback", json=unknown, headers={"Authorization": SHOP}).status_code == 404


def test_hostile_bodies_are_refused_before_they_cost_anything(served: tuple[TestClient, Workspace]) -> None:
    client, _ = served
    headers = {"Authorization": SHOP}
    too_large = client.post("/v1/chat/completions", content=b"x" * (MAX_BODY + 1), headers=headers)
    assert too_large.status_code == 413
    assert client.post("/v1/chat/completions", content=b"{", headers=headers).status_code == 422
    for messages in ([], [{"role": "assistant", "content": "x"}], [{"role": "user", "content": "  "}], "x"):
        body = {"messages": messages}
        assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 422
    long = [{"role": "user", "content": "x" * 20_000}]
    assert client.post("/v1/chat/completions", json={"messages": long}, headers=headers).status_code == 422
    streamed = client.post("/v1/chat/completions", content=iter([b"{}"]), headers=headers)
    assert streamed.status_code == 413


def test_an_approval_over_http_resumes_the_request(served: tuple[TestClient, Workspace]) -> None:
    client, _ = served
    waiting = chat(client, "i want to return SO-12878 and get a refund").json()
    if waiting["agentops"]["status"] != "pending":
        pytest.skip(f"the shipped router chose {waiting['agentops']['routes']}")
    [approval] = waiting["agentops"]["approvals"]
    listed = client.get("/v1/approvals", headers={"Authorization": MONEY}).json()["data"]
    assert [item["id"] for item in listed] == [approval]
    assert listed[0]["arguments"]["order_id"] == "SO-12878"
    assert client.get("/v1/approvals", headers={"Authorization": SHOP}).json()["data"] == []
    assert client.get("/v1/approvals", headers={"Authorization": OTHER}).json()["data"] == []
    path = f"/v1/approvals/{approval}"
    assert client.post(path, json={"approve": True}, headers={"Authorization": SHOP}).status_code == 403
    assert client.post(path, json={"approve": True}, headers={"Authorization": DESK}).status_code == 403
    runtime = client.app.state.runtime
    with pytest.MonkeyPatch.context() as patch:

        async def gone(_: str) -> None:
            raise StoreError("no answer")

        patch.setattr(runtime, "resume", gone)
        failed = client.post(path, json={"approve": True, "reason": "fine"}, headers={"Authorization": MONEY})
        assert failed.status_code == 503
    done = client.post(path, json={"approve": True, "reason": "fine"}, headers={"Authorization": MONEY})
    assert done.status_code == 200
    assert done.json()["request"]["status"] == "ok"
    again = client.post(path, json={"approve": True}, headers={"Authorization": MONEY})
    assert again.status_code == 409


def test_the_schema_is_not_public(served: tuple[TestClient, Workspace]) -> None:
    assert served[0].get("/openapi.json").status_code == 404


def test_a_length_that_is_no_number_is_refused(served: tuple[TestClient, Workspace]) -> None:
    client, _ = served
    for length in (b"\xb2", b"9" * 5000):
        headers = {"Authorization": SHOP.encode(), "Content-Length": length}
        assert client.post("/v1/chat/completions", headers=headers).status_code == 413


def test_a_repeated_request_keeps_its_id_and_session_and_names_nobody(served: tuple[TestClient, Workspace]) -> None:
    client, workspace = served
    texts = ("Which orders have I placed?", "Which orders have I placed?", "where is my parcel")
    answers = [chat(client, text, **{"Idempotency-Key": "again-1"}).json()["agentops"] for text in texts]
    ids = [answer["request_id"] for answer in answers]
    assert ids[0] == ids[1]
    assert ids[2] != ids[0]  # another message under an old key must not replace one that waits
    assert "C-1054" not in ids[0]
    workspace.tracing.flush()
    found = [trajectory(workspace.lake, answer["trace_id"]) for answer in answers]
    assert len({one.session for one in found[:2] if one}) == 1  # the step keys, and so the effects, are the same
