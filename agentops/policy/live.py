"""The policies in force: read again when their files change, kept as they are when the new ones are not acceptable.

Invariant: every decision is made by one whole policy set; a set comes into force only when it loads without a problem,
its files have been still for a moment, and the change is durably in the audit log. Broken, unreadable or emptied files
change nothing, nor does a removed identities.toml or the last Cedar file; removing one of several Cedar files is an
edit like any other. A shadow set (`shadow/*.cedar`) is asked too, and what it says is recorded and never followed.

It watches the Cedar files and identities.toml. Tools and agents are those of the process's start.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentops.audit import Audit
from agentops.errors import AuditError, PolicyError
from agentops.parsers import Url
from agentops.policy.cedar import Policy
from agentops.policy.decisions import SHADOW, approver_problems
from agentops.policy.identity import FILE, identity_problems
from agentops.policy.policyset import PolicySet
from agentops.types import AgentSpec, Decision, Json, Run, ToolCall, ToolSpec

LOOK_S = 1.0  # seconds between two looks at the files; a change must be the same at two looks
MAX_PROBLEMS = 50  # kept of a refused set
_LOG = logging.getLogger(__name__)

Signature = tuple[tuple[str, int, int, int], ...]  # name, changed (ns), size, inode of each file and folder


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """What is in force. `problems`: why the files on disk are not, as file:line: message; empty when they are."""

    digest: str
    since: float  # Unix time at which this process began to use the set
    problems: tuple[str, ...] = ()
    shadow: str = ""  # digest of the shadow set, "" = none
    shadow_problems: tuple[str, ...] = ()
    shadow_decisions: int = 0
    shadow_differences: int = 0


class LivePolicy:
    """A `PolicySet` that follows its folder. Thread-safe."""

    def __init__(
        self, folder: Path, tools: Mapping[str, ToolSpec], agents: Mapping[str, AgentSpec], audit: Audit
    ) -> None:
        """Load the policies.

        Raises:
            PolicyError: the policies have problems: nothing serves without a usable set.
        """
        self._folder, self._tools, self._agents, self._audit = folder, dict(tools), dict(agents), audit
        self._lock = threading.Lock()  # one reload at a time
        self._reloading = False
        self._seen = self._waiting = self._signature()
        self._content = self._digest_of(folder, FILE)
        self._refused = self._shadow_content = ""
        self._current = self._loaded(folder)
        self._since = time.time()
        self._problems: tuple[str, ...] = ()
        self._shadow: PolicySet | None = None
        self._shadow_problems: tuple[str, ...] = ()
        self._asked = self._differed = 0
        self._post({"type": "policy.loaded", "set": "live", "before": "", "policy": self.digest})
        self._follow_shadow()
        self._looked = time.monotonic()

    @property
    def current(self) -> PolicySet:
        """The set in force, which never changes: for work that needs one set from its beginning to its end."""
        return self._current

    @property
    def digest(self) -> str:
        return self._current.digest

    @property
    def policies(self) -> Mapping[str, Policy]:
        return self._current.policies

    def decide(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> Decision:
        """As `PolicySet.decide`, by the set in force. Never raises."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._look()
        shadow = self._shadow
        decision = self._current.decide(run, call, spec, facts)
        if shadow is not None:
            self._compare(shadow, run, call, spec, facts, decision)
        return decision

    def mentions(self, name: str) -> bool:
        """As `PolicySet.mentions`, by the set in force and the one that only watches."""
        return self._current.mentions(name) or (self._shadow is not None and self._shadow.mentions(name))

    def hosts(self, run: Run, call: ToolCall, spec: ToolSpec, facts: Mapping[str, Json]) -> dict[str, Url]:
        """As `PolicySet.hosts`, by the set in force."""
        return self._current.hosts(run, call, spec, facts)

    def status(self) -> PolicyStatus:
        """What is in force and what is wrong with the files."""
        shadow = self._shadow.digest if self._shadow else ""
        return PolicyStatus(
            self.digest, self._since, self._problems, shadow, self._shadow_problems, self._asked, self._differed
        )

    def refresh(self) -> PolicyStatus:
        """Read the files now, whatever they are, and follow them if they are acceptable."""
        with self._lock:
            seen = self._signature()
            settled = self._follow()
            self._follow_shadow()
            if settled and seen == self._signature():
                self._seen = seen
        return self.status()

    def _look(self) -> None:
        """See whether files changed; a change that is the same at the next look is followed, apart from this call."""
        now = time.monotonic()
        idle, self._looked = now - self._looked, now
        found = self._signature()
        if found == self._seen:
            return
        newest = max((changed for _, changed, _, _ in found), default=0) / 1e9
        if idle > 3 * LOOK_S and time.time() - newest > LOOK_S:
            self.refresh()  # nobody asked for a while and the change is not new: this call must obey it
        elif found != self._waiting:
            self._waiting = found  # still being written, perhaps
        elif not self._reloading:
            self._reloading = True
            threading.Thread(target=self._reload, name="policy-reload", daemon=True).start()

    def _reload(self) -> None:
        try:
            self.refresh()
        finally:
            self._reloading = False

    def _follow(self) -> bool:
        """Bring what is on disk into force. False: look again, it was changed meanwhile or could not be recorded."""
        content = self._digest_of(self._folder, FILE)
        if content == self._content:
            self._problems, self._refused = (), ""  # as before, or put back
            return True
        if content == self._refused:
            return True
        try:
            fresh = self._loaded(self._folder)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the files, calls go on under the old set
            self._refused, self._problems = content, _lines(error)
            self._reject("live", self._problems)
            return True
        if self._digest_of(self._folder, FILE) != content:
            return False
        record = {"type": "policy.loaded", "set": "live", "before": self.digest, "policy": fresh.digest}
        try:
            self._audit.append_now({**record, "content": content})
        except AuditError as error:
            self._problems = (f"the change of policies cannot be recorded, so it is not followed: {error}",)
            return False
        self._current, self._since, self._content, self._problems = fresh, time.time(), content, ()
        _LOG.info("policies %s are in force", fresh.digest[:19])
        return True

    def _follow_shadow(self) -> None:
        folder = self._folder / SHADOW
        content = self._digest_of(folder) if any(folder.glob("*.cedar")) else ""
        if content == self._shadow_content:
            return
        self._shadow_content = content
        self._shadow, self._shadow_problems, self._asked, self._differed = None, (), 0, 0
        if not content:
            return
        try:
            shadow = PolicySet.load(folder, self._tools, self._agents)
        except Exception as error:  # noqa: BLE001 - a candidate never disturbs what is in force
            self._shadow_problems = _lines(error)
            self._reject("shadow", self._shadow_problems)
            return
        self._post({"type": "policy.loaded", "set": "shadow", "before": self.digest, "policy": shadow.digest})
        self._shadow = shadow

    def _compare(
        self,
        shadow: PolicySet,
        run: Run,
        call: ToolCall,
        spec: ToolSpec,
        facts: Mapping[str, Json],
        now: Decision,
    ) -> None:
        then = shadow.decide(run, call, spec, facts)
        self._asked += 1
        if (then.effect, then.approver) == (now.effect, now.approver):
            return
        self._differed += 1
        self._post(
            {
                "type": "policy.shadow",
                "tenant": run.principal.tenant,
                "agent": run.agent.name,
                "tool": spec.name,
                "run": run.id,
                "trace": run.trace_id,
                "call": call.id,
                "decision": now.effect,
                "policies": list(now.policies),
                "policy": now.policy_digest,
                "shadow_decision": then.effect,
                "shadow_policies": list(then.policies),
                "shadow_policy": then.policy_digest,
            }
        )

    def _reject(self, which: str, problems: tuple[str, ...]) -> None:
        self._post({"type": "policy.rejected", "set": which, "policy": self.digest, "problems": list(problems)})
        _LOG.warning(
            "the %s policies on disk are not acceptable, those in force stay: %s", which, "; ".join(problems[:3])
        )

    def _post(self, record: dict[str, Json]) -> None:
        try:
            self._audit.post(record)
        except AuditError as error:
            _LOG.error("the audit record %s was not written: %s", record["type"], error)

    def _loaded(self, folder: Path) -> PolicySet:
        loaded = PolicySet.load(folder, self._tools, self._agents)
        problems = identity_problems(folder) or approver_problems(folder, loaded.policies.values())
        if problems:
            listing = "\n".join(f"  {problem}" for problem in problems)
            raise PolicyError(f"the policies have {len(problems)} problem(s), no call is allowed:\n{listing}")
        return loaded

    def _signature(self) -> Signature:
        """Of all files that matter and their folders: changes whenever one is written, replaced, added or removed.

        By the time of change, which the kernel alone sets: a copy or an archive brings a time of modification along.
        """
        found = []
        for place, more in ((self._folder, (FILE,)), (self._folder / SHADOW, ())):
            for path in (place, *_files(place, *more)):  # the folder shows that a file is gone, and when
                try:
                    status = path.stat()
                except OSError:
                    continue
                found.append((str(path), status.st_ctime_ns, status.st_size, status.st_ino))
        return tuple(found)

    @staticmethod
    def _digest_of(folder: Path, *more: str) -> str:
        """Hash over names and bytes of the files: whether something really changed."""
        hasher = hashlib.sha256()
        for file in _files(folder, *more):
            try:
                data = file.read_bytes()
            except OSError:
                data = b""  # loading will say what is wrong with it
            hasher.update(f"{file.name}\n{len(data)}\n".encode() + data)
        return f"sha256:{hasher.hexdigest()}"


def _files(folder: Path, *more: str) -> list[Path]:
    return [*sorted(folder.glob("*.cedar")), *(folder / name for name in more)]


def _lines(error: Exception) -> tuple[str, ...]:
    """The problems of a refused set, one a line."""
    if not isinstance(error, PolicyError):
        return (f"the policies cannot be loaded: {type(error).__name__}: {error}"[:400],)
    first, *rest = str(error).splitlines()
    return tuple(line.strip()[:400] for line in (rest or [first])[:MAX_PROBLEMS])
