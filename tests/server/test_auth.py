"""Who gets in over HTTP, with which rights, and what others' tenants cannot see."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from idp_world import STRANGER, by_hand, claims, jwks, mint, pem

from agentops import audit, errors
from agentops import project as projects
from agentops.cli import main
from agentops.errors import AgentopsError, ConfigError
from agentops.improve import ensure_router
from agentops.policy import ApiKeys
from agentops.runtime import open_runtime
from agentops.server import create_app
from agentops.server.auth import api_keys
from agentops.server.errors import HEADERS, STATUS, handle_errors
from agentops.trace import trajectory
from agentops.workspace import Workspace

ISSUERS = """
[issuers.corp]
issuer = "https://idp.example.com/"
audience = "agentops"
algorithms = ["RS256", "EdDSA"]
jwks = "corp.json"
tenant_claim = "org"
roles_claim = "groups"
roles = { shoppers = "customer", desk = "staff", money = "finance", bots = "service" }

[actors.frontend]
scopes = ["orders:read", "refunds:read", "refunds:write"]

[actors.stock]
scopes = ["inventory:read"]

[tenants.default]
[tenants.globex]
"""
KEYS = (
    "front:secret-of-frontend-001:default:frontend:service,"
    "rogue:secret-of-a-rogue-00001:default:rogue:service,"
    "old:secret-of-yesterday-01:default:C-1054:customer:2020-01-01"
)
ORDERS = "Which orders have I placed so far?"
REFUND = "i want to return SO-12878 and get a refund"


@pytest.fixture(scope="module")
def project(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference project with an identity provider."""
    root = tmp_path_factory.mktemp("desk")
    for name in ("routers", "tools", "pipelines", "policies"):
        shutil.copytree(repo / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repo / "pyproject.toml", root)
    file = root / "policies" / "identities.toml"
    file.write_text(file.read_text() + ISSUERS)
    (root / "policies" / "corp.json").write_text(jwks("RS256", "EdDSA"))
    return root


@pytest.fixture(scope="module")
def served(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Workspace]]:
    home = tmp_path_factory.mktemp("home")
    with Workspace(projects.load(project, {**os.environ, "AGENTOPS_HOME": str(home)})) as workspace:
        ensure_router(workspace)
        app = create_app(workspace, ApiKeys.parse(KEYS, workspace.project.policies), open_runtime)
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client, workspace


@pytest.fixture
def client(served: tuple[TestClient, Workspace]) -> TestClient:
    return served[0]


def token(org: str = "default", user: str = "C-1054", groups: str = "shoppers", **changes: Any) -> str:
    return f"Bearer {mint(sub=user, org=org, groups=[groups], **changes)}"


def chat(client: TestClient, text: str, credential: str, **headers: str) -> Any:
    sent = {"Authorization": credential, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]}, headers=sent)


def statuses(answer: Any) -> set[str]:
    assert answer.status_code == 200, answer.text
    return {tool["status"] for tool in answer.json()["agentops"]["tools"]}


def test_a_token_of_the_issuer_is_served_with_its_users_rights(client: TestClient) -> None:
    assert statuses(chat(client, ORDERS, token())) == {"ok"}
    owned = client.get("/v1/models", headers={"Authorization": token(org="globex")}).json()["data"]
    assert [one["owned_by"] for one in owned] == ["globex"]


def test_every_refused_credential_gets_the_same_answer(served: tuple[TestClient, Workspace]) -> None:
    client, workspace = served
    refused = {
        "absent": None,
        "scheme": "Basic Zm9vOmJhcg==",
        "api-key": "Bearer front:wrong-wrong-wrong-1",
        "api-key ": "Bearer old:secret-of-yesterday-01",
        "token-malformed": "Bearer a.b.c",
        "token-algorithm": f"Bearer {by_hand({'alg': 'none'}, claims())}",
        "token-algorithm ": f"Bearer {by_hand({'alg': 'HS256', 'kid': 'RS256'}, claims(), pem('RS256'))}",
        "token-signature": token(key=STRANGER),
        "token-expired": token(exp=1),
        "token-audience": token(aud="billing"),
        "token-issuer": token(iss="https://evil.example.com/"),
        "token-tenant": token(org="acme"),
        "token-roles": token(groups="strangers"),
        "token-service": token(groups="bots", user="frontend"),
        "token-actor": token(act={"sub": "unknown"}),
    }
    before = {json.dumps(record) for record in recorded(workspace)}
    answers = set()
    for credential in refused.values():
        headers = {"Authorization": credential} if credential else {}
        for _ in range(3):
            answer = client.get("/v1/models", headers=headers)
            answers.add((answer.status_code, answer.text, answer.headers["www-authenticate"]))
    assert len(answers) == 1
    assert answers.pop()[0] == 401
    workspace_refusals(client).flush()
    workspace_refusals(client).flush()
    workspace.audit.append_now({"type": "test.mark"})
    records = [one for one in recorded(workspace) if json.dumps(one) not in before]
    [record] = [one for one in records if one["type"] == "auth.refused"]  # 45 refusals: one record
    counts = record["counts"]
    assert counts == {kind: 6 if kind in ("api-key", "token-algorithm") else 3 for kind in map(str.strip, refused)}
    assert not any("eyJ" in json.dumps(one) or "secret-of" in json.dumps(one) for one in records)


def workspace_refusals(client: TestClient) -> Any:
    app = client.app
    assert isinstance(app, FastAPI)
    return app.state.refusals


def recorded(workspace: Workspace) -> list[dict[str, Any]]:
    workspace.audit.append_now({"type": "test.mark"})  # everything posted before is on disk now
    return [dict(record) for record in audit.records(workspace.home / "audit")]


def test_headers_and_scopes_in_a_token_only_take_rights_away(client: TestClient) -> None:
    assert statuses(chat(client, ORDERS, token(), X_Agentops_Scopes="inventory:read")) == {"denied"}
    assert statuses(chat(client, ORDERS, token(), X_Agentops_Scopes="")) == {"denied"}
    assert statuses(chat(client, ORDERS, token(), X_Agentops_Scopes="orders:read admin:all *")) == {"ok"}
    assert statuses(chat(client, ORDERS, token(scope="inventory:read"), X_Agentops_Scopes="orders:read")) == {"denied"}
    assert chat(client, ORDERS, token(), X_Agentops_Scopes="a:b " * 65).status_code == 400
    assert chat(client, ORDERS, token(), X_Agentops_User="C-1001").status_code == 403
    assert chat(client, ORDERS, token(), X_Agentops_Tenant="globex").json()["agentops"]["tools"]


def test_a_delegated_call_has_what_user_and_actor_both_may(client: TestClient) -> None:
    assert statuses(chat(client, ORDERS, token(act={"sub": "frontend"}))) == {"ok"}
    assert statuses(chat(client, ORDERS, token(act={"sub": "stock"}))) == {"denied"}
    assert statuses(chat(client, ORDERS, token(act={"sub": "frontend", "act": {"sub": "stock"}}))) == {"denied"}


def test_a_service_key_is_an_actor_like_any_other(client: TestClient) -> None:
    front, rogue = "Bearer front:secret-of-frontend-001", "Bearer rogue:secret-of-a-rogue-00001"
    assert statuses(chat(client, ORDERS, front, X_Agentops_User="C-1054")) == {"ok"}
    assert statuses(chat(client, ORDERS, front, X_Agentops_User="C-1054", X_Agentops_Scopes="refunds:read")) == {
        "denied"
    }
    assert chat(client, ORDERS, front).status_code == 400
    assert chat(client, ORDERS, front, X_Agentops_User="C:1").status_code == 422
    assert chat(client, ORDERS, rogue, X_Agentops_User="C-1054").status_code == 403  # not in [actors]


def pending(client: TestClient, credential: str, **headers: str) -> dict[str, Any]:
    answer = chat(client, REFUND, credential, **headers).json()["agentops"]
    assert answer["status"] == "pending", answer["routes"]
    return answer


def test_another_tenants_ids_are_as_unknown_as_none(client: TestClient) -> None:
    """Trace and approval: the same status and, but for the id, the same text as for an id that does not exist."""
    waits = pending(client, token(), Idempotency_Key="tenants-1")
    [approval] = waits["approvals"]
    theirs = {"Authorization": token(org="globex", user="E-9", groups="money")}
    nothing = "a" + "0" * 20

    def told(response: Any, id: str) -> tuple[int, str]:
        return response.status_code, response.text.replace(id, "ID")

    decision = {"approve": True}
    asked = [told(client.post(f"/v1/approvals/{id}", json=decision, headers=theirs), id) for id in (approval, nothing)]
    assert asked[0] == asked[1]
    assert asked[0][0] == 404
    judged = [
        told(client.post("/v1/feedback", json={"trace_id": id, "score": 1}, headers=theirs), id)
        for id in (waits["trace_id"], "0" * 32)
    ]
    assert judged[0] == judged[1]
    assert judged[0][0] == 404
    assert client.get("/v1/approvals", headers=theirs).json()["data"] == []
    own = client.get("/v1/approvals", headers={"Authorization": token(user="E-1", groups="money")}).json()["data"]
    assert approval in [one["id"] for one in own]


def test_who_decides_needs_the_scope_as_well_as_the_role(client: TestClient) -> None:
    [approval] = pending(client, token(), Idempotency_Key="scopes-1")["approvals"]
    path = f"/v1/approvals/{approval}"
    full = token(user="E-1", groups="money")
    for headers in (
        {"Authorization": token(user="E-1", groups="money", scope="orders:read refunds:read")},
        {"Authorization": token(user="E-1", groups="money", act={"sub": "frontend"})},
        {"Authorization": full, "X-Agentops-Scopes": "orders:read"},
        {"Authorization": token(user="C-1", groups="shoppers")},
    ):
        assert client.get("/v1/approvals", headers=headers).json()["data"] == []
        for id in (approval, "a" + "0" * 20):  # nor learns which approvals there are
            assert client.post(f"/v1/approvals/{id}", json={"approve": True}, headers=headers).status_code == 403
    done = client.post(
        path, json={"approve": False}, headers={"Authorization": full, "X-Agentops-Scopes": "approvals:decide"}
    )
    assert done.status_code == 200, done.text
    assert client.post(path, json={"approve": True}, headers={"Authorization": full}).status_code == 409


def test_a_session_or_key_of_another_user_is_another_thing(served: tuple[TestClient, Workspace]) -> None:
    """The same names, used by two users and two tenants: no shared request, conversation or approval."""
    client, workspace = served
    names = {"X_Agentops_Session": "conversation-1", "Idempotency_Key": "order-1"}
    callers = (token(), token(user="C-1001"), token(org="globex"))
    answers = [chat(client, ORDERS, caller, **names).json()["agentops"] for caller in callers]
    assert len({answer["request_id"] for answer in answers}) == 3
    again = chat(client, ORDERS, callers[0], **names).json()["agentops"]
    assert again["request_id"] == answers[0]["request_id"]
    workspace.tracing.flush()
    found = [trajectory(workspace.lake, answer["trace_id"]) for answer in (*answers, again)]
    sessions = [one.session for one in found if one]
    assert len(sessions) == 4
    assert len(set(sessions[:3])) == 3
    assert sessions[3] == sessions[0]
    mine = pending(client, token(), **names)
    theirs = chat(client, REFUND, token(org="globex"), **names).json()["agentops"]
    assert not set(mine["approvals"]) & set(theirs["approvals"])


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    answers = [
        client.get("/healthz"),
        client.get("/nothing-here"),
        client.get("/v1/models"),
        chat(client, "", token()),
        client.post("/v1/chat/completions", headers={"Authorization": token(), "Content-Length": "9" * 12}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 422, 413]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.status_code == 200 or set(answer.json()["error"]) == {"message", "type", "code"}


def test_a_refused_body_is_not_repeated(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": {"card": "4111 1111 1111 1111"}}]}
    answer = client.post("/v1/chat/completions", json=body, headers={"Authorization": token()})
    assert answer.status_code == 422
    assert "4111" not in answer.text
    assert "messages" in answer.json()["error"]["message"]


def test_each_class_of_error_has_its_status_and_ours_stay_inside() -> None:
    app = FastAPI()
    handle_errors(app)
    kinds = {kind.__name__: kind for kind in AgentopsError.__subclasses__() if kind.__module__ == errors.__name__}
    assert set(kinds.values()) == set(STATUS)  # a new class needs its place in the table

    @app.get("/{name}")
    async def fail(name: str) -> None:
        raise kinds.get(name, RuntimeError)("/srv/state.db of jo@corp.example")

    with TestClient(app, raise_server_exceptions=False) as client:
        for name, kind in kinds.items():
            answer = client.get(f"/{name}")
            assert answer.status_code == STATUS[kind]
            assert ("state.db" in answer.text) == (answer.status_code < 500)
            assert (answer.headers.get("retry-after") is not None) == (answer.status_code == 503)
        unforeseen = client.get("/RuntimeError")
        assert unforeseen.status_code == 500
        assert unforeseen.json()["error"]["type"] == "server_error"
        assert "corp.example" not in unforeseen.text


HOSTS = ("0.0.0.0", "::", "192.0.2.7", "desk.example.com", "127.0.0.1.example.com", "localhost.example.com")


@pytest.mark.parametrize("host", HOSTS)
def test_a_reachable_address_without_keys_or_issuers_is_refused(
    repo: Path, tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTOPS_HOST", host)
    monkeypatch.setenv("AGENTOPS_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTOPS_API_KEYS", raising=False)
    monkeypatch.setattr(sys, "argv", ["agentops", "serve", "--project", str(repo)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"host = {host!r} is reachable by others" in told
    assert "set AGENTOPS_API_KEYS or add [issuers.NAME]" in told


@pytest.mark.parametrize(
    ("host", "keys", "issuers"),
    [(host, True, False) for host in HOSTS]
    + [(host, False, True) for host in HOSTS]
    + [(host, False, False) for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost")],
)
def test_keys_or_issuers_or_loopback_are_enough(
    repo: Path, project: Path, tmp_path: Path, host: str, keys: bool, issuers: bool
) -> None:
    given = {"AGENTOPS_HOST": host, "AGENTOPS_HOME": str(tmp_path), **({"AGENTOPS_API_KEYS": KEYS} if keys else {})}
    with Workspace(projects.load(project if issuers else repo, given)) as workspace:
        assert (api_keys(workspace) is not None) == keys


def test_an_application_nobody_could_call_is_not_built(repo: Path, tmp_path: Path) -> None:
    with Workspace(projects.load(repo, {"AGENTOPS_HOME": str(tmp_path)})) as workspace, pytest.raises(ConfigError):
        create_app(workspace, None, open_runtime)
