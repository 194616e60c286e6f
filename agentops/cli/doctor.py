"""`agentops doctor`: is this machine ready, what is missing, and what is lost without it.

Invariant: it reads and never installs, writes only a probe file in the project's own state folder, and a finding says
the command that mends it. "fail" is what serving needs; "info" is what an option needs.
"""

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agentops import project as projects
from agentops.act.sandbox import detect, missing
from agentops.audit import publishing
from agentops.errors import AgentopsError, ModelError, StoreError, available
from agentops.graph import RealClock
from agentops.models import weights
from agentops.policy import KillSwitch, PolicySet, policy_problems
from agentops.policy.decisions import SHADOW
from agentops.store import State, open_state


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    status: Literal["ok", "info", "fail"]
    detail: str


SERVING = ("langgraph", "litellm", "opentelemetry-sdk", "duckdb", "redis", "cedarpy", "fastapi", "onnxruntime")
EXTRAS = {
    "train": ("torch", "transformers", "trl", "peft", "datasets"),
    "ray": ("ray",),
    "openenv": ("openenv",),
    "mcp": ("mcp",),
    "s3": ("boto3",),
}


def examine(root: Path | None) -> list[Finding]:
    """Every finding, in the order a reader wants them."""
    found = [_python(), *map(_package, SERVING), _clash(), *map(_extra, EXTRAS), *_weights(), _sandbox()]
    try:
        project = projects.load(root)
    except AgentopsError as error:
        return [*found, Finding("project", "fail", str(error))]
    return [
        *found,
        Finding("project", "ok", f"{project.root.name}, {len(project.tools)} tools"),
        *_policies(project),
        *_places(project),
        *_state(project),
        _decisions(project),
        *_anchors(project),
        *_mcp(project),
    ]


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "python", "ok" if good else "fail", f"{platform.python_version()} ({platform.machine()}), needs 3.11+"
    )


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "fail", "not installed: pip install agentops-flywheel")


def _clash() -> Finding:
    """The PyPI distribution `agentops` is another project and owns the same import name."""
    try:
        other = importlib.metadata.version("agentops")
    except importlib.metadata.PackageNotFoundError:
        return Finding("import name", "ok", "no other distribution provides `agentops`")
    return Finding(
        "import name", "fail", f"the unrelated distribution agentops {other} is installed too: pip uninstall agentops"
    )


def _extra(name: str) -> Finding:
    missing = [module for module in EXTRAS[name] if not available(module)]
    if not missing:
        return Finding(f"extra [{name}]", "ok", "installed")
    command = f"pip install 'agentops-flywheel[{name}]'"
    return Finding(f"extra [{name}]", "info", f"not installed ({', '.join(missing)}): {command}")


def _weights() -> list[Finding]:
    checks: tuple[tuple[str, Callable[[], object], Literal["fail", "info"]], ...] = (
        ("encoder weights", weights.encoder, "fail"),
        ("small language model", weights.smollm2_source, "info"),
    )
    found = []
    for what, look, severity in checks:
        try:
            look()
            found.append(Finding(what, "ok", "found"))
        except ModelError as error:
            found.append(Finding(what, severity, str(error)))
    return found


def _sandbox() -> Finding:
    """The isolation that tools get, found by trying: what it lacks, what brings it, what is lost without it."""
    level = detect()
    if level == "bubblewrap":
        return Finding("isolation", "ok", "'bubblewrap': tools run in namespaces of their own")
    lost = {
        "landlock": "files and sockets are refused all the same; names and sizes of files can be seen, and the scratch "
        "folder and the number of processes are held less exactly",
        "none": "tools whose policy asks for isolation do not run",
    }
    return Finding(
        "isolation",
        "info",
        f"{level!r}, not 'bubblewrap' ({missing('bubblewrap')}): {lost[level]}. "
        "To mend it: apt-get install bubblewrap, in a container that may make namespaces",
    )


def _anchors(project: projects.Project) -> list[Finding]:
    """Whether heads of the audit log reach the places that its owner cannot rewrite."""
    specs = project.settings.audit_anchors
    if not specs:
        lost = "none: a rollback of the whole audit folder would not be noticed ([tool.agentops] audit_anchors)"
        return [Finding("audit anchors", "info", lost)]
    known, found = publishing.status(project.home / "audit"), []
    for spec in specs:
        state = known.get(spec, publishing.AnchorStatus())
        if state.failures:
            failed = f"{spec}: failed {state.failures} times since it last worked: {state.error}"
            found.append(Finding("audit anchor", "fail", failed))
        elif state.published_at:
            found.append(Finding("audit anchor", "ok", f"{spec}: {state.size} records of {state.log}"))
        else:
            found.append(Finding("audit anchor", "info", f"{spec}: nothing published yet"))
    return found


def _mcp(project: projects.Project) -> list[Finding]:
    """Tools of MCP servers whose definition is not the pinned one any more: they are not called."""
    if not any("mcp" in pack.settings for pack in project.packs):
        return []
    from agentops.act.mcp.states import states

    try:
        with closing(_opened(project)) as state:
            known = states(state, project.tools)
    except StoreError as error:
        return [Finding("mcp tools", "fail", str(error))]
    blocked = [f"{name} is {found}" for name, found in known.items() if found != "ok"]
    if not blocked:
        return [Finding("mcp tools", "ok", f"{len(known)} tools are as they were pinned, as far as was seen")]
    return [Finding("mcp tools", "fail", f"{', '.join(blocked)}: look at it with `agentops tools pin PACK`")]


def _policies(project: projects.Project) -> list[Finding]:
    """Whether the files on disk would come into force: what serves keeps its set until they would."""
    specs = {name: tool.spec for name, tool in project.tools.items()}
    problems = policy_problems(project.policies, specs, project.agents)
    if problems:
        detail = f"{len(problems)} problem(s), the first: {problems[0]}; `agentops check` names all. "
        return [Finding("policies", "fail", detail + "What serves keeps the policies it has")]
    loaded = PolicySet.load(project.policies, specs, project.agents)
    found = [Finding("policies", "ok", f"{len(loaded.policies)} policies, {loaded.digest[:19]}")]
    if any((project.policies / SHADOW).glob("*.cedar")):
        found.append(Finding("shadow policies", "info", f"policies/{SHADOW} is asked too, recorded and never followed"))
    return found


def _state(project: projects.Project) -> list[Finding]:
    """Whether budgets, approvals and the kill switch can be asked: without them no effect is allowed."""
    if project.settings.redis_url is None and not (project.home / "state.db").exists():
        return [Finding("shared state", "info", "none yet: made with the first request")]
    try:
        with closing(_opened(project)) as state:
            stopped = KillSwitch(state, RealClock()).active()
    except StoreError as error:
        return [Finding("shared state", "fail", str(error))]
    found = [Finding("shared state", "ok", "budgets, approvals, labels and the kill switch answer")]
    if stopped:
        targets = ", ".join(kill.target for kill in stopped)
        found.append(Finding("kill switch", "info", f"stopped: {targets} (`agentops kill --list` says why)"))
    return found


def _opened(project: projects.Project) -> State:
    secret = project.settings.redis_url
    return open_state(project.home, secret.get_secret_value() if secret else None)


def _decisions(project: projects.Project) -> Finding:
    """What `agentops policy diff` and `advise` could read."""
    days = sorted(folder.name.removeprefix("date=") for folder in (project.home / "decisions").glob("date=*"))
    kept = f"kept for {project.settings.decision_days} days, encrypted"
    if not days:
        return Finding("decision records", "info", f"none yet; {kept}")
    size = sum(file.stat().st_size for file in (project.home / "decisions").rglob("*") if file.is_file())
    return Finding("decision records", "ok", f"since {days[0]}, {size / 2**20:.1f} MiB; {kept}")


def _places(project: projects.Project) -> list[Finding]:
    found = []
    try:
        with tempfile.NamedTemporaryFile(dir=project.home):
            free = shutil.disk_usage(project.home).free // 2**30
        found.append(
            Finding("state folder", "ok" if free else "fail", f"{project.settings.home}, writable, {free} GiB free")
        )
    except OSError as error:
        found.append(Finding("state folder", "fail", f"{project.settings.home}: {os.strerror(error.errno or 0)}"))
    if project.settings.redis_url is None:
        return [
            *found,
            Finding("redis", "info", "not used: cache in process, state in SQLite (AGENTOPS_REDIS_URL shares both)"),
        ]
    address = urlsplit(project.settings.redis_url.get_secret_value())
    try:
        with socket.create_connection((address.hostname or "", address.port or 6379), timeout=2):
            return [*found, Finding("redis", "ok", f"{address.hostname}:{address.port or 6379} answers")]
    except OSError as error:
        return [
            *found,
            Finding("redis", "fail", f"{address.hostname}:{address.port or 6379}: {error.strerror or error}"),
        ]
