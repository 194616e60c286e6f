"""The controller: shadow, 1 %, 5 %, 25 %, 50 %, all traffic, or back; decided by the sequential tests and the hard
rules.

Invariant: a release's state is in the shared state, changed only by compare-and-set; observations are an
append-only log, so any number of replicas may observe and decide, none is lost, and a restart continues where the log
was folded. A decision is written with its figures before it takes effect, and its effects are repeated until they are
done. No margin or alpha is written here.
"""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentops.errors import ReleaseError
from agentops.graph import Clock
from agentops.release.assignment import assign
from agentops.release.judge import Action, ended, judge, step_of
from agentops.release.log import ObservationLog, Saved
from agentops.release.registry import Registry
from agentops.release.rules import Rules
from agentops.release.sessions import Metrics
from agentops.types import Assignment, Release, Report

HISTORY = 200  # decisions kept in the release itself; the audit log keeps all
ATTEMPTS = 50  # of compare-and-set before giving up
OPEN = ("shadow", "canary", "held")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the controller decided, why, and every figure it looked at. `release` is the state after the decision."""

    action: Action
    reason: str
    figures: Mapping[str, Any]
    release: Release
    at: float


class Controller:
    """Starts, watches and ends releases of any router of one deployment."""

    def __init__(self, registry: Registry, rules: Rules, clock: Clock | None = None) -> None:
        self.registry = registry
        self.rules = rules  # of releases that start now; a running one keeps those it began with
        self.state = registry.state
        self.clock = clock or registry.clock
        self._log = ObservationLog(self.state)

    # ------------------------------------------------------------------ by people

    def start(
        self,
        router: str,
        candidate: str,
        *,
        by: str,
        report: Report | None = None,
        approved_by: str = "",
        override: str = "",
    ) -> Release:
        """Open a release of `candidate` in shadow.

        Args:
            router: name of the router.
            candidate: artifact digest.
            by: who starts it.
            report: a gated evaluation of the candidate against the version that serves; needed when [gate] required.
            approved_by: who approved it, when that is another person.
            override: reason why the gate is not asked (a drill, an emergency); recorded.

        Raises:
            ReleaseError: nothing serves, the candidate already serves, a release is open, or the gate did not pass.
            StoreError: the candidate's artifact is missing or damaged.
        """
        stable = self.registry.current(router)
        if not stable:
            raise ReleaseError(
                f"router {router!r} has no version in service to compare with: set its first version by hand"
            )
        self.registry.artifacts.path(candidate)
        if candidate == stable:
            raise ReleaseError(f"{candidate} already serves router {router!r}: there is nothing to release")
        self._check_gate(candidate, stable, report, override)
        self._finish_effects(router)
        before = Saved.load(self.state, router, body=False)
        if before is not None and before.release.stage in OPEN:
            raise ReleaseError(
                f"release {before.release.id} of router {router!r} is open (stage {before.release.stage}): wait for "
                "its decision, or end it with `agentops release abort`"
            )
        now = self.clock.now()
        id = uuid.uuid4().hex[:12]
        reason = override or ("gate passed" if report else "no gate is required")
        suite = report.suite_digest if report else ""
        opened = {"action": "start", "at": now, "by": by, "approved_by": approved_by, "reason": reason, "suite": suite}
        opened |= {"override": bool(override), "stage": "shadow", "weight": 0.0}
        release = Release(id, router, stable, candidate, "shadow", 0.0, id, now, (opened,))
        self.registry.audit.append_now(
            {
                "type": "release.start",
                "release": id,
                "router": router,
                "stable": stable,
                "candidate": candidate,
                **opened,
            }
        )
        opening = Saved(release, self.rules, [], 0, before.version if before else 0)
        if not opening.write_head(self.state):
            self.registry.audit.append_now({"type": "release.start.lost", "release": id, "router": router})
            raise ReleaseError(f"another release of router {router!r} was started at the same time: that one runs")
        return release

    def abort(self, router: str, *, by: str, reason: str) -> Release:
        """End an open or just promoted release: the old version serves from the next request on.

        Raises:
            ReleaseError: no release, or it already ended.
        """
        return self._by_hand(router, ("shadow", "canary", "held", "full"), "roll_back", by, reason)

    def promote(self, router: str, *, by: str, reason: str) -> Release:
        """Promote an open release by hand, whatever the evidence; recorded as such.

        Raises:
            ReleaseError: no open release.
        """
        return self._by_hand(router, OPEN, "promote", by, reason)

    def resume(self, router: str, *, by: str, reason: str) -> Release:
        """Let a held release go on, its health tests begun anew. One held in shadow goes to its first step.

        Raises:
            ReleaseError: no held release.
        """
        return self._by_hand(router, ("held",), "resume", by, reason)

    # ------------------------------------------------------------------ by the online loop

    def release(self, router: str) -> Release | None:
        """The latest release, open or ended."""
        return self.registry.release(router)

    def assign(self, router: str, session: str) -> Assignment:
        """The version that serves `session` now. Reads the shared state, so an abort holds from the next request on."""
        return assign(self.registry.release(router), self.registry.current(router), session)

    def observe(
        self, router: str, session: str, assignment: Assignment, metrics: Metrics, at: float | None = None
    ) -> None:
        """Record what is known of one request (or of its outcome, later). A hard failure of the candidate decides at
        once.

        Raises:
            ReleaseError: a metric out of range.
        """
        self.observe_many(router, [(session, assignment, metrics)], at)

    def observe_many(
        self, router: str, observations: Sequence[tuple[str, Assignment, Metrics]], at: float | None = None
    ) -> None:
        """Record several observations in one durable write; those of another release are ignored."""
        release = self.registry.release(router)
        if release is None or ended(release):
            return
        now = self.clock.now() if at is None else at
        if self._log.append(release, observations, now):
            self.decide(router)

    # ------------------------------------------------------------------ deciding

    def decide(self, router: str) -> Ruling:
        """Fold what was observed since the last decision and act on it. Any replica may call it at any time.

        Raises:
            ReleaseError: the router never had a release, or the replicas kept each other from writing.
        """
        for _ in range(ATTEMPTS):
            saved = self._load(router)
            if saved.effects:
                self._finish_effects(router)
                continue
            if ended(saved.release):
                return Ruling(
                    "hold", "this release has ended", saved.monitor.figures(), saved.release, self.clock.now()
                )
            self._log.fold(saved, self.clock.now())
            ruling = self._act(saved, *judge(saved.monitor, saved.release, self.clock.now()))
            if ruling.action == "hold":
                if saved.write_body(self.state):
                    return ruling
            elif saved.write_head(self.state):
                saved.write_body(self.state)  # lost or crashed: the next to load brings the body up to the head
                self._finish_effects(router)
                return ruling
        raise ReleaseError(
            f"release of router {router!r}: {ATTEMPTS} replicas in a row wrote first; call decide less often"
        )

    def status(self, router: str) -> Ruling:
        """The present figures without deciding anything.

        Raises:
            ReleaseError: the router never had a release.
        """
        saved = self._load(router)
        self._log.fold(saved, self.clock.now())
        last = saved.release.history[-1]
        return Ruling("hold", str(last.get("reason", "")), saved.monitor.figures(), saved.release, self.clock.now())

    # ------------------------------------------------------------------ acting

    def _act(self, saved: Saved, action: Action, reason: str, **who: Any) -> Ruling:
        """Change `saved` as `action` says and note which effects follow."""
        release, monitor, now = saved.release, saved.monitor, self.clock.now()
        figures = monitor.figures()
        if action == "hold":
            return Ruling(action, reason, figures, release, now)
        before = (release.stage, release.weight)
        stage, weight = before
        if action == "roll_back":
            stage, weight = "rolled_back", 0.0
        elif action == "promote":
            stage, weight = "full", 1.0 - monitor.rules.hold_back.share
        elif action == "finish":
            stage, weight = "full", 1.0
        elif action == "freeze":
            stage = "held"
        elif action == "advance" or (action == "resume" and step_of(release) < 0):
            stage, weight = "canary", self._next_weight(saved)
        elif action == "resume":
            stage = "canary"
        entry = {
            "action": action,
            "reason": reason,
            "at": now,
            "from": list(before),
            "stage": stage,
            "weight": weight,
            **who,
        }
        entry["figures"] = figures
        if stage == "canary" and (action == "advance" or step_of(release) < 0):
            entry["step"] = step_of(release) + 1
        saved.effects.append(
            {
                "type": f"release.{action}",
                "release": release.id,
                "router": release.router,
                "decision": uuid.uuid4().hex[:12],
                **entry,
            }
        )
        if action == "roll_back" and release.stage == "full":
            saved.effects[-1]["set"] = [release.candidate, release.stable]
        elif action == "promote":
            saved.effects[-1]["set"] = [release.stable, release.candidate]
        monitor.begin(stage, weight)
        saved.release = dataclasses.replace(
            release, stage=stage, weight=weight, history=(*release.history, entry)[-HISTORY:]
        )
        return Ruling(action, reason, figures, saved.release, now)

    def _next_weight(self, saved: Saved) -> float:
        """Share of sessions at the next step; never below the present one, so that no session leaves the candidate."""
        rules, rate = saved.monitor.rules, saved.monitor.disagreement
        weight = rules.steps[step_of(saved.release) + 1].weight
        if rules.triggered and rate is not None:
            weight = min(0.5, weight / max(rate, rules.shadow.min_disagreement, 1e-6))
        return max(weight, saved.release.weight)

    def _load(self, router: str) -> Saved:
        saved = Saved.load(self.state, router)
        if saved is None:
            raise ReleaseError(f"router {router!r} has no release: start one first")
        return saved

    def _finish_effects(self, router: str) -> None:
        """Carry out what was decided: audit record, then pointer. After a crash, whoever comes next does it."""
        saved = Saved.load(self.state, router, body=False)
        if saved is None or not saved.effects:
            return
        for effect in saved.effects:
            self.registry.audit.append_now({key: value for key, value in effect.items() if key != "set"})
            if "set" in effect and not self._point(saved, effect):
                return
        saved.effects = []
        saved.write_head(self.state)  # lost to somebody: then they did, or will do, the same

    def _point(self, saved: Saved, effect: Mapping[str, Any]) -> bool:
        """Move the pointer as decided. False: somebody is moving it right now, so try again later."""
        release = saved.release
        expected, target = effect["set"]
        try:
            self.registry.set(
                release.router,
                target,
                by=effect.get("by", "controller"),
                reason=effect["reason"],
                approved_by=_approver(release),
                release=release.id,
                expected=expected,
            )
        except ReleaseError as error:
            current = self.registry.current(release.router)
            if current in (expected, target):
                return current == target
            # Somebody moved the pointer by hand meanwhile: that wins, and this release is over.
            entry = {"action": "superseded", "reason": str(error), "at": self.clock.now()}
            self.registry.audit.append_now({"type": "release.superseded", "release": release.id, **entry})
            history = (*release.history, entry)[-HISTORY:]
            saved.release = dataclasses.replace(release, stage="rolled_back", weight=0.0, history=history)
        return True

    def _by_hand(self, router: str, stages: Sequence[str], action: Action, by: str, reason: str) -> Release:
        for _ in range(ATTEMPTS):
            self._finish_effects(router)
            saved = self._load(router)
            if saved.effects:
                continue
            release = saved.release
            if release.stage not in stages or ended(release):
                verb = action.replace("_", " ")
                raise ReleaseError(f"release {release.id} of router {router!r} is {release.stage}: nothing to {verb}")
            self._log.fold(saved, self.clock.now())
            if action == "resume":
                saved.resumed += 1
                saved.monitor.forgive(saved.resumed)
            self._act(saved, action, reason, by=by)
            if saved.write_head(self.state):
                saved.write_body(self.state)
                self._finish_effects(router)
                return saved.release
        raise ReleaseError(f"release of router {router!r}: the replicas kept writing; try again")

    def _check_gate(self, candidate: str, stable: str, report: Report | None, override: str) -> None:
        if override or not self.rules.gate_required:
            return
        if report is None:
            raise ReleaseError("a release needs a report that passed its gate: run `agentops evaluate` first")
        if report.candidate != candidate:
            raise ReleaseError(
                f"the report is about {report.candidate or 'nothing'}, not about {candidate}: evaluate this candidate"
            )
        if report.baseline != stable:
            raise ReleaseError(
                f"the report compares with {report.baseline or 'nothing'}, but {stable} serves: evaluate against that"
            )
        if report.passed is not True:
            verdict = "did not pass" if report.passed is False else "is inconclusive, which is not a pass"
            raise ReleaseError(f"the gate {verdict}: {'; '.join(report.reasons) or 'no reason given'}")


def _approver(release: Release) -> str:
    for entry in release.history:
        if entry.get("approved_by"):
            return str(entry["approved_by"])
    return ""
