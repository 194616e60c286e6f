"""Fit the head of a text router on labelled texts: seconds, no torch.

A multinomial logistic regression on frozen sentence vectors. Regularisation, temperature and the abstention threshold
are chosen on out-of-fold predictions (every row of small data, one held-out fold of large data), then the head is
fitted on all rows.

Invariant: a row is never judged by a head that saw it, and equal rows with an equal seed give equal bytes. What is
wrong with a row is an error that names the row. This module stores no text.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentops.errors import TrainError
from agentops.models.calibration import (
    abstention_threshold,
    expected_calibration_error,
    negative_log_likelihood,
    softmax,
    temperature,
)
from agentops.models.encoder import Encoder
from agentops.models.head import Head
from agentops.types import OUT_OF_SCOPE

STRENGTHS = (3.0, 10.0, 30.0)  # inverse regularisation on unit vectors
ALL_FOLDS = 3000  # rows up to which every fold is predicted; above, one fold is enough to choose four numbers
CALIBRATE = 30  # out-of-fold rows a temperature needs
OUTSIDE = 10  # out-of-scope rows that may move the threshold
NEAREST_ROWS = 200  # training rows kept for a label: more change no neighbour mean by .01
MAX_ROWS = 1_000_000
DEFAULT_STRENGTH = 10.0  # when nothing can be held out
NEAR_COPY = 0.85  # cosine of MiniLM vectors; on CLINC150 out-of-fold accuracy falls from .977 to .962 (test: .950)
GROUPED = 5000  # rows of a label up to which near copies are looked for
UNVALIDATED_COSINE = 0.35  # MiniLM: unrelated sentences are mostly below .2, paraphrases mostly above .4
Progress = Callable[[int, int, Mapping[str, float]], None]
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Held:
    """Out-of-fold predictions: logits and signals of rows by heads that did not see them."""

    rows: np.ndarray  # (n,) row numbers
    logits: np.ndarray  # (n, k) of the labels
    signals: np.ndarray  # (n, 2 or 3)


def fit_head(
    rows: Sequence[tuple[str, str]],
    encoder: Encoder,
    out: Path,
    *,
    seed: int = 0,
    calibration_share: float = 0.2,
    keep: float = 0.95,
    labels: Collection[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit on (text, label) rows and write the artifact folder `out`: router.json and head/.

    Rows labelled OUT_OF_SCOPE teach what fits nothing. Repeated rows count once.

    Args:
        rows: at least two labels beside OUT_OF_SCOPE; ten rows of each are enough to start.
        encoder: whose vectors are used; its digest is stored.
        out: a new or empty folder.
        seed: of the fold assignment.
        calibration_share: in (0, 0.5]; the size of a fold.
        keep: share of held-out in-scope rows that must stay answered, in (0, 1].
        labels: when given, the only labels allowed (OUT_OF_SCOPE always is).
        progress: called with (step, steps, {}) as parts finish.

    Returns:
        The manifest, which is also router.json: counts, validation figures, temperature, threshold, notes.

    Raises:
        TrainError: an empty text, an empty or unknown label, one text with two labels, too few labels, a used folder.
    """
    if not 0 < calibration_share <= 0.5 or not 0 < keep <= 1:
        raise TrainError(f"calibration_share = {calibration_share!r} must be in (0, 0.5] and keep = {keep!r} in (0, 1]")
    if out.exists() and any(out.iterdir()):
        raise TrainError(f"{str(out)!r} is not empty: an artifact is never written over, choose a new folder")
    texts, given, repeated = _checked(rows, labels)
    names = tuple(sorted(set(given) - {OUT_OF_SCOPE}))
    if len(names) < 2:
        raise TrainError(
            f"the rows have {len(names)} label(s) beside {OUT_OF_SCOPE!r} ({', '.join(names) or 'none'}): "
            "a router needs at least two"
        )
    place = {name: number for number, name in enumerate((*names, OUT_OF_SCOPE))}
    truth = np.array([place[label] for label in given])
    folds = round(1 / calibration_share)
    steps = 3 + (folds if len(texts) <= ALL_FOLDS else 1)
    step = _counter(progress, steps)
    vectors = _embed(encoder, texts)
    step()

    notes: list[str] = []
    strength, held = _choose(vectors, truth, names, encoder.digest, folds, seed, step)
    [head] = _fits(vectors, truth, names, encoder.digest, [strength])
    step()
    head, figures = _calibrated(head, held, truth, keep, notes)
    thin = sorted(name for name, count in Counter(given).items() if count < 3)
    if thin:
        notes.append(f"fewer than 3 rows: {', '.join(thin[:20])}{' …' if len(thin) > 20 else ''}")
    head.save(out / "head")
    manifest = {
        "kind": "router",
        "stage": "head",
        "format": 1,
        "labels": list(names),
        "encoder": encoder.digest,
        "rows": len(texts),
        "repeated_rows": repeated,
        "rows_by_label": dict(sorted(Counter(given).items())),
        "seed": seed,
        "strength": strength,
        "keep": keep,
        "temperature": round(head.temperature, 4),
        "threshold": round(head.threshold, 4),
        "validation": figures,
        "notes": notes,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True, allow_nan=False)
    (out / "router.json").write_text(text + "\n", encoding="utf-8")
    step()
    return manifest


def _checked(rows: Sequence[tuple[str, str]], labels: Collection[str] | None) -> tuple[list[str], list[str], int]:
    """Texts and labels without repetitions, and how many there were."""
    if not rows:
        raise TrainError("there are no rows to train on: give (text, label) rows")
    if len(rows) > MAX_ROWS:
        raise TrainError(f"{len(rows)} rows are more than {MAX_ROWS}: sample them first")
    allowed = None if labels is None else {*labels, OUT_OF_SCOPE}
    seen: dict[str, tuple[int, str]] = {}
    texts: list[str] = []
    given: list[str] = []
    for number, (text, label) in enumerate(rows, 1):
        label = label.strip()
        key = " ".join(text.split()).casefold()
        if not key:
            raise TrainError(f"row {number} has an empty text: remove it")
        if not label:
            raise TrainError(f"row {number} has no label: give one, or {OUT_OF_SCOPE!r} when nothing fits")
        if allowed is not None and label not in allowed:
            raise TrainError(
                f"row {number} has the unknown label {label!r}; labels of this router: {', '.join(sorted(allowed))}"
            )
        if key in seen:
            first, other = seen[key]
            if other != label:  # the text stays out of the message: it may be personal data
                raise TrainError(
                    f"rows {first} and {number} are the same text with two labels, {other!r} and {label!r}: keep the "
                    "right one"
                )
            continue
        seen[key] = (number, label)
        texts.append(text)
        given.append(label)
    return texts, given, len(rows) - len(texts)


def _embed(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    parts = [encoder.embed(texts[start : start + 1024]) for start in range(0, len(texts), 1024)]
    return np.concatenate(parts)


def _folds(vectors: np.ndarray, truth: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(n,) fold of each row, stratified by label; -1 for rows of a label whose rows are all near copies: they train.

    Near copies share a fold: a template filled in with another order number is no test of the head that learned it.
    """
    generator = np.random.default_rng(seed)
    folds = np.empty(len(truth), int)
    for label in np.unique(truth):
        members = np.flatnonzero(truth == label)
        groups = _near_copies(vectors[members])
        kinds = groups.max() + 1
        fold = (generator.permutation(kinds) + generator.integers(count)) % count
        folds[members] = fold[groups] if kinds > 1 else -1
    return folds


def _near_copies(vectors: np.ndarray) -> np.ndarray:
    """(n,) group numbers: a row joins the first earlier row that leads a group and is near enough, or leads its own."""
    groups = np.arange(len(vectors))
    if len(vectors) > GROUPED:
        return groups
    near = vectors @ vectors.T >= NEAR_COPY
    kinds = 0
    leaders = np.zeros(len(vectors), bool)
    for row in range(len(vectors)):
        led = np.flatnonzero(near[row, :row] & leaders[:row])
        if len(led):
            groups[row] = groups[led[0]]
        else:
            groups[row], leaders[row] = kinds, True
            kinds += 1
    return groups


def _choose(
    vectors: np.ndarray, truth: np.ndarray, names: tuple[str, ...], encoder: str, count: int, seed: int, step: Step
) -> tuple[float, _Held]:
    """The regularisation with the best out-of-fold likelihood, and the predictions made with it."""
    folds = _folds(vectors, truth, count, seed)
    held: dict[float, list[_Held]] = {strength: [] for strength in STRENGTHS}
    for fold in range(count if len(truth) <= ALL_FOLDS else 1):
        test, train = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        if len(test):
            fits = _fits(vectors[train], truth[train], names, encoder, STRENGTHS)
            for strength, head in zip(STRENGTHS, fits, strict=True):
                logits = head.logits(vectors[test])[:, : len(names)]
                held[strength].append(_Held(test, logits, head.signals(vectors[test])))
        step()
    joined = {strength: _join(parts, len(names)) for strength, parts in held.items()}

    def loss(strength: float) -> float:
        one = joined[strength]
        inside = truth[one.rows] < len(names)
        known, logits = truth[one.rows][inside], one.logits[inside]
        if not len(known):
            return abs(strength - DEFAULT_STRENGTH)
        return negative_log_likelihood(logits, known, temperature(logits, known))

    chosen = min(STRENGTHS, key=loss)
    return chosen, joined[chosen]


def _join(parts: Sequence[_Held], labels: int) -> _Held:
    if not parts:
        return _Held(np.zeros(0, int), np.zeros((0, labels)), np.zeros((0, 2)))
    return _Held(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.signals for part in parts]),
    )


def _fits(
    vectors: np.ndarray, truth: np.ndarray, names: tuple[str, ...], encoder: str, strengths: Sequence[float]
) -> Iterator[Head]:
    """A head for each strength, uncalibrated; each fit starts from the one before."""
    from sklearn.linear_model import LogisticRegression

    outside = bool((truth == len(names)).any())
    order = np.argsort(truth, kind="stable")
    rows, starts = [], [0]
    for label in range(len(names)):
        members = order[truth[order] == label]
        members = members[np.linspace(0, len(members) - 1, min(NEAREST_ROWS, len(members))).round().astype(int)]
        rows.append(vectors[members])
        starts.append(starts[-1] + len(members))
    signals = 3 if outside else 2
    strengths = tuple(strengths)
    model = LogisticRegression(max_iter=500, tol=1e-4, warm_start=True)
    for strength in strengths:
        model.set_params(C=strength).fit(vectors, truth)
        weight, bias = model.coef_, model.intercept_
        if len(weight) == 1:  # two classes: one row of differences
            weight, bias = np.stack([-weight[0] / 2, weight[0] / 2]), np.array([-bias[0] / 2, bias[0] / 2])
        yield Head(
            labels=names,
            encoder=encoder,
            weight=weight.astype(np.float32),
            bias=bias.astype(np.float32),
            rows=np.concatenate(rows).astype(np.float16).astype(np.float32),  # as they will be stored
            starts=np.array(starts),
            means=np.zeros(signals),
            deviations=np.ones(signals),
            threshold=0.0,
            temperature=1.0,
            outside=outside,
        )


def _calibrated(
    head: Head, held: _Held, truth: np.ndarray, keep: float, notes: list[str]
) -> tuple[Head, dict[str, float | int]]:
    """The head with temperature, signal scale and threshold from held-out rows, and what those rows say of it."""
    inside = truth[held.rows] < len(head.labels)
    known, logits = truth[held.rows][inside], held.logits[inside]
    if len(known) < CALIBRATE:
        notes.append(
            f"{len(known)} held-out rows are fewer than {CALIBRATE}: confidence is not calibrated, and a message is in "
            f"scope from a mean cosine of {UNVALIDATED_COSINE} to the nearest training rows"
        )
        deviations = np.full(len(head.means), 1e9)  # only the cosine counts, in units of .05
        deviations[1] = 0.05
        return replace(head, deviations=deviations, threshold=UNVALIDATED_COSINE / 0.05), {"rows": len(known)}
    right = logits.argmax(axis=1) == known
    means, deviations = held.signals[inside].mean(axis=0), np.maximum(held.signals[inside].std(axis=0), 1e-6)
    scope = ((held.signals - means) / deviations).sum(axis=1)
    outside = scope[~inside] if (~inside).sum() >= OUTSIDE else np.zeros(0)
    if not len(outside):
        notes.append(f"fewer than {OUTSIDE} out-of-scope rows: the threshold only keeps {keep:.0%} of in-scope rows")
    threshold = abstention_threshold(scope[inside], outside, keep)
    kept = scope[inside] >= threshold
    figures: dict[str, float | int] = {
        "rows": len(known),
        "accuracy": round(float(right.mean()), 4),
        "expected_calibration_error": round(_crossed_error(logits, known), 4),
        "kept": round(float(kept.mean()), 4),
        "accuracy_of_kept": round(float(right[kept].mean()), 4),
        "out_of_scope_rows": int((~inside).sum()),
    }
    if len(outside):
        figures["out_of_scope_recall"] = round(float((outside < threshold).mean()), 4)
    fitted = replace(
        head,
        temperature=temperature(logits, known),
        means=means,
        deviations=deviations,
        threshold=threshold,
    )
    return fitted, figures


def _crossed_error(logits: np.ndarray, known: np.ndarray) -> float:
    """Expected calibration error with the temperature of each half judged on the other."""
    confidence, right = np.empty(len(known)), logits.argmax(axis=1) == known
    for half in (0, 1):
        own, other = np.arange(len(known)) % 2 == half, np.arange(len(known)) % 2 != half
        confidence[own] = softmax(logits[own], temperature(logits[other], known[other])).max(axis=1)
    return expected_calibration_error(confidence, right)


def _counter(progress: Progress | None, steps: int) -> Step:
    numbers = iter(range(1, steps + 1))

    def step() -> None:
        number = next(numbers, steps)
        if progress is not None:
            progress(number, steps, {})

    return step
