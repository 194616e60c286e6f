"""A small causal language model as a label scorer: one forward pass, one token per label.

Every label owns one token (its verbaliser, mostly a word of the label). A message is put after a fixed system prompt
whose keys and values are computed once; the probabilities of the labels are the softmax over the logits of their
tokens at the position where the answer would start. Training uses the same functions (`prompt_messages`,
`completion`), so what is trained is what is scored.

Invariant: scores do not depend on what else is in the batch, and a message cannot leave its place in the prompt.
This module trains nothing; torch and transformers load inside functions.
"""

import contextlib
import copy
import functools
import json
import re
import string
import warnings
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from agentops.errors import ModelError, require
from agentops.models import weights
from agentops.types import OUT_OF_SCOPE, Message

SYSTEM = "Name the topic of the customer's message in one word"
LISTED = 24  # labels: longer lists are left out of the prompt; 150 words would double the cost of a message
TEXT_BYTES = 512  # a byte-level vocabulary makes at most one token of a byte: the bound on a message's cost
LABELS_FILE = "labels.json"
BATCH = 16
_EMPTY = frozenset(
    [
        "about",
        "after",
        "and",
        "are",
        "but",
        "can",
        "does",
        "for",
        "from",
        "have",
        "how",
        "into",
        "not",
        "over",
        "that",
        "the",
        "this",
        "was",
        "what",
        "when",
        "why",
        "with",
        "you",
    ]
)


Stamp = tuple[tuple[str, int, int], ...]


# ------------------------------------------------------------------ the prompt format, shared with training


def verbalisers(labels: Sequence[str], tokenizer: Any) -> dict[str, str]:
    """The answer word of each label, OUT_OF_SCOPE last and always present; deterministic in the set of labels.

    The rarest words of a label come first, words that are one whole token before others; a label none of whose words
    is free gets a letter. The first token of every answer is distinct, in the place where the answer starts.

    Args:
        labels: label names; `cancel_order` has the words "cancel" and "order".
        tokenizer: a Hugging Face tokenizer with a chat template.

    Raises:
        ModelError: no labels, or more than the vocabulary can tell apart.
    """
    names = [*sorted({label for label in labels if label != OUT_OF_SCOPE}), OUT_OF_SCOPE]
    if len(names) < 2:
        raise ModelError("a label scorer needs at least one label: give the labels of the router")
    split = {name: re.findall(r"[a-z]{3,}", name.lower()) for name in names}
    split[OUT_OF_SCOPE] = ["other", "none"]
    frequency = Counter(word for words in split.values() for word in set(words))
    answer = _AnswerTokens(tokenizer)
    words: dict[str, str] = {}
    taken: set[int] = set()
    for name in (OUT_OF_SCOPE, *names[:-1]):  # so that no label takes "other"
        rank = lambda word: (word in _EMPTY, frequency[word], answer.parts(f" {word}"), -len(word), word)  # noqa: E731
        candidates = [f" {word}" for word in sorted(split[name], key=rank)]
        letters = ("".join(pair) for size in (1, 2) for pair in product(string.ascii_uppercase, repeat=size))
        for candidate in (*candidates, *letters):
            token = answer.first(candidate)
            if token is not None and token not in taken:
                words[name] = candidate
                taken.add(token)
                break
        else:
            raise ModelError(
                f"label {name!r}: no free answer token is left among {len(names)} labels; use fewer labels"
            )
    return {name: words[name] for name in names}


def prompt_messages(text: str, words: Mapping[str, str]) -> list[Message]:
    """System and user message for one text; `words` as `verbalisers` gives them."""
    system = SYSTEM
    if len(words) <= LISTED:
        system += ":" + ",".join(word if word.startswith(" ") else f" {word}" for word in words.values())
    return [{"role": "system", "content": system + "."}, {"role": "user", "content": clean(text)}]


def completion(label: str, words: Mapping[str, str]) -> str:
    """What the model must answer for `label`.

    Raises:
        ModelError: an unknown label.
    """
    if label not in words:
        raise ModelError(f"label {label!r} is unknown; labels: {', '.join(words)}")
    return words[label]


def clean(text: str) -> str:
    """`text` as it stands in the prompt: one line, at most TEXT_BYTES bytes, no control tokens of chat templates."""
    cut = text[:TEXT_BYTES].encode("utf-8", errors="replace")[:TEXT_BYTES].decode("utf-8", errors="ignore")
    cut = re.sub(r"<(?=[|/s])|(?<=[|/])>|\[(?=/?INST)", " ", cut)  # <|im_end|>, </s>, [INST]: never parsed as control
    return " ".join(cut.split())


def save_labels(folder: Path, words: Mapping[str, str], prior: Sequence[float] = (), temperature: float = 1.0) -> None:
    """Write the labels of a scorer beside its adapter: answer words, mean log-probabilities, temperature."""
    content = {"words": dict(words), "prior": [float(value) for value in prior], "temperature": float(temperature)}
    (folder / LABELS_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


class _AnswerTokens:
    """First token of an answer, in its real place after the prompt, whatever the template and tokenizer do to it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt_messages("hello", {})
        self._before = _ids(tokenizer, self._prompt)

    def first(self, answer: str) -> int | None:
        whole = _ids(self._tokenizer, [*self._prompt, {"role": "assistant", "content": answer}], prompt=False)
        same = whole[: len(self._before)] == self._before and len(whole) > len(self._before)
        return whole[len(self._before)] if same else None

    def parts(self, answer: str) -> int:
        return len(self._tokenizer(answer, add_special_tokens=False)["input_ids"])


def _ids(tokenizer: Any, messages: Sequence[Message], prompt: bool = True) -> list[int]:
    return tokenizer.apply_chat_template(list(messages), add_generation_prompt=prompt, tokenize=True, return_dict=False)


# ------------------------------------------------------------------ scoring


@dataclass(frozen=True)
class CausalLabels:
    """A loaded scorer. Column i of every score is `labels[i]`; OUT_OF_SCOPE is the last column."""

    model: Any
    tokenizer: Any
    words: Mapping[str, str]
    prior: np.ndarray  # (n_labels,) mean log-probabilities to subtract, zeros when not calibrated
    temperature: float = 1.0

    @classmethod
    def load(cls, folder: str | Path = "", adapter: Path | None = None, labels: Sequence[str] = ()) -> "CausalLabels":
        """Load a model folder ("" = the packaged SmolLM2), merged with a LoRA adapter when one is given.

        Args:
            folder: Hugging Face folder or id.
            adapter: folder with a PEFT adapter and labels.json, or only labels.json.
            labels: the labels, when there is no labels.json.

        Raises:
            ModelError: missing or damaged files, or neither labels.json nor labels.
            MissingExtra: torch, transformers or peft is not installed.
        """
        names = tuple(sorted(set(labels)))
        return _load(str(folder), None if adapter is None else str(adapter), names, _stamp(adapter))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.words)

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Probabilities of shape (n, n_labels), rows sum to 1, float64."""
        logits = (self._log_probabilities(texts) - self.prior) / self.temperature
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True)) if len(texts) else logits
        return exponentials / exponentials.sum(axis=1, keepdims=True) if len(texts) else logits

    def calibrated(self, texts: Sequence[str]) -> "CausalLabels":
        """This scorer with its bias towards some answer words removed, estimated on unlabelled texts of all kinds.

        Batch calibration (Zhou et al. 2023): the mean log-probability of each label is subtracted.

        Raises:
            ModelError: no texts.
        """
        if not texts:
            raise ModelError("calibration needs texts: give some of every label")
        return replace(self, prior=self._log_probabilities(texts).mean(axis=0))

    def save(self, folder: Path) -> None:
        """Write labels.json, which `load` reads, into `folder`."""
        save_labels(folder, self.words, self.prior.tolist(), self.temperature)

    def _log_probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """(n, n_labels) log-softmax over the answer tokens, before prior and temperature."""
        import torch

        out = np.zeros((len(texts), len(self.words)))
        encoded = [_ids(self.tokenizer, prompt_messages(text, self.words)) for text in texts]
        prefix = self._prefix
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row]))
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                logits = self._logits([encoded[row][len(prefix) :] for row in rows])
                out[rows] = torch.log_softmax(logits.double(), dim=-1).numpy()
        return out

    def _logits(self, suffixes: Sequence[Sequence[int]]) -> Any:
        import torch

        width = max(map(len, suffixes))
        ids = torch.tensor([[*suffix, *[0] * (width - len(suffix))] for suffix in suffixes])
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(len(suffixes))
        # Padding on the right: under causal attention no real token sees it, so no mask is needed.
        hidden = self.model.get_decoder()(ids, cache=cache, use_cache=True).last_hidden_state
        last = hidden[torch.arange(len(suffixes)), torch.tensor([len(suffix) - 1 for suffix in suffixes])]
        return last @ self._answers.T

    @functools.cached_property
    def _prefix(self) -> list[int]:
        """Tokens every prompt starts with: found by comparing two prompts, so it holds for any chat template."""
        one, other = (_ids(self.tokenizer, prompt_messages(text, self.words)) for text in ("a", "Zebra"))
        same = next(place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        return one[: max(1, same - 1)]  # one less: the token before a text may merge with how the text begins

    @functools.cached_property
    def _cache(self) -> Any:
        import torch

        with torch.inference_mode():
            return self.model.get_decoder()(torch.tensor([self._prefix]), use_cache=True).cache

    @functools.cached_property
    def _answers(self) -> Any:
        """(n_labels, hidden) rows of the output embedding: the other 49,000 logits are never computed."""
        answer = _AnswerTokens(self.tokenizer)
        tokens = [answer.first(word) for word in self.words.values()]
        if None in tokens or len(set(tokens)) < len(tokens):
            raise ModelError("the answer words in labels.json belong to another tokenizer: train the adapter again")
        return self.model.get_output_embeddings().weight.detach()[tokens]


@functools.lru_cache(maxsize=3)  # a stable and a candidate adapter, and the plain model: 540 MB each
def _load(folder: str, adapter: str | None, labels: tuple[str, ...], stamp: Stamp) -> CausalLabels:
    for module in ("torch", "transformers"):
        require(module, "train")
    path = weights.causal(folder)
    stored = _read_labels(Path(adapter)) if adapter else {}
    with quiet():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = AutoModelForCausalLM.from_pretrained(path)
            if adapter and (Path(adapter) / "adapter_config.json").is_file():
                model = require("peft", "train").PeftModel.from_pretrained(model, adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(
                f"the language model {str(path)!r} (adapter: {adapter!r}) does not load ({type(error).__name__}: "
                f"{str(error)[:200]}): check the folders, or train the adapter for this model again"
            ) from error
    words = stored.get("words") or verbalisers(labels, tokenizer)
    prior = np.asarray(stored.get("prior") or np.zeros(len(words)), dtype=np.float64)
    if prior.shape != (len(words),):
        raise ModelError(f"{LABELS_FILE} has {len(words)} labels but {len(prior)} priors: train the adapter again")
    return CausalLabels(model.eval(), tokenizer, words, prior, float(stored.get("temperature", 1.0)))


def _stamp(adapter: Path | None) -> Stamp:
    """Changes when the adapter's files do: a folder that was trained again is loaded again."""
    if adapter is None or not adapter.is_dir():
        return ()
    files = sorted(path for path in adapter.iterdir() if path.is_file())
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def _read_labels(folder: Path) -> dict[str, Any]:
    file = folder / LABELS_FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if not stored["words"] or not stored["temperature"] > 0:
            raise ValueError("no words or no temperature")
    except FileNotFoundError:
        if (folder / "adapter_config.json").is_file():
            return {}
        raise ModelError(f"{str(folder)!r} has neither {LABELS_FILE} nor an adapter: give a trained folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{str(file)!r} is damaged ({error}): train the adapter again") from None
    return stored


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No progress bars and deprecation notes of transformers while weights load: only the command line speaks."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT 0.21 asks transformers 5.24 for an old name
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
