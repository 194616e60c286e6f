"""Sentence encoder: texts to unit vectors through ONNX Runtime (all-MiniLM-L6-v2, int8, by default).

Invariant: the vector of a text does not depend on the texts embedded with it, and costs a bounded amount of work
whatever the text is (characters are cut before tokenising, tokens at 256). It fits nothing and knows no labels.
"""

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentops.errors import ModelError
from agentops.models import weights

MAX_TOKENS = 256
MAX_CHARACTERS = 4096  # more than 256 tokens of any script; a megabyte would take the tokenizer a second
BATCH = 32


class Encoder:
    """A loaded encoder. Thread-safe: one session serves all threads.

    Attributes:
        dimensions: length of a vector, 384 for MiniLM.
        digest: content hash of graph and tokenizer; vectors of different digests must not be mixed.
    """

    def __init__(self, files: weights.EncoderFiles, threads: int | None = None) -> None:
        """Load a graph and its tokenizer.

        Args:
            files: from `weights.encoder`.
            threads: of one inference; default 2, or 1 when OMP_NUM_THREADS is 1.

        Raises:
            ModelError: a file is damaged or the graph is not a sentence encoder; names the file and the rule.
        """
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or (1 if os.environ.get("OMP_NUM_THREADS") == "1" else 2)
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(str(files.onnx), options, providers=["CPUExecutionProvider"])
            self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:  # noqa: BLE001 - both libraries raise bare Exception for a file they cannot read
            raise ModelError(
                f"the encoder {str(files.onnx)!r} with {str(files.tokenizer)!r} cannot be read "
                f"({type(error).__name__}): a file is damaged, install its package again or fix the setting"
            ) from None
        self._inputs = {value.name for value in self._session.get_inputs()}
        shape = self._session.get_outputs()[0].shape
        known = {"input_ids", "attention_mask", "token_type_ids"}
        if not {"input_ids", "attention_mask"} <= self._inputs <= known or len(shape) != 3:
            raise ModelError(
                f"{str(files.onnx)!r} is not a sentence encoder: it needs inputs input_ids and attention_mask and an "
                f"output of shape (batch, tokens, width), it has {sorted(self._inputs)} and {shape}"
            )
        self.dimensions = int(shape[2])
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._files = files

    @functools.cached_property
    def digest(self) -> str:
        hasher = hashlib.sha256()
        for file in (self._files.onnx, self._files.tokenizer):
            with file.open("rb") as handle:
                hasher.update(hashlib.file_digest(handle, "sha256").digest())
        return f"sha256:{hasher.hexdigest()}"

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of `texts`: (n, dimensions) float32, each of length 1. Any string is accepted, also an empty one."""
        cut = [text[:MAX_CHARACTERS] for text in texts]
        distinct = list(dict.fromkeys(cut))
        if not distinct:
            return np.zeros((0, self.dimensions), np.float32)
        place = {text: row for row, text in enumerate(distinct)}
        return self._compute(distinct)[[place[text] for text in cut]]

    def _compute(self, texts: Sequence[str]) -> np.ndarray:
        clean = [text.encode("utf-8", errors="replace").decode("utf-8") for text in texts]  # lone surrogates
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(clean)]
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row]))
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._run([encoded[row] for row in rows])
        return vectors

    def _run(self, encoded: Sequence[Sequence[int]]) -> np.ndarray:
        ids = np.zeros((len(encoded), max(map(len, encoded))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feed: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = np.asarray(self._session.run(None, {name: feed[name] for name in self._inputs})[0])
        weight = mask[..., None].astype(np.float32)
        pooled = (hidden * weight).sum(axis=1) / weight.sum(axis=1)  # [CLS] and [SEP] are always there: never 0
        return pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)


@functools.lru_cache(maxsize=2)
def load(source: str | Path = "") -> Encoder:
    """The encoder at `source` ("" = the packaged MiniLM; a folder or hub id otherwise), loaded once a process.

    Raises:
        ModelError: weights are missing or damaged.
    """
    return Encoder(weights.encoder(str(source)))
