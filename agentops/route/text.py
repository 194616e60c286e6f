"""The text router: a cascade of an encoder with a head and, when there is one, a small language model.

The encoder answers when its calibrated confidence is high enough; what it is unsure of goes to the language model,
whose probabilities are multiplied with the encoder's; what is still unsure, or fits no label, is OUT_OF_SCOPE. A
message that holds several matters gets a route for each, in order of mention.

Invariant: the routes of a text depend on that text and the artifact only, never on the batch, the time or chance, so
propensity is 1. It decides nothing about rights: an agent's ceiling is the runtime's business.
"""

import csv
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentops.config import Settings
from agentops.errors import ModelError, RouteError, available
from agentops.models.causal import CausalLabels
from agentops.models.encoder import Encoder
from agentops.models.encoder import load as load_encoder
from agentops.models.head import Head
from agentops.project import Definition
from agentops.route.clauses import MAX_CHARACTERS, Piece, pieces
from agentops.types import OUT_OF_SCOPE, Route

SURE = 0.9  # a whole message this sure of its label is split only where it announces a new matter itself
# On unsure messages of the support desk with unseen wordings the label was right: encoder alone 26 %, language model
# after 20 LoRA steps 39 %, product with this exponent 42 % (untrained: 19 and 32 %).
CAUSAL_WEIGHT = 0.4
SEED_TEXTS = 100
SHOWN = 5  # labels with their probabilities on a Route
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`[thresholds]` of router.toml, all in [0, 1].

    Attributes:
        confidence: below it a stage is unsure.
        out_of_scope: from this score on nothing fits; 0.5 is where the head's validation put it.
        announced: confidence a part needs when the message announces a new matter ("besides that", a line break).
        unannounced: confidence both parts need when it does not.
    """

    confidence: float = 0.45
    out_of_scope: float = 0.5
    announced: float = 0.4
    unannounced: float = 0.8

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str) -> "Thresholds":
        """From a TOML table.

        Raises:
            RouteError: an unknown key or a value outside [0, 1]; names both and the file.
        """
        for key, value in table.items():
            if key not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise RouteError(f"{where}: [thresholds] {key!r} is not a threshold; known: {known}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise RouteError(f"{where}: [thresholds] {key} = {value!r} must be a number in [0, 1]")
        return cls(**{key: float(value) for key, value in table.items()})


@dataclass(frozen=True, slots=True)
class _Guess:
    """What the stages make of one piece of text."""

    label: str  # the best label, OUT_OF_SCOPE when nothing fits
    confidence: float
    stage: str
    scores: tuple[tuple[str, float], ...]

    @property
    def fits(self) -> bool:
        return self.label != OUT_OF_SCOPE


@dataclass(eq=False)
class TextRouter:
    """Implements types.Router. Thread-safe.

    Attributes:
        head: fitted on the vectors of `encoder`.
        agents: agent of each label.
        allowed: (k,) which labels of the head the definition still has; others are never answered.
    """

    head: Head
    encoder: Encoder
    agents: Mapping[str, str]
    thresholds: Thresholds = Thresholds()
    causal: CausalLabels | None = None
    version: str = ""
    allowed: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @classmethod
    def load(
        cls, folder: Path, definition: Definition | None = None, settings: Settings | None = None, version: str = ""
    ) -> "TextRouter":
        """The router in an artifact folder (head/, optional causal/, router.json).

        Args:
            folder: what `fit_head` wrote, with what `fit_causal` wrote in causal/ when there is one.
            definition: routers/<name>: agents of the labels and thresholds. Without one every label is allowed.
            settings: encoder, causal_model and use_causal.
            version: artifact digest, on every Route.

        Raises:
            ModelError: missing or damaged weights.
            RouteError: an unusable definition, or an artifact made with another encoder.
        """
        settings = settings or Settings()
        table = definition.table if definition else {}
        where = f"routers/{definition.name}/{definition.file.name}" if definition else ""
        thresholds = Thresholds.of(table.get("thresholds", {}), where)
        head = Head.load(folder / "head")
        encoder = load_encoder(settings.encoder)
        if head.encoder != encoder.digest:
            raise RouteError(
                f"the router was fitted with encoder {head.encoder[:19]!r} but {encoder.digest[:19]!r} is configured: "
                "train it again, or set `encoder` back"
            )
        labels = table.get("labels", {})
        allowed = np.array([not labels or label in labels for label in head.labels])
        if not allowed.any():
            raise RouteError(
                f"none of the router's labels ({', '.join(head.labels[:5])}, …) is in {where}: train it on this "
                "router's data"
            )
        agents = {label: str(entry.get("agent", "")) for label, entry in labels.items()}
        causal = _causal(folder / "causal", head.labels, definition, settings)
        return cls(head, encoder, agents, thresholds, causal, version, allowed)

    def route(self, texts: Sequence[str]) -> list[tuple[Route, ...]]:
        """One or more routes per text, in order of mention; OUT_OF_SCOPE when nothing fits.

        `latency_s` of each route is the batch's time divided by its texts.
        """
        started = time.perf_counter()
        texts = [text[: 2 * MAX_CHARACTERS] for text in texts]
        parts = [pieces(text) for text in texts]
        whole = self._guess(texts)
        chosen = self._several(texts, parts, whole)
        took = (time.perf_counter() - started) / max(1, len(texts))
        return [
            tuple(self._route(guess, text, took) for guess, text in found)
            if (found := chosen[row])
            else (self._route(whole[row], "", took),)
            for row in range(len(texts))
        ]

    # ------------------------------------------------------------------ one matter

    def _guess(self, texts: Sequence[str]) -> list[_Guess]:
        """The stages' answer for each text taken as one matter."""
        if not texts:
            return []
        probabilities, outside = self.head.decide(self.encoder.embed(texts))
        probabilities = self._permitted(probabilities)
        guesses = [
            self._decide(row, float(out), "encoder") if text.strip() else _Guess(OUT_OF_SCOPE, 1.0, "rules", ())
            for text, row, out in zip(texts, probabilities, outside, strict=True)
        ]
        if self.causal is not None:
            unsure = [
                row
                for row, text in enumerate(texts)
                if text.strip() and self._unsure(probabilities[row], float(outside[row]))
            ]
            if unsure:
                columns = [self.causal.labels.index(label) for label in self.head.labels]
                scores = self.causal.scores([texts[row] for row in unsure])
                for row, given in zip(unsure, scores, strict=True):
                    joint = probabilities[row] * given[columns] ** CAUSAL_WEIGHT
                    joint = self._permitted(joint[None] / max(float(joint.sum()), 1e-300))[0]
                    # What is in scope stays the encoder's word: its AUROC is .95, the language model's .81.
                    guesses[row] = self._decide(joint, float(outside[row]), "causal")
        return guesses

    def _permitted(self, probabilities: np.ndarray) -> np.ndarray:
        if self.allowed.all():
            return probabilities
        kept = probabilities * self.allowed
        return kept / np.maximum(kept.sum(axis=1, keepdims=True), 1e-12)

    def _unsure(self, probabilities: np.ndarray, outside: float) -> bool:
        return outside < self.thresholds.out_of_scope and probabilities.max() < self.thresholds.confidence

    def _decide(self, probabilities: np.ndarray, outside: float, stage: str) -> _Guess:
        order = np.argsort(-probabilities, kind="stable")[:SHOWN]
        scores = tuple((self.head.labels[place], round(float(probabilities[place]), 6)) for place in order)
        label, confidence = scores[0]
        if outside >= self.thresholds.out_of_scope:
            return _Guess(OUT_OF_SCOPE, outside, stage, scores)
        if confidence < self.thresholds.confidence:
            return _Guess(OUT_OF_SCOPE, 1 - confidence, stage, scores)
        return _Guess(label, confidence, stage, scores)

    # ------------------------------------------------------------------ several matters

    def _several(
        self, texts: Sequence[str], parts: Sequence[tuple[Piece, ...]], whole: Sequence[_Guess]
    ) -> list[list[tuple[_Guess, str]]]:
        """For each text its matters with their clauses; empty when it is one matter."""
        wanted: list[list[tuple[int, int]]] = []
        for text, found, guess in zip(texts, parts, whole, strict=True):
            wanted.append(_candidates(text, found, sure=guess.fits and guess.confidence >= SURE))
        flat = [texts[row][start:end] for row, spans in enumerate(wanted) for start, end in spans]
        guesses = iter(self._guess(flat))
        chosen: list[list[tuple[_Guess, str]]] = []
        for row, spans in enumerate(wanted):
            known = {span: next(guesses) for span in spans}
            chosen.append(self._matters(texts[row], parts[row], known))
        return chosen

    def _matters(
        self, text: str, found: tuple[Piece, ...], known: Mapping[tuple[int, int], _Guess]
    ) -> list[tuple[_Guess, str]]:
        if not known:
            return []
        announced = _announced(found)
        if len(announced) > 1:
            matters: list[tuple[_Guess, int, int]] = []
            for start, end in announced:
                guess = known[start, end]
                if (
                    guess.fits
                    and guess.confidence >= self.thresholds.announced
                    and (not matters or guess.label != matters[-1][0].label)
                ):
                    matters.append((guess, start, end))
                elif matters:  # the same matter, or words of politeness: part of what came before
                    before, first, _ = matters[-1]
                    matters[-1] = (before, first, end)
        else:
            matters = []
            best = self.thresholds.unannounced
            for cut in range(1, len(found)):
                left, right = (found[0].start, found[cut - 1].end), (found[cut].start, found[-1].end)
                both = known[left], known[right]
                weaker = min(guess.confidence for guess in both)
                if all(guess.fits for guess in both) and both[0].label != both[1].label and weaker >= best:
                    best = weaker
                    matters = [(both[0], *left), (both[1], *right)]
        if len({guess.label for guess, _, _ in matters}) < 2:
            return []
        return [(guess, text[start:end]) for guess, start, end in matters]

    def _route(self, guess: _Guess, text: str, took: float) -> Route:
        return Route(
            label=guess.label,
            confidence=round(guess.confidence, 6),
            stage=guess.stage,
            agent=self.agents.get(guess.label, ""),
            version=self.version,
            scores=guess.scores,
            text=text,
            latency_s=took,
        )


def _announced(found: tuple[Piece, ...]) -> list[tuple[int, int]]:
    """Spans between the places where the message announces a new matter."""
    spans: list[tuple[int, int]] = []
    for piece in found:
        if piece.strong or not spans:
            spans.append((piece.start, piece.end))
        else:
            spans[-1] = (spans[-1][0], piece.end)
    return spans


def _candidates(text: str, found: tuple[Piece, ...], sure: bool) -> list[tuple[int, int]]:
    """Spans to ask the stages about: announced parts, else the two sides of every boundary of an unsure message."""
    if len(found) < 2 or len(text) > MAX_CHARACTERS:
        return []
    announced = _announced(found)
    if len(announced) > 1:
        return announced
    if sure:
        return []
    sides = [(found[0].start, piece.end) for piece in found[:-1]]
    return sides + [(piece.start, found[-1].end) for piece in found[1:]]


def _causal(
    folder: Path, labels: Sequence[str], definition: Definition | None, settings: Settings
) -> CausalLabels | None:
    """The language-model stage when the setting asks for it: with the artifact's adapter, else the plain model.

    A tenth of a second a message is a choice of the deployment, so an artifact that has an adapter does not make it.
    """
    if not settings.use_causal:
        return None
    fitted = (folder / "labels.json").is_file()
    if not (available("torch") and available("transformers")):
        _LOG.warning("the language-model stage is left out: torch is not installed (extra 'train')")
        return None
    if fitted:
        causal = CausalLabels.load(settings.causal_model, folder)
        missing = sorted(set(labels) - set(causal.labels))
        if missing:
            raise ModelError(f"the adapter in {folder.name!r} does not know the labels {missing}: train it again")
        return causal
    causal = CausalLabels.load(settings.causal_model, None, labels)
    texts = _seed_texts(definition)  # a tenth of a second each
    return causal.calibrated(texts) if texts else causal


def _seed_texts(definition: Definition | None) -> list[str]:
    """Texts of the definition's seed data: what an untrained model's bias towards some words is measured on.

    Raises:
        RouteError: `[router] seed_data` is no readable CSV with a column "text" in the router's folder.
    """
    name = str((definition.table if definition else {}).get("router", {}).get("seed_data", ""))
    if definition is None or not name:
        return []
    where = f"routers/{definition.name}/{name}"
    file = (definition.path / name).resolve()
    if not file.is_relative_to(definition.path.resolve()):
        raise RouteError(f"{where}: seed_data = {name!r} must be in the router's folder")
    try:
        with file.open(encoding="utf-8", newline="") as handle:
            return [row["text"] or "" for row in csv.DictReader(handle)][:SEED_TEXTS]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise RouteError(
            f"{where} cannot be read ({type(error).__name__}): it must be UTF-8 CSV with the columns text and label"
        ) from None
