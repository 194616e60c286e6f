"""The head of a text router: label probabilities and an in-scope score from sentence vectors, in numpy alone.

Probabilities are a softmax over linear logits with a temperature. Standardised signals of being in scope are added up:
the best logit, the mean cosine to the nearest training rows of the label about to be claimed, and, when the head was
fitted with out-of-scope rows, the best logit's distance to theirs. The distance of the sum from `threshold` becomes an
out-of-scope score in [0, 1]: from 0.5 on nothing fits.

Invariant: a row's result depends on that row only. Fitting is `agentops.train.router`'s business.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentops.errors import ModelError
from agentops.models.calibration import softmax

FORMAT = 1
NEAREST = 5  # training rows whose mean cosine counts
_ARRAYS = "head.npz"
_FIELDS = "head.json"


@dataclass(frozen=True)
class Head:
    """A fitted head.

    Attributes:
        labels: (k,) names, sorted; column i of every array is `labels[i]`.
        encoder: digest of the encoder whose vectors it was fitted on.
        weight: (k, d) float32; one more row when `outside`.
        bias: (k,) or (k + 1,) float32.
        rows: (m, d) float32 training vectors, grouped by label in the order of `labels`.
        starts: (k + 1,) where each label's rows start.
        means: (signals,) of the in-scope signals on held-out rows.
        deviations: (signals,) standard deviations of the same.
        threshold: sum of standardised signals below which nothing fits.
        temperature: of the softmax, above 0.
        outside: whether the last row of `weight` scores out-of-scope messages.
    """

    labels: tuple[str, ...]
    encoder: str
    weight: np.ndarray
    bias: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    threshold: float
    temperature: float
    outside: bool

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """(n, k) before temperature; (n, k + 1) when `outside`."""
        return vectors @ self.weight.T + self.bias

    def probabilities(self, vectors: np.ndarray) -> np.ndarray:
        """(n, k) calibrated probabilities of the labels for (n, d) unit vectors, given that the message is in scope."""
        return softmax(self.logits(vectors)[:, : len(self.labels)], self.temperature)

    def decide(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`probabilities`, and (n,) out-of-scope scores in [0, 1]: 0.5 at the fitted threshold."""
        logits = self.logits(vectors)
        scope = ((self._signals(vectors, logits) - self.means) / self.deviations).sum(axis=1)
        outside = 1 / (1 + np.exp(np.clip(scope - self.threshold, -50, 50)))
        return softmax(logits[:, : len(self.labels)], self.temperature), outside

    def signals(self, vectors: np.ndarray) -> np.ndarray:
        """(n, 2) or, when `outside`, (n, 3): best logit, mean cosine to that label's nearest rows, best - outside."""
        return self._signals(vectors, self.logits(vectors))

    def _signals(self, vectors: np.ndarray, logits: np.ndarray) -> np.ndarray:
        inside = logits[:, : len(self.labels)]
        best = inside.argmax(axis=1) if len(inside) else np.zeros(0, int)
        top = inside[np.arange(len(inside)), best]
        near = np.zeros(len(inside))
        for label in np.unique(best):
            members = best == label
            cosines = vectors[members] @ self.rows[self.starts[label] : self.starts[label + 1]].T
            count = min(NEAREST, cosines.shape[1])
            near[members] = np.partition(cosines, -count, axis=1)[:, -count:].mean(axis=1)
        return np.stack([top, near, *([top - logits[:, -1]] if self.outside else [])], axis=1)

    def save(self, folder: Path) -> None:
        """Write head.npz and head.json into `folder`, created when missing. Equal heads give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _ARRAYS).open("wb") as file:
            np.savez(
                file,
                weight=self.weight.astype(np.float32),
                bias=self.bias.astype(np.float32),
                rows=self.rows.astype(np.float16),  # cosines to three digits; half the size
                starts=self.starts.astype(np.int64),
                means=self.means.astype(np.float64),
                deviations=self.deviations.astype(np.float64),
            )
        fields = {
            "format": FORMAT,
            "labels": list(self.labels),
            "encoder": self.encoder,
            "threshold": self.threshold,
            "temperature": self.temperature,
            "outside": self.outside,
        }
        (folder / _FIELDS).write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Head":
        """Read what `save` wrote.

        Raises:
            ModelError: a file is missing, damaged or of another format; names the folder.
        """
        try:
            fields: dict[str, Any] = json.loads((folder / _FIELDS).read_text(encoding="utf-8"))
            with (folder / _ARRAYS).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            arrays["rows"] = arrays["rows"].astype(np.float32)
            labels = tuple(fields.pop("labels"))
            head = cls(labels=labels, **fields, **arrays)
            head.check()
        except Exception as error:  # noqa: BLE001 - zip, JSON, array and type errors of a damaged file share no base class
            raise ModelError(
                f"the router head in {str(folder)!r} cannot be read ({type(error).__name__}: {error}): "
                "train the router again"
            ) from None
        return head

    def check(self) -> None:
        """Raise ValueError unless every array has the shape the labels demand and every number is finite."""
        k, d = len(self.labels), self.weight.shape[-1]
        signals = 3 if self.outside else 2
        shapes = {
            "weight": (k + self.outside, d),
            "bias": (k + self.outside,),
            "rows": (len(self.rows), d),
            "starts": (k + 1,),
            "means": (signals,),
            "deviations": (signals,),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value.shape != shape or not np.isfinite(value).all():
                raise ValueError(f"{name} has shape {value.shape}, not {shape}, or holds NaN")
        if not k or len(set(self.labels)) < k or (np.diff(self.starts) < 1).any() or self.starts[-1] != len(self.rows):
            raise ValueError("labels and training rows do not fit together")
        if not (self.temperature > 0 and (self.deviations > 0).all() and np.isfinite(self.threshold)):
            raise ValueError("temperature, deviations or threshold out of range")
