"""Everything a release has learnt from its sessions: a fold over the log of observations that survives restarts.

Invariant: the state after n log entries does not depend on who folded them or in how many pieces; `to_json`/`from_json`
lose nothing. It counts and tests; what follows from that is the controller's business.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from agentops.release.eprocess import Evidence, SampleRatio, Watch
from agentops.release.rules import GUARDRAILS, Rules
from agentops.release.sessions import Ledger, Metrics, Pairing, Unit

_COUNTS = (
    "sessions", "candidate", "settled", "late", "switched", "early", "missing", "candidate_missing", "compared",
    "disagreed", "hard",
)  # fmt: skip
SAMPLE = 20_000  # latencies of the shadow stage kept for the p95


class Monitor:
    """Figures of one release. `stage` decides what a session counts for: shadow sample, canary evidence, or watch."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stage = "shadow"
        self.weight = 0.0  # of the current step: only its sessions count towards leaving it
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.step_units = 0  # canary sessions of this step that could have made a difference, paired
        self.units = 0  # the same since the canary began
        self.latencies: list[float] = []
        self.shadow_latencies: list[float] = []
        self.cost = [0, 0.0]  # count, sum
        self.p95: float | None = None
        self.mean_cost: float | None = None
        self.ledger = Ledger()
        self.pairing = Pairing()
        self.evidence = Evidence(rules.tolerances, rules.margins)
        self.missing = _missing(rules)
        self.ratio = SampleRatio()
        self.watch = Watch(rules.tolerances)
        self.resumed = 0  # how often a person let a held release go on
        self.hard: str = ""  # first hard failure of the candidate

    # ------------------------------------------------------------------ folding

    def observe(self, session: str, candidate: bool, weight: float, at: float, metrics: Metrics, new: bool) -> None:
        """One observation. `new`: the first of its session in the whole log; a session that settled already is late."""
        if metrics.hard and (candidate or self.stage == "shadow"):
            self.hard = self.hard or metrics.hard
            self.counts["hard"] += 1
        if new:
            self.ledger.open[session] = Unit(candidate, weight, at)
            self.counts["sessions"] += 1
            self.counts["candidate"] += candidate
            if 0 < weight < 1:
                unit = self.ledger.open[session]
                self.ratio.update(unit.scarce, unit.share)
        unit = self.ledger.open.get(session)
        if unit is None or unit.complete or (not new and at >= unit.began + self.rules.outcomes.deadline_s):
            self.counts["late"] += 1
            return
        if unit.candidate != candidate:
            self.counts["switched"] += 1  # a session belongs to the arm it began in
            return
        if self.stage == "shadow":
            self._sample(metrics)
        unit.add(metrics, self.p95, self.mean_cost)

    def settle(self, now: float) -> None:
        """Close sessions that are complete or past the deadline and add the blocks they make."""
        for unit in self.ledger.settle(now, self.rules.outcomes.deadline_s):
            self.counts["settled"] += 1
            self.counts["early"] += not unit.complete and now < unit.began + self.rules.outcomes.deadline_s
            if unit.disagreed is not None:
                self.counts["compared"] += 1
                self.counts["disagreed"] += unit.disagreed
            if unit.weight in (0.0, 1.0) or self.stage == "shadow" or (self.stage == "full") != (unit.weight > 0.5):
                continue  # assigned under another stage: nothing to compare it with
            if unit.counts[0] == 0:
                self.counts["missing"] += 1
                self.counts["candidate_missing"] += unit.candidate
            for block in self.pairing.add(unit):
                difference = np.array([math.nan if value is None else value for value in block.goodness])
                if block.missing is not None:
                    self.missing.update(np.array([block.missing, -block.missing]))
                if self.stage == "full":
                    self.watch.update(difference)
                else:
                    self.evidence.update(difference)
                    self.units += block.exposed
                    self.step_units += block.exposed and abs(unit.weight - self.weight) < 1e-12

    def _sample(self, metrics: Metrics) -> None:
        if metrics.latency_s is not None and len(self.latencies) < SAMPLE:
            self.latencies.append(metrics.latency_s)
        if metrics.shadow_latency_s is not None and len(self.shadow_latencies) < SAMPLE:
            self.shadow_latencies.append(metrics.shadow_latency_s)
        if metrics.cost is not None:
            self.cost[0] += 1
            self.cost[1] += metrics.cost

    # ------------------------------------------------------------------ moving

    def begin(self, stage: str, weight: float) -> None:
        """A new step or stage. Leaving the shadow freezes the incumbent's p95 latency and mean cost."""
        if self.stage == "shadow" and stage != "shadow":
            self.p95 = float(np.quantile(self.latencies, 0.95, method="higher")) if self.latencies else None
            self.mean_cost = self.cost[1] / self.cost[0] if self.cost[0] else None
            self.ledger, self.ratio = Ledger(), SampleRatio()
        if stage == "full":
            self.pairing, self.ratio = Pairing(), SampleRatio()
        self.stage, self.weight, self.step_units = stage, weight, 0

    def forgive(self, resumed: int) -> None:
        """Begin the health tests and the count of sessions anew, after a person looked at what froze the release."""
        self.units, self.resumed = 0, resumed
        self.ratio, self.missing = SampleRatio(), _missing(self.rules)

    # ------------------------------------------------------------------ figures

    @property
    def disagreement(self) -> float | None:
        """Share of sessions in which the two versions disagreed; None when nobody compared them."""
        return self.counts["disagreed"] / self.counts["compared"] if self.counts["compared"] else None

    def proofs(self) -> dict[str, float]:
        """log e-value of each thing that must be shown before promotion: the guardrails, and equally complete
        outcomes."""
        found = dict(zip(GUARDRAILS, map(float, self.evidence.log_promote()), strict=True))
        return {**found, "missing outcomes": float(self.missing.log_promote().min())}

    def unhealthy(self) -> str:
        """Why the data cannot be trusted, or "". Both tests may be asked at any time."""
        health = self.rules.health
        if self.ratio.log_e >= -math.log(health.sample_ratio_alpha):
            return (
                f"sample-ratio mismatch: {self.counts['candidate']} of {self.counts['sessions']} sessions on the "
                f"candidate do not fit the split (e-value {math.exp(min(700.0, self.ratio.log_e)):.3g})"
            )
        if float(self.missing.peak_harm.max()) >= math.log(2 / health.missing_alpha):
            mean, low, high = self.missing.interval(0)
            return (
                f"outcomes are missing {100 * mean:+.1f} points more often on the candidate "
                f"(95 % {100 * low:+.1f} to {100 * high:+.1f}), more than "
                f"{100 * health.missing_difference:g} allowed: their absence may hide failures"
            )
        return ""

    def figures(self) -> dict[str, Any]:
        """Everything a decision was made on, as plain JSON."""
        rails = {}
        for column, name in enumerate(GUARDRAILS):
            mean, low, high = self.evidence.interval(column)
            rails[name] = {
                "blocks": int(self.evidence.n[column]),
                "difference": _plain(mean),
                "low": _plain(low),
                "high": _plain(high),
                "harm_e": _e(self.evidence.log_harm()[column]),
                "harm_e_peak": _e(self.evidence.peak_harm[column]),
                "harm_limit": 1 / self.rules.guardrails[name].alpha,
                "promote_e": _e(self.evidence.log_promote()[column]),
                "margin": self.rules.guardrails[name].margin,
            }
            if self.stage == "full":
                rails[name] |= {"watch_m": _e(self.watch.value()[column]), "watch_blocks": int(self.watch.n[column])}
        return {
            "stage": self.stage,
            "weight": self.weight,
            "units": self.units,
            "step_units": self.step_units,
            **self.counts,
            "open_sessions": len(self.ledger.open),
            "disagreement": self.disagreement,
            "sample_ratio_e": _e(self.ratio.log_e),
            "missing_e": _e(self.missing.peak_harm.max()),
            "missing_promote_e": _e(self.missing.log_promote().min()),
            "p95_s": self.p95,
            "mean_cost": self.mean_cost,
            "shadow_p95_s": _quantile(self.shadow_latencies),
            "guardrails": rails,
        }

    # ------------------------------------------------------------------ keeping

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        if self.stage != "shadow":
            plain["latencies"] = []  # frozen into p95
        return plain | {
            "ledger": self.ledger.to_json(),
            "pairing": self.pairing.to_json(),
            "evidence": self.evidence.to_json(),
            "missing_evidence": self.missing.to_json(),
            "ratio": self.ratio.logs.tolist(),
            "watch": self.watch.to_json(),
        }

    @classmethod
    def from_json(cls, rules: Rules, saved: Mapping[str, Any]) -> "Monitor":
        monitor = cls(rules)
        for name in _PLAIN:
            setattr(monitor, name, saved[name])
        monitor.ledger = Ledger.from_json(saved["ledger"])
        monitor.pairing = Pairing.from_json(saved["pairing"])
        monitor.evidence = Evidence.from_json(rules.tolerances, rules.margins, saved["evidence"])
        monitor.missing = _missing(rules, saved["missing_evidence"])
        monitor.ratio = SampleRatio(saved["ratio"])
        monitor.watch = Watch.from_json(rules.tolerances, saved["watch"])
        return monitor


_PLAIN = (
    "stage", "weight", "counts", "step_units", "units", "latencies", "shadow_latencies", "cost", "p95", "mean_cost",
    "hard", "resumed",
)  # fmt: skip


def _missing(rules: Rules, saved: Mapping[str, Any] | None = None) -> Evidence:
    """Difference in missing outcomes, in both directions."""
    health = rules.health
    tolerance, margin = [health.missing_difference] * 2, [health.missing_margin] * 2
    return Evidence(tolerance, margin) if saved is None else Evidence.from_json(tolerance, margin, saved)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _e(log_value: float) -> float:
    """An e-value from its log, kept finite."""
    return float(math.exp(max(-700.0, min(700.0, float(log_value)))))


def _quantile(values: list[float]) -> float | None:
    return float(np.quantile(values, 0.95)) if values else None
