"""The opened parts of one project on one machine: who holds the lake, the state, the audit log, the policies.

Invariant: each part is opened once, on first use, and `close` shuts them in the order that loses nothing (traces are
flushed before the audit log signs its last checkpoint). It decides nothing: conductors and commands do.
"""

import os
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from agentops import project as projects
from agentops import redact
from agentops.act.sandbox.egress import Egress
from agentops.act.sandbox.pool import Workers
from agentops.act.sandbox.secrets import Secrets
from agentops.audit import AuditLog
from agentops.cache import Cache, open_cache
from agentops.errors import PolicyError, ProjectError
from agentops.graph import Clock, RealClock
from agentops.policy import (
    Approvals,
    Budgets,
    DecisionRecords,
    Effects,
    KillSwitch,
    LivePolicy,
    Readings,
    identities,
    principal,
)
from agentops.project import Project
from agentops.redact import Redactor, redacted_logs
from agentops.release import Registry
from agentops.store import Artifacts, Lake, State, open_state
from agentops.trace import Tracing
from agentops.types import Principal, ToolSpec


class Workspace:
    """Everything a process needs of `project`; use as a context manager, inside which log records are redacted."""

    def __init__(self, project: Project, clock: Clock | None = None) -> None:
        self.project = project
        self.clock: Clock = clock or RealClock()
        self._entered = ExitStack()

    def __enter__(self) -> "Workspace":
        self._entered.enter_context(redacted_logs(lambda: self.redactor))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def home(self) -> Path:
        return self.project.home

    @property
    def redis_url(self) -> str | None:
        secret = self.project.settings.redis_url
        return secret.get_secret_value() if secret else None

    @cached_property
    def specs(self) -> dict[str, ToolSpec]:
        return {name: tool.spec for name, tool in self.project.tools.items()}

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.home / "lake")

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.home / "artifacts")

    @cached_property
    def state(self) -> State:
        return open_state(self.home, self.redis_url)

    @cached_property
    def cache(self) -> Cache:
        return open_cache(self.redis_url)

    @cached_property
    def audit(self) -> AuditLog:
        settings = self.project.settings
        return AuditLog(self.home / "audit", settings.service, self.clock, settings.audit_anchors)

    @cached_property
    def secrets(self) -> Secrets:
        return Secrets.load(self.project.policies)

    @cached_property
    def redactor(self) -> Redactor:
        return redact.load(self.project.policies, self.home, known_secrets=self.secrets.values)

    @cached_property
    def tracing(self) -> Tracing:
        settings = self.project.settings
        return Tracing(self.lake, settings.service, self.redactor, settings.otlp_endpoint)

    @cached_property
    def policy(self) -> LivePolicy:
        return LivePolicy(self.project.policies, self.specs, self.project.agents, self.audit)

    @cached_property
    def workers(self) -> Workers:
        egress = Egress(private=self.project.settings.private_networks)
        return Workers(self.project.root, self.redactor, egress, self.secrets, self.audit.post)

    @cached_property
    def decisions(self) -> DecisionRecords:
        days = self.project.settings.decision_days
        return DecisionRecords(self.home / "decisions", self.audit.subjects, self.clock, days)

    @cached_property
    def approvals(self) -> Approvals:
        return Approvals(self.state, self.clock, self.audit)

    @cached_property
    def budgets(self) -> Budgets:
        return Budgets(self.state, self.clock, identities(self.project.policies).limits)

    @cached_property
    def kill(self) -> KillSwitch:
        return KillSwitch(self.state, self.clock, self.audit)

    @cached_property
    def readings(self) -> Readings:
        return Readings(self.state, self.clock)

    @cached_property
    def effects(self) -> Effects:
        return Effects(self.state, self.clock)

    @cached_property
    def registry(self) -> Registry:
        return Registry(self.state, self.artifacts, self.audit, self.clock)

    @cached_property
    def world_module(self) -> ModuleType:
        """The project's world module: create, connect, fork, changes."""
        loaded = projects.module(self.project.root, self.project.settings.world)
        for name in ("create", "connect", "fork", "changes"):
            if not callable(getattr(loaded, name, None)):
                raise ProjectError(f"{self.project.settings.world} has no function {name}(): a world has four")
        return loaded

    @property
    def world_seed(self) -> int:
        """The seed the project's suites were written for: `SEED` of its world module, else 0."""
        return int(getattr(self.world_module, "SEED", 0))

    @cached_property
    def world_path(self) -> Path:
        """The live world's database, created from its seed on first use."""
        return self._created(self.home / "world.db")

    @cached_property
    def pristine_world(self) -> Path:
        """A world nothing was done to: what simulated episodes start from."""
        path = self.home / f"pristine-{self.project.digest[7:19]}.db"  # a changed project gets a new one
        return self._created(path)

    def _created(self, path: Path) -> Path:
        if not path.exists():
            fresh = path.with_name(f".tmp-{uuid4().hex}")
            try:
                self.world_module.create(fresh, self.world_seed)
                with suppress(FileExistsError):  # another process was first: its world may be in use already
                    os.link(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        return path

    @cached_property
    def world(self) -> Any:
        return self.world_module.connect(self.world_path, self.clock, self.world_seed)

    def close(self) -> None:
        """End tools' processes, flush traces, then close the stores, then the audit log with its last checkpoint."""
        for name in ("workers", "tracing", "world", "budgets", "state", "decisions", "audit"):
            part = self.__dict__.pop(name, None)
            if part is not None:
                part.close()
        self._entered.close()


def open_workspace(root: Path | None = None) -> Workspace:
    """The workspace of the project at `root` (default: found from the working directory)."""
    return Workspace(projects.load(root))


def local_principal(workspace: Workspace, user: str, roles: tuple[str, ...] = ("customer",)) -> Principal:
    """Who a local command acts as.

    Raises:
        PolicyError: an empty user name.
    """
    if not user.strip():
        raise PolicyError("the user is empty: name one with --as USER")
    return principal(workspace.project.policies, workspace.project.settings.tenant, user, roles)
