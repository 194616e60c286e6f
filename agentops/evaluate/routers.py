"""How well a router answers a suite, and whether it is better than the one that serves: paired, on the same tasks.

Invariant: both routers see the same texts, and latencies are taken alternately in one process, so a difference is the
routers'. A prediction is right only when its set of labels is exactly the task's. It gates nothing.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentops.errors import EvaluateError
from agentops.evaluate import statistics
from agentops.evaluate.suites import Suite
from agentops.protocols import Router
from agentops.types import OUT_OF_SCOPE, Interval, Report, Route, Task

BATCH = 64
SHOWN = 200  # task ids kept of each kind of flip
TIMED = 300  # texts routed one at a time for the latency figures


@dataclass(frozen=True, slots=True)
class Answers:
    """What one router said of every task of a suite, in the suite's order, and how long single texts took."""

    version: str
    routes: tuple[tuple[Route, ...], ...]
    latencies_s: tuple[float, ...]  # of `timed` positions, one text at a time


def evaluate_router(
    suite: Suite,
    router: Router,
    baseline: Router | None = None,
    limit: int | None = None,
    timed: int = TIMED,
    seed: int = 0,
) -> Report:
    """Measure `router`, and against `baseline` when there is one. `passed` stays None until a gate judged the report.

    Args:
        suite: labelled tasks.
        router: the candidate.
        baseline: the version that serves.
        limit: at most this many tasks, drawn with `seed` (a smaller, less certain run); must-pass tasks always stay.
        timed: tasks whose latency is measured, one text at a time, both routers in turn.
        seed: of the draws and the bootstrap.

    Returns:
        Metrics: accuracy, in_scope_accuracy, out_of_scope_recall, ece, latency_p50_s, latency_p95_s, label/<name>
        (recall), stage/<name> (accuracy of what that stage answered), stage_share/<name>; with a baseline also
        baseline/<metric>, difference (accuracy, paired) and latency_ratio (p95).

    Raises:
        EvaluateError: a router answers with another number of results than texts, or with none for a text.
    """
    tasks = _draw(suite.tasks, limit, seed)
    positions = random.Random(seed).sample(range(len(tasks)), min(timed, len(tasks)))
    routers = [router] if baseline is None else [router, baseline]
    times = latencies(routers, [tasks[position].text for position in positions])
    answers = [_answers(one, tasks, taken) for one, taken in zip(routers, times, strict=True)]
    metrics, details = _measure(tasks, answers[0], seed)
    details |= {"tasks": len(tasks), "suite_tasks": len(suite.tasks), "timed": len(positions)}
    if baseline is not None:
        theirs, their_details = _measure(tasks, answers[1], seed)
        metrics |= {f"baseline/{name}": value for name, value in theirs.items() if "/" not in name}
        details["baseline"] = {name: their_details[name] for name in ("stages",)}
        _compare(tasks, answers[0], answers[1], metrics, details, seed)
    right = _right(tasks, answers[0])
    return Report(
        suite=suite.name,
        suite_digest=suite.digest,
        candidate=router.version,
        baseline="" if baseline is None else baseline.version,
        metrics=metrics,
        must_pass_failures=tuple(task.id for task, ok in zip(tasks, right, strict=True) if task.must_pass and not ok),
        details=details,
    )


def _draw(tasks: Sequence[Task], limit: int | None, seed: int) -> list[Task]:
    if limit is None or limit >= len(tasks):
        return list(tasks)
    if limit < 1:
        raise EvaluateError(f"limit = {limit} must be at least 1")
    chosen = set(random.Random(seed).sample(range(len(tasks)), limit))
    return [task for position, task in enumerate(tasks) if position in chosen or task.must_pass]


def latencies(routers: Sequence[Router], texts: Sequence[str], repeats: int = 1) -> list[list[float]]:
    """Seconds that each router takes for each text, one text at a time, the routers taking turns.

    A router that remembered texts would look fast here: none may (the encoder keeps no vectors).

    Args:
        routers: to be compared; all in this process.
        texts: what they are asked.
        repeats: calls of which the median counts; 3 takes a busy machine's spikes away.

    Returns:
        One list a router, in the order of `texts`.
    """
    times: list[list[float]] = [[] for _ in routers]
    for router in routers:
        router.route(["warm up"])
    for turn, text in enumerate(texts):
        taken: list[list[float]] = [[] for _ in routers]
        for repeat in range(repeats):
            order = range(len(routers)) if (turn + repeat) % 2 == 0 else reversed(range(len(routers)))
            for index in order:
                began = time.perf_counter()
                routers[index].route([text])
                taken[index].append(time.perf_counter() - began)
        for index, seconds in enumerate(taken):
            times[index].append(statistics.median(seconds))
    return times


def _answers(router: Router, tasks: Sequence[Task], latencies: Sequence[float]) -> Answers:
    found: list[tuple[Route, ...]] = []
    for start in range(0, len(tasks), BATCH):
        texts = [task.text for task in tasks[start : start + BATCH]]
        routes = router.route(texts)
        if len(routes) != len(texts) or not all(routes):
            raise EvaluateError(
                f"router {router.version!r} gave {len(routes)} answers for {len(texts)} texts, or an empty one: "
                f"every text needs at least one route ({OUT_OF_SCOPE!r} when nothing fits)"
            )
        found += routes
    return Answers(router.version, tuple(found), tuple(latencies))


def _right(tasks: Sequence[Task], answers: Answers) -> list[bool]:
    return [
        {route.label for route in routes} == set(task.labels)
        for task, routes in zip(tasks, answers.routes, strict=True)
    ]


def _clusters(tasks: Sequence[Task]) -> list[str] | None:
    """Templates as clusters; a task without one stands alone."""
    if not any(task.template for task in tasks):
        return None
    return [task.template or f"\0{task.id}" for task in tasks]


def _measure(tasks: Sequence[Task], answers: Answers, seed: int) -> tuple[dict[str, Interval], dict[str, Any]]:
    right = _right(tasks, answers)
    clusters = _clusters(tasks)

    def share(positions: Sequence[int], values: Sequence[float]) -> Interval:
        names = None if clusters is None else [clusters[position] for position in positions]
        return statistics.proportion(values, names)

    outside = [position for position, task in enumerate(tasks) if OUT_OF_SCOPE in task.labels]
    inside = [position for position, task in enumerate(tasks) if OUT_OF_SCOPE not in task.labels]
    metrics = {
        "accuracy": share(range(len(tasks)), [float(ok) for ok in right]),
        "in_scope_accuracy": share(inside, [float(right[position]) for position in inside]),
        "out_of_scope_recall": share(outside, [float(right[position]) for position in outside]),
    }
    confidence: list[float] = []
    correct: list[float] = []
    stages: dict[str, list[tuple[int, float]]] = defaultdict(list)
    confused: Counter[tuple[str, str]] = Counter()
    for position, (task, routes) in enumerate(zip(tasks, answers.routes, strict=True)):
        for route in routes:
            ok = float(route.label in task.labels)
            confidence.append(route.confidence)
            correct.append(ok)
            stages[route.stage].append((position, ok))
        predicted = {route.label for route in routes}
        if len(task.labels) == 1 and len(predicted) == 1 and not right[position]:
            confused[task.labels[0], next(iter(predicted))] += 1
    metrics["ece"] = statistics.calibration_error(confidence, correct, seed=seed)
    metrics["latency_p50_s"] = statistics.quantile(answers.latencies_s, 0.5)
    metrics["latency_p95_s"] = statistics.quantile(answers.latencies_s, 0.95)
    total = sum(map(len, stages.values()))
    for stage, rows in sorted(stages.items()):
        metrics[f"stage/{stage}"] = share([position for position, _ in rows], [ok for _, ok in rows])
        metrics[f"stage_share/{stage}"] = statistics.wilson(len(rows), total)
    by_label: dict[str, list[int]] = defaultdict(list)
    for position, task in enumerate(tasks):
        for label in task.labels:
            by_label[label].append(position)
    for label, positions in sorted(by_label.items()):
        found = [float(any(route.label == label for route in answers.routes[position])) for position in positions]
        metrics[f"label/{label}"] = share(positions, found)
    must = [ok for task, ok in zip(tasks, right, strict=True) if task.must_pass]
    details = {
        "stages": {
            stage: {"answers": len(rows), "right": sum(ok for _, ok in rows)} for stage, rows in sorted(stages.items())
        },
        "confused": [{"gold": gold, "predicted": label, "tasks": n} for (gold, label), n in confused.most_common(10)],
        "must_pass": len(must),
        "design_effect": statistics.design_effect([float(ok) for ok in right], clusters),
    }
    return metrics, details


def _compare(
    tasks: Sequence[Task],
    ours: Answers,
    theirs: Answers,
    metrics: dict[str, Interval],
    details: dict[str, Any],
    seed: int,
) -> None:
    """Add the paired figures to `metrics` and `details`."""
    right, before = _right(tasks, ours), _right(tasks, theirs)
    metrics["difference"] = statistics.paired_difference(
        [float(ok) for ok in right], [float(ok) for ok in before], _clusters(tasks), seed
    )
    metrics["latency_ratio"] = statistics.quantile_ratio(ours.latencies_s, theirs.latencies_s, 0.95, seed)
    fixed = [task.id for task, ok, was in zip(tasks, right, before, strict=True) if ok and not was]
    broken = [task.id for task, ok, was in zip(tasks, right, before, strict=True) if was and not ok]
    changed = sum(
        {route.label for route in mine} != {route.label for route in other}
        for mine, other in zip(ours.routes, theirs.routes, strict=True)
    )
    metrics["disagreement"] = statistics.wilson(changed, len(tasks))
    details |= _flips(fixed, broken, len(tasks))


def _flips(fixed: Sequence[str], broken: Sequence[str], n: int) -> Mapping[str, Any]:
    return {
        "fixed": len(fixed),
        "broken": len(broken),
        "fixed_tasks": list(fixed[:SHOWN]),
        "broken_tasks": list(broken[:SHOWN]),
        "mcnemar_p": statistics.mcnemar(len(fixed), len(broken)),
        "smallest_visible_difference": statistics.detectable_effect(n, (len(fixed) + len(broken)) / n if n else 0.0),
    }
