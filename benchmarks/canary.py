"""Canary releases over simulated sessions: false alarms, detection delay, and what thresholds do on the same kind of
stream.

`python -m benchmarks.canary --json FILE [--quick]`. 10,000 A/A releases and 1,000 a cell (quick: 200 and 50, at most
2,000 canary sessions each); rules
from policies/release.toml. Success of the incumbent .90, latency exceedance .05, cost lognormal (sigma .8), 1 % denied,
.5 % errors.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from agentops.release import ramp
from agentops.release.eprocess import Watch
from agentops.release.rules import Rules, load_rules
from benchmarks.canary_streams import FROZEN, Result, World, cost_factor, delay, release
from benchmarks.report import main, publish

POLICIES = Path(__file__).resolve().parent.parent / "policies"
HEALTHY = 5000  # hold-back units before the fall


def run(options: argparse.Namespace) -> bool:
    rules = load_rules(POLICIES)
    rng = np.random.default_rng(options.seed)
    many, runs, most = (200, 50, 2000) if options.quick else (10_000, 1_000, rules.promote.max_units)
    details: dict[str, Any] = {"runs": runs, "aa_runs": many, "cells": {}}

    def cell(name: str, world: World, count: int = runs) -> Result:
        began = time.perf_counter()
        result = release(world, rules, count, rng, most)
        row = describe(result)
        details["cells"][name] = row
        print(f"{name:<26}{row['rolled_back']:>8.2%} back {row['promoted']:>8.2%} up {row['frozen']:>7.2%} frozen "
              f"{row['undecided']:>7.2%} open  back after {row['roll_back_units']}  up after {row['promote_units']} "
              f"[{time.perf_counter() - began:.0f} s]", flush=True)  # fmt: skip
        return result

    aa = cell("A/A", World(), many)
    drop = cell("-5 points", World(success=0.85))
    slow = cell("exceedance 5 -> 10 %", World(slow=0.10))
    cell("cost +20 %", World(cost=1.2))
    for points in (1, 2, 3, 10):
        cell(f"-{points} points", World(success=0.90 - points / 100))
    cell("+10 points", World(base=0.80, success=0.90))
    margins = rules.guardrails
    at_margin = [
        cell("at the success margin", World(success=0.90 - margins["success"].margin)),
        cell("at the latency margin", World(slow=0.05 + margins["latency"].margin)),
        cell("at the cost margin", World(cost=cost_factor(margins["cost"].margin, rng))),
    ]
    correlated = World(requests=5, correlation=0.3)
    clustered = cell("A/A, ICC .3", correlated, max(runs, many // 4))
    cell("A/A, ICC .3, by request", dataclasses.replace(correlated, request_level=True))
    triggered = cell("-2 points, triggered", World(success=0.88, disagreement=0.1))
    cell("A/A, triggered", World(disagreement=0.1))
    cell("A/A, weekly season", World(season=0.05))
    cell("-5 points, weekly season", World(success=0.85, season=0.05))
    cell("A/A, 40 % missing", World(missing=(0.4, 0.4)))
    cell("-5 points, 40 % missing", World(success=0.85, missing=(0.4, 0.4)))
    cell("5 points more missing", World(missing=(0.2, 0.25)))

    details["delay_units"] = delays(rules, runs, 600 if options.quick else 6000, rng)
    details["thresholds"] = peers(runs, rng)
    details["watch"] = watch(rules, runs, rng)
    values = {
        "aa_rollback": aa.share(ramp.ROLL_BACK),
        "aa_promote": aa.share(ramp.PROMOTE),
        "drop5_rollback": drop.share(ramp.ROLL_BACK),
        "drop5_median_units": median(drop),
        "latency_rollback": slow.share(ramp.ROLL_BACK),
        "latency_median_units": median(slow),
        "margin_false_promote": max(result.share(ramp.PROMOTE) for result in at_margin),
        "clustered_false_alarm": clustered.share(ramp.ROLL_BACK),
        "triggered_drop2_requests": median(triggered, "sessions"),
        "sr_drop5_median": details["watch"]["median_units"],
    }
    details |= {name: "no run was rolled back" for name, value in values.items() if value is None}
    return publish("canary", values, details, options)


def describe(result: Result) -> dict[str, Any]:
    """Shares of each ending and quantiles (median, p90, p99) of canary sessions and of all sessions."""
    return {
        "rolled_back": result.share(ramp.ROLL_BACK),
        "promoted": result.share(ramp.PROMOTE),
        "frozen": result.share(FROZEN),
        "undecided": result.share(ramp.UNDECIDED),
        "roll_back_units": result.quantiles(ramp.ROLL_BACK),
        "roll_back_sessions": result.quantiles(ramp.ROLL_BACK, "sessions"),
        "promote_units": result.quantiles(ramp.PROMOTE),
        "promote_sessions": result.quantiles(ramp.PROMOTE, "sessions"),
        "by_guardrail": np.bincount(result.guardrail[result.outcome == ramp.ROLL_BACK], minlength=5).tolist(),
    }


def median(result: Result, what: str = "units") -> float | None:
    found = result.quantiles(ramp.ROLL_BACK, what)
    return found[0] if found else None


def delays(rules: Rules, runs: int, most: int, rng: np.random.Generator) -> dict[str, Any]:
    """Requests in all until the harm test alone rolls back, at a fixed split of 1, 5 and 25 %."""
    sigma = 0.5  # of log latency: what a shift by a share does to the exceedance of the old p95
    worlds = {f"-{points} points": World(success=0.90 - points / 100) for points in (1, 2, 5, 10)}
    for share in (10, 25, 50):
        threshold = 1.6449 - math.log(1 + share / 100) / sigma
        worlds[f"latency +{share} %"] = World(slow=0.5 * math.erfc(threshold / math.sqrt(2)))
    table: dict[str, Any] = {}
    for name, world in worlds.items():
        row = {}
        for weight, controls in ((0.01, 9), (0.05, 9), (0.25, 3)):
            units = delay(world, rules, controls, min(runs, 300), most, rng)
            middle = float(np.median(units))
            row[f"{weight:.0%}"] = {
                "detected": float((units <= most).mean()),
                "median_requests": None if middle > most else middle / weight,
            }
        table[name] = row
        print(f"{name:<18}" + "".join(f"{key:>6}: {shown(cell)}" for key, cell in row.items()), flush=True)
    return table


def shown(row: dict[str, Any]) -> str:
    requests = row["median_requests"]
    return f"{row['detected']:>6.0%} {'-' if requests is None else format(requests, ',.0f'):>9}"


def peers(runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """What fixed thresholds (windows of 50, at most 3 below 85 %, 12 windows) and a z-test after every 100 sessions do.

    The threshold is the analysis of Argo Rollouts and Flagger with their documented kind of settings; the z-test is
    one-sided at the 1 % level, canary against the same number of controls, looked at 20 times.
    """
    table = {}
    for name, rate in (("A/A", 0.90), ("-2 points", 0.88), ("-5 points", 0.85), ("-10 points", 0.80)):
        windows = rng.binomial(50, rate, (runs, 12)) / 50
        ours = np.cumsum(rng.binomial(100, rate, (runs, 20)), axis=1)
        theirs = np.cumsum(rng.binomial(100, 0.90, (runs, 20)), axis=1)
        n = 100 * np.arange(1, 21)
        pooled = (ours + theirs) / (2 * n)
        z = (theirs - ours) / n / np.sqrt(np.maximum(2 * pooled * (1 - pooled) / n, 1e-12))
        table[name] = {
            "threshold_rolls_back": float(((windows < 0.85).sum(axis=1) > 3).mean()),
            "repeated_z_rolls_back": float((z > 2.326).any(axis=1).mean()),
        }
        print(f"{name:<12}", ", ".join(f"{how} {share:.1%}" for how, share in table[name].items()), flush=True)
    return table


def watch(rules: Rules, runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Hold-back sessions from a 5-point fall of the new version to roll-back, after 5,000 healthy ones."""
    detector = Watch([rules.guardrails["success"].tolerance], runs)
    limit = np.log(rules.hold_back.roll_back)
    controls = int(min(9, (1 - rules.hold_back.share) / rules.hold_back.share + 1e-9))
    alarm = np.full(runs, -1)
    for turn in range(HEALTHY + 4000):
        rate = 0.90 if turn < HEALTHY else 0.85
        detector.update((rng.binomial(controls, rate, (runs, 1)) / controls) - (rng.random((runs, 1)) < 0.90))
        crossed = (detector.peak[:, 0] >= limit) & (alarm < 0)
        alarm[crossed] = turn
        if turn >= HEALTHY and (alarm >= 0).all():
            break
    false = (alarm >= 0) & (alarm < HEALTHY)
    seen = alarm[alarm >= HEALTHY] - HEALTHY + 1
    row = {
        "false_alarms": float(false.mean()),
        "detected": float((alarm >= HEALTHY).mean()),
        "median_units": float(np.median(seen)) if len(seen) else None,
        "p90_units": float(np.quantile(seen, 0.9)) if len(seen) else None,
    }
    print(f"after promotion: {row}")
    return row


if __name__ == "__main__":
    main(run, __doc__ or "")
