"""Commands for auditors: audit verify | query | unfinished | prove | export | verify-export | anchor | witness | erase.

Invariant: no command here changes what a log holds; exit 1 means that something was changed, is missing or could not
be checked. `verify-export` and `witness` need no project.
"""

import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from agentops import audit as auditing
from agentops.act import records
from agentops.audit import anchors, export, heads, notes, proofs, publishing, witness
from agentops.cli.app import AsJson, ProjectDir, Since, Until, console, instant, moment, show, table
from agentops.errors import AgentopsError, AuditError, ConfigError, GateFailed, PolicyError
from agentops.workspace import local_principal, open_workspace

app = typer.Typer(no_args_is_help=True, help="The tamper-evident log.")

Key = Annotated[
    Path | None, typer.Option("--key", help="A trusted copy of the log's key.pub; default: the folder's own.")
]
Anchors = Annotated[
    list[str] | None,
    typer.Option("--anchor", help="file:PATH, git:REPOSITORY, s3://BUCKET/PREFIX or http://HOST:PORT."),
]
Tenant = Annotated[str, typer.Option(help="Only this tenant's records; default: all.")]
_SETTLED_S = 60.0  # a call that began later may still run
_LARGEST_PROOF = 4 * 1024 * 1024  # bytes


@app.command()
def verify(key: Key = None, anchor: Anchors = None, project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Check every record, chain, signed checkpoint and anchor. Exit 1 when anything was changed, cut or forged."""
    with open_workspace(project) as workspace:
        folder = workspace.home / "audit"
        specs = [*workspace.project.settings.audit_anchors, *(anchor or ())]
    public = notes.load_public_key(key) if key else None
    claims, checked = [], []
    states = publishing.status(folder)
    for spec in dict.fromkeys(specs):
        state = states.get(spec, publishing.AnchorStatus())
        row: dict[str, Any] = {"anchor": spec, "heads": 0, "problem": "", "failures": state.failures}
        try:
            found = anchors.claims(anchors.open_anchor(spec), public or notes.load_public_key(folder))
            claims += found
            row["heads"] = len(found)
        except AgentopsError as error:
            row["problem"] = str(error)
        checked.append(row)
    report = auditing.verify(folder, public, claims)
    faults = [row["problem"] for row in checked if row["problem"]]
    lines = report.lines()
    if report.ok and faults:
        lines[-1] = "the log is whole as far as it was checked: not every anchor answered"
    lines[1:1] = [f"anchor {row['anchor']}: {_anchored(row)}" for row in checked]
    show({**_plain(report), "ok": report.ok and not faults, "anchors": checked}, as_json, lines)
    if not report.ok:
        raise GateFailed("the audit log does not verify: see the lines above; keep the folder as it is")
    if faults:
        raise GateFailed(f"the audit log was not checked against every anchor: {faults[0]}")


@app.command()
def query(
    kind: Annotated[str, typer.Option(help="Only records of this type, for example tool.intent.")] = "",
    trace: Annotated[str, typer.Option(help="Only records of this trace.")] = "",
    tenant: Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000)] = 50,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """The newest records that match."""
    with open_workspace(project) as workspace:
        matching = (
            record
            for record in auditing.records(workspace.home / "audit", tenant)
            if (not kind or record.get("type") == kind) and (not trace or record.get("trace") == trace)
        )
        found = list(deque(matching, limit))  # of millions only these are in memory
    rows = [
        (
            moment(r.get("at")),
            r.get("type"),
            r.get("tool"),
            r.get("decision") or r.get("status"),
            r.get("trace"),
            f"{r.get('log')} {r.get('index')}",
        )
        for r in found
    ]
    columns = ("at", "type", "tool", "decision", "trace", "log and index")
    show(found, as_json, [table("", columns, rows) if rows else "no record matches"])


@app.command()
def unfinished(tenant: Tenant = "", project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Effects whose end nobody knows. Begun more than a minute ago; look at each after a crash.

    Nothing repeats them by itself. Look in the tool's own system, under the idempotency key where it keeps one.
    """
    with open_workspace(project) as workspace:
        before = workspace.clock.now() - _SETTLED_S
        found = records.unfinished(auditing.records(workspace.home / "audit", tenant), before)
    rows = [(moment(r.at), r.tenant, r.tool, r.ended or "no outcome", r.run, r.trace, r.key) for r in found]
    columns = ("begun at", "tenant", "tool", "ended", "run", "trace", "key")
    show(found, as_json, [table("", columns, rows)] if rows else ["every effect that was begun has an outcome"])


@app.command()
def prove(
    log: Annotated[str, typer.Argument(help="The log's name, as `query` shows it.")],
    index: Annotated[int, typer.Argument(min=0, help="The record's index in it.")],
    out: Annotated[Path | None, typer.Option(help="Write the proof here; default: print it.")] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Prove one record to someone who has only key.pub. To a signed head, and to its line in the system log."""
    with open_workspace(project) as workspace:
        folder = workspace.home / "audit"
    public = notes.load_public_key(folder)
    proof = proofs.prove(folder, log, index, public)
    record = proofs.verify_proof(proof, public)
    if out is None:
        show(proof, True)
        return
    notes.write_durably(out, orjson.dumps(proof, option=orjson.OPT_INDENT_2) + b"\n", 0o600)
    system = (
        ""
        if proof["system"] is None
        else f", and that head is record {proof['system']['index']} of " + str(proof["system"]["log"])
    )
    said = f"record {index} of {log} ({record.get('type')}) is one of the {proof['size']} signed ones{system}"
    show({"out": str(out), "record": record}, as_json, [said, f"written to {out}: check it with verify-export"])


@app.command("export")
def export_(
    out: Annotated[Path, typer.Option(help="The file to write; must not exist.")],
    tenant: Tenant = "",
    since: Since = "",
    until: Until = "",
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """One file with the signed records of a tenant or a time. It proves itself without this folder."""
    with open_workspace(project) as workspace:
        folder = workspace.home / "audit"
    bounds = {name: instant(text) for name, text in (("since", since), ("until", until)) if text}
    done = export.export(folder, out, tenant, **bounds)
    show({"out": str(out), **_plain(done)}, as_json, [*_exported(done), f"written to {out}"])


@app.command("verify-export")
def verify_export(
    file: Annotated[Path, typer.Argument(help="An export, or a proof of one record.")],
    key: Annotated[Path, typer.Option(help="A trusted copy of the log's key.pub.")],
    as_json: AsJson = False,
) -> None:
    """Check an export or a proof without the log's folder. Exit 1 when anything in it was changed."""
    public = notes.load_public_key(key)
    proof = _proof(file)
    if proof is not None:
        record = proofs.verify_proof(proof, public)
        lines = [
            f"record {record['index']} of {record['log']}, {moment(record['at'])}",
            "the record is as it was signed",
        ]
        show({"ok": True, "record": record}, as_json, lines)
        return
    done = export.verify_export(file, public)
    show({"ok": True, **_plain(done)}, as_json, [*_exported(done), "every record is as it was signed"])


@app.command()
def anchor(anchor: Anchors = None, project: ProjectDir = None, as_json: AsJson = False) -> None:
    """Publish the newest signed heads now. Only where an anchor does not have them yet."""
    with open_workspace(project) as workspace:
        folder = workspace.home / "audit"
        specs = [*workspace.project.settings.audit_anchors, *(anchor or ())]
    if not specs:
        raise ConfigError("no anchor is configured: name one with --anchor, or in [tool.agentops] audit_anchors")
    public = notes.load_public_key(folder)
    rows = [_publish(folder, anchors.open_anchor(spec), public) for spec in dict.fromkeys(specs)]
    show(rows, as_json, [f"anchor {row['anchor']}: {row['problem'] or _published(row)}" for row in rows])
    if any(row["problem"] for row in rows):
        raise GateFailed("not every anchor has the heads: see the lines above")


@app.command("witness")
def witness_(
    key: Annotated[list[Path], typer.Option("--key", help="key.pub of a log to witness; may be repeated.")],
    home: Annotated[Path, typer.Option(help="Folder of the witness's own key and of the heads it remembers.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 8400,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="Name in its cosignatures.")] = "agentops-witness",
) -> None:
    """Remember heads of others' logs, refuse forks and rollbacks. Run it on another machine than the logs."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9./_-]{0,62}", name):
        raise ConfigError(f"witness name {name[:80]!r} is not allowed: lower-case letters, digits, . / _ -, at most 63")
    made = witness.Witness(home, [notes.load_public_key(path) for path in key], name)
    try:
        server = witness.serve(made, host, port)
    except OSError as error:
        made.close()
        raise ConfigError(f"the address {host[:80]!r}, port {port} cannot be used: {error.strerror}") from None
    try:
        address = f"http://{server.server_address[0]}:{server.server_address[1]}"
        console.print(f"witness of {len(key)} keys: {address}#{made.verifier}", markup=False)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    finally:
        server.server_close()
        made.close()


@app.command()
def erase(
    tenant: Annotated[str, typer.Option(help="The person's tenant.")],
    user: Annotated[str, typer.Option(help="The person's user name.")],
    by: Annotated[str, typer.Option("--as", help="Who does it; needs the role operator.")],
    role: Annotated[list[str] | None, typer.Option("--role", help="Your roles; default: operator.")] = None,
    project: ProjectDir = None,
    as_json: AsJson = False,
) -> None:
    """Destroy a person's key for good. Digests and sealed records of them then mean nothing; the log still verifies.

    Traces, approvals and the tools' own data are elsewhere; backups of audit/subjects.db must be deleted with it.
    """
    with open_workspace(project) as workspace:
        who = local_principal(workspace, by, tuple(role or ("operator",)))
        if "operator" not in who.roles:
            raise PolicyError(f"erasing a person needs the role operator; {by!r} has: {', '.join(sorted(who.roles))}")
        subject = workspace.audit.erase(tenant, user, who)
    told = f"erased: records keep only the id {subject}" if subject else "there is no key: never seen, or erased before"
    show({"erased": bool(subject), "subject": subject}, as_json, [told])


def _publish(folder: Path, place: heads.Anchor, public: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"anchor": place.spec, "published": 0, "kept": 0, "problem": ""}
    try:
        known: set[tuple[str, int]] = set()
        with suppress(AuditError):  # nothing kept yet
            known = {(claim.log, claim.size) for claim in anchors.claims(place, public)}
        for head in heads.heads(folder, public):
            if (head.log, head.checkpoint.size) in known:
                row["kept"] += 1
            else:
                publishing.publish(folder, place, head)
                row["published"] += 1
    except AgentopsError as error:
        row["problem"] = str(error)
    return row


def _published(row: dict[str, Any]) -> str:
    return f"heads published: {row['published']}, there already: {row['kept']}"


def _anchored(row: dict[str, Any]) -> str:
    failing = f"; publishing failed {row['failures']} times since it last worked" if row["failures"] else ""
    return (row["problem"] or f"heads compared: {row['heads']}") + failing


def _exported(done: export.Exported) -> list[str]:
    chosen = f"tenant {done.tenant!r}" if done.tenant else "all tenants and the system logs"
    begin = f"from {moment(done.since)}" if done.since else "from the beginning"
    end = f"until {moment(done.until)}" if done.until < export.FOREVER else "until the last signed record"
    lines = [f"made of: {chosen}, {begin} {end}"]
    lines += [f"records: {done.records}, logs: {done.logs}, tenants: {len(done.tenants)}"]
    lines += [f"signed head: {log}, {size} records, root {root}" for log, (size, root) in done.heads.items()]
    return lines + [f"not named by a system log yet: {name}" for name in done.without_system_line]


def _proof(file: Path) -> dict[str, Any] | None:
    """A proof of one record, None when the file is something else."""
    with file.open("rb") as opened:
        data = opened.read(_LARGEST_PROOF)
    with suppress(ValueError):
        found = orjson.loads(data)
        return found if isinstance(found, dict) and found.get("format") == proofs.FORMAT else None
    return None


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="audit")
