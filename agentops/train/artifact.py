"""Base models in, trained weights out: loading, and a folder that is complete or not there.

Invariant: `save` writes weights, tokenizer and manifest.json into a new folder that appears under its name in one
rename. No file of it holds a path of the machine that wrote it, so equal runs give equal bytes.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentops.errors import TrainError

LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets")


def must_be_new(out: Path) -> None:
    """Asked before a run, not after it.

    Raises:
        TrainError: `out` exists and is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TrainError(
            f"{str(out)!r} exists and is not empty: an artifact is never written over, choose a new folder"
        )


def load(base: Path, adapter: Path | None = None) -> tuple[Any, Any]:
    """Model (float32, trainable) and tokenizer of a base folder, with an adapter to train on when given.

    Raises:
        TrainError: the folder does not hold a causal language model, or has no chat template or padding token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (base / "config.json").is_file():
        raise TrainError(f"base {base.name!r} has no config.json: give the folder of a Hugging Face causal model")
    model: Any
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(base, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(base, dtype="float32", local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise TrainError(f"base {base.name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not tokenizer.chat_template:
        raise TrainError(f"base {base.name!r} has no chat template: set tokenizer.chat_template and save it again")
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        # With pad = eos the end of a turn would be masked as padding and never learned.
        raise TrainError(f"base {base.name!r}: pad_token {tokenizer.pad_token!r} must be set and differ from eos_token")
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model, tokenizer


def trainable_digest(model: Any) -> str:
    """SHA-256 of the weights that train, for "did anything change"."""
    hasher = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hasher.update(name.encode())
            hasher.update(parameter.detach().cpu().contiguous().float().numpy().tobytes())
    return hasher.hexdigest()


def must_differ(before: str, model: Any) -> None:
    """Refuse a run that changed nothing: the commonest expensive failure is not noticed by a loss curve.

    Raises:
        TrainError: the weights that train are what they were before.
    """
    if trainable_digest(model) == before:
        raise TrainError("training changed no weight: the gradients were all zero, so there is nothing to release")


def versions() -> dict[str, str]:
    """Versions of the libraries that decide what a run computes."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def manifest(
    stage: str,
    recipe: Any,
    *,
    base_digest: str,
    dataset: Mapping[str, Any],
    machine: Any,
    curve: Sequence[Mapping[str, float]],
    **more: Any,
) -> dict[str, Any]:
    """What a trained artifact says of itself. No wall-clock time and no path, so that it reproduces."""
    timings = ("runtime", "_per_second", "step_time")
    return {
        "kind": "adapter" if recipe.lora_r or more.get("adapter") else "model",
        "stage": stage,
        "base": base_digest,
        "dataset": dict(dataset),
        "recipe": recipe.model_dump(exclude={"base"}),  # may be a path; the digest says which base it was
        "seed": recipe.seed,
        "steps": len(curve),
        "loss": [round(entry["loss"], 6) for entry in curve],
        "last": {
            name: round(value, 6)
            for name, value in (curve[-1] if curve else {}).items()
            if not any(word in name for word in timings)
        },
        "machine": {"device": machine.device, "bf16": machine.bf16},
        "versions": versions(),
        **more,
    }


def save(
    model: Any,
    tokenizer: Any,
    out: Path,
    content: Mapping[str, Any],
    more: Callable[[Path], None] | None = None,
) -> dict[str, Any]:
    """Write weights, tokenizer and manifest.json to `out`, all or nothing; returns the manifest.

    Args:
        model: what was trained; of a PEFT model only the adapter is written.
        tokenizer: written beside it, with its chat template.
        out: must not exist, or be empty.
        content: the manifest.
        more: writes further files into the folder before it appears.

    Raises:
        TrainError: `out` exists and is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise TrainError(
            f"{str(out)!r} exists and is not empty: an artifact is never written over, choose a new folder"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        if hasattr(model, "peft_config"):  # DPO adds a frozen copy, "ref", which is not part of the result
            model.save_pretrained(temporary, selected_adapters=["default"])
        else:
            model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        if more is not None:
            more(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # PEFT's card names the base by its path on this machine
        adapter = temporary / "adapter_config.json"
        if adapter.is_file():
            settings = json.loads(adapter.read_text(encoding="utf-8"))
            settings["base_model_name_or_path"] = content["base"]
            if isinstance(settings.get("target_modules"), list):
                settings["target_modules"].sort()  # PEFT writes a set, whose order changes from run to run
            adapter.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        settings_file = temporary / "config.json"
        if settings_file.is_file():
            settings = json.loads(settings_file.read_text(encoding="utf-8"))
            settings.pop("_name_or_path", None)
            settings_file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        written = dict(content)
        text = json.dumps(written, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (temporary / "manifest.json").write_text(text + "\n", encoding="utf-8")
        if out.exists():
            out.rmdir()
        temporary.chmod(0o755)
        os.replace(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return written
