"""A release decided on replayed traffic: recorded requests whose outcome under both versions is known.

Invariant: the controller sees exactly what it would see online, one version's metrics a session, by the arm the session
falls in; the other version's are never shown to it. It routes nothing and runs no tool: the caller computed the
metrics.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from agentops.errors import ReleaseError
from agentops.release.assignment import assign
from agentops.release.controller import Controller, Ruling
from agentops.release.sessions import Metrics
from agentops.types import Assignment


@dataclass(frozen=True, slots=True)
class ReplayUnit:
    """One session of recorded traffic: what either version makes of it. Measure both latencies side by side, not one
    after the other."""

    session: str
    stable: Metrics
    candidate: Metrics
    disagreed: bool | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """How a replay ended. `rulings`: every decision that moved something, in order; the last one is `ruling`."""

    ruling: Ruling
    rulings: tuple[Ruling, ...]
    sessions: int
    candidate_sessions: int  # served by the candidate


def replay(controller: Controller, router: str, units: Iterable[ReplayUnit], every: int = 100) -> Replay:
    """Feed `units` to the open release of `router` until it is promoted, rolled back or held, or they run out.

    Args:
        controller: of the deployment the release runs in.
        router: name of the router.
        units: sessions with distinct ids, in any order; tens of thousands are fine.
        every: sessions between two decisions; looking more often does no harm, it only costs time.

    Raises:
        ReleaseError: the router has no open release.
    """
    release = controller.release(router)
    if release is None or release.stage not in ("shadow", "canary"):
        raise ReleaseError(f"router {router!r} has no open release to replay traffic for: start one")
    current = controller.registry.current(router)
    batch: list[tuple[str, Assignment, Metrics]] = []
    rulings: list[Ruling] = []
    sessions = served = 0
    ruling = controller.status(router)
    for unit in units:
        assignment = assign(release, current, unit.session)
        on_candidate = assignment.version == release.candidate
        metrics = unit.candidate if on_candidate else unit.stable
        other = unit.stable if on_candidate else unit.candidate
        metrics = dataclasses.replace(
            metrics,
            denied=bool(metrics.denied),  # nothing runs in a replay, so nothing was denied or failed unless it says so
            error=bool(metrics.error),
            disagreed=unit.disagreed,
            shadow_latency_s=other.latency_s,
            complete=True,
        )
        batch.append((unit.session, assignment, metrics))
        sessions += 1
        served += on_candidate
        if len(batch) < every:
            continue
        ruling = _decide(controller, router, batch)
        release = ruling.release
        if ruling.action != "hold":
            rulings.append(ruling)
        if release.stage not in ("shadow", "canary"):
            return Replay(ruling, tuple(rulings), sessions, served)
    if batch:
        ruling = _decide(controller, router, batch)
        if ruling.action != "hold":
            rulings.append(ruling)
    return Replay(ruling, tuple(rulings), sessions, served)


def _decide(controller: Controller, router: str, batch: list[tuple[str, Assignment, Metrics]]) -> Ruling:
    controller.observe_many(router, batch)
    batch.clear()
    return controller.decide(router)
