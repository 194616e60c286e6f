"""Commands of the online loop: ask, serve."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.text import Text

from agentops.cli.app import AsJson, ProjectDir, console, errors, printable, show
from agentops.errors import GateFailed
from agentops.runtime import Answer, new_request, open_runtime
from agentops.workspace import Workspace, local_principal, open_workspace


def ask(
    text: Annotated[str, typer.Argument(help="What the customer writes.")],
    user: Annotated[str, typer.Option("--as", help="The customer who asks.")] = "C-1001",
    role: Annotated[list[str] | None, typer.Option("--role", help="Roles of the user; default: customer.")] = None,
    session: Annotated[str, typer.Option(help="Conversation: what it has read and its release arm stick to it.")] = "",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Serve one request here and print what happened. The answer, the route and every tool call."""
    from agentops.improve import ensure_router
    from agentops.server.app import extension

    with open_workspace(project) as workspace:
        note = ensure_router(workspace)
        principal = local_principal(workspace, user, tuple(role or ("customer",)))
        answer = asyncio.run(_ask(workspace, new_request(text, principal, session)))
        shown = {"answer": answer.text, **extension(answer)}
        waits = {one: workspace.approvals.get(one, principal.tenant).approver for one in answer.approvals}
    if note and not as_json:
        errors.print(note, style="dim")
    show(shown, as_json, _lines(answer, waits))
    if answer.status == "error":
        raise GateFailed(f"the request failed: `agentops traces show {answer.trace_id[:12]}` has the reason")


async def _ask(workspace: Workspace, request) -> Answer:
    async with open_runtime(workspace) as runtime:
        return await runtime.ask(request)


def _lines(answer: Answer, waits: Mapping[str, str]) -> list[str | Text]:
    routes = " + ".join(f"{r.label} ({r.confidence:.2f}, {r.stage})" for r in answer.routes)
    lines: list[str | Text] = [answer.text, "", _line("route", routes)]
    for result in answer.results:
        how = "cached" if result.cached else f"{1000 * (result.ended_at - result.started_at):.0f} ms"
        why = f"  {result.error}" if result.error else ""
        lines.append(_line("tool", f"{result.tool}  {result.status}  {how}{why}"))
    lines += [
        _line(
            "waits",
            " ".join([f"agentops approvals approve {one} --as NAME", *(f"--role {r}" for r in role.split("+"))]),
        )
        for one, role in waits.items()
    ]
    took = 1000 * (answer.ended_at - answer.started_at)
    return [*lines, _line("trace", f"{answer.trace_id}  {answer.status}  {took:.0f} ms")]


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<7}", "dim"), " ", printable(text))


def serve(project: ProjectDir = None) -> None:
    """Serve chat completions over HTTP. They are OpenAI-style; the governed tools are served over MCP.

    Keys: AGENTOPS_API_KEYS=id:secret:tenant:user[:role+role[:YYYY-MM-DD]],… (a key ends on its day).
    Tokens of an identity provider count when policies/identities.toml has [issuers.NAME].
    """
    import uvicorn

    from agentops.improve import ensure_router
    from agentops.policy import ApiKeys, identities
    from agentops.server import create_app
    from agentops.server.auth import api_keys

    with open_workspace(project) as workspace:
        settings = workspace.project.settings
        policies = workspace.project.policies
        keys = api_keys(workspace)
        issuers = identities(policies).issuers
        if keys is None and not issuers:
            secret = secrets.token_urlsafe(24)
            keys = ApiKeys.parse(f"local:{secret}:{settings.tenant}:C-1001:customer", policies)
            console.print("AGENTOPS_API_KEYS is not set: a key for this run only, customer C-1001")
            console.print(f"  Authorization: Bearer local:{secret}", markup=False)
        note = ensure_router(workspace)
        if note:
            console.print(note)
        app = create_app(workspace, keys, open_runtime)
        console.print(f"serving {settings.service} on http://{settings.host}:{settings.port}/v1/chat/completions")
        for issuer in issuers:
            console.print(f"accepting tokens of {issuer}", markup=False)
        uvicorn.run(
            app, host=settings.host, port=settings.port, log_level="warning", access_log=False, server_header=False
        )


def register(app: typer.Typer) -> None:
    for command in (ask, serve):
        app.command()(command)
