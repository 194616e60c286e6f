"""recipe.toml: how each stage trains, read and checked before anything is loaded.

Invariant: a recipe that reads is complete and in range; an unknown key or a bad value is a TrainError that names the
file, the line and what is known. Gates and margins are not here: they belong to policies/release.toml.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentops.errors import TrainError

FOREIGN = ("pipeline", "harvest", "evaluate")  # tables that other stages read


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Machine(_Table):
    """Where training runs. `auto` measures nothing: it asks the hardware what it has."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    bf16: bool | Literal["auto"] = "auto"  # auto: CUDA that has it, or a CPU with AMX tiles
    threads: int = Field(0, ge=0, le=1024, description="torch threads; 0 leaves them as they are")


class RouterRecipe(_Table):
    """`[router]`: the head over the encoder."""

    router: str = "intent"  # folder under routers/
    seed: int = Field(0, ge=0)
    calibration_share: float = Field(0.2, ge=0, lt=1)


class _Gradient(_Table):
    """What every gradient stage has."""

    base: str = Field("", description="Hugging Face folder or id; empty = settings, then the packaged SmolLM2")
    steps: int = Field(20, ge=1, le=1_000_000)
    batch_size: int = Field(8, ge=1, le=4096, description="rows a step on each device")
    gradient_accumulation: int = Field(1, ge=1, le=1024)
    learning_rate: float = Field(2e-4, gt=0, le=1)
    weight_decay: float = Field(0.0, ge=0, le=1)
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    lora_r: int = Field(16, ge=0, le=512, description="0 trains all weights")
    lora_alpha: int = Field(32, ge=1, le=2048)
    lora_layers: int = Field(0, ge=0, le=1024, description="adapters on the last layers only; 0 = on all")
    gradient_checkpointing: bool = False
    seed: int = Field(0, ge=0)


class CausalRecipe(_Gradient):
    """`[router.causal]`: LoRA on one verbaliser token a message.

    The defaults are what 20 steps can use: on 22 intents, unseen wordings, accuracy was 0.40 with learning rate 2e-3
    and 16 rows a step, 0.72 with 6e-3 and 32; adapters on the last 10 of 30 layers cost a third less than on all.
    """

    steps: int = Field(20, ge=1, le=1_000_000)
    batch_size: int = Field(32, ge=1, le=4096)
    learning_rate: float = Field(5e-3, gt=0, le=1)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    lora_layers: int = Field(10, ge=0, le=1024)


class SftRecipe(_Gradient):
    """`[sft]`: whole episodes, loss on the assistant's turns only."""

    max_length: int = Field(0, ge=0, le=1_000_000, description="tokens; 0 takes the longest row")


class DpoRecipe(_Gradient):
    """`[dpo]`: step-level pairs, `sigmoid_norm` plus a little SFT on the chosen side."""

    learning_rate: float = Field(5e-5, gt=0, le=1)
    max_length: int = Field(0, ge=0, le=1_000_000)
    beta: float = Field(2.0, gt=0, le=100, description="length-normalised margins want far more than 0.1")
    sft_weight: float = Field(0.2, ge=0, le=10)


class GrpoRecipe(_Gradient):
    """`[grpo]`: plans written for a request, run in the environment on virtual time, rewarded by the verifier.

    `batch_size` counts completions, so it holds `batch_size / generations` prompts. Sampling is at temperature 1 with
    nothing cut off: anything else biases the ratio.
    """

    batch_size: int = Field(16, ge=2, le=4096)
    learning_rate: float = Field(1e-5, gt=0, le=1)
    schedule: Literal["linear", "cosine", "constant"] = "constant"
    generations: int = Field(8, ge=2, le=256, description="completions a prompt: one group")
    max_completion_length: int = Field(96, ge=4, le=100_000)
    max_prompt_length: int = Field(0, ge=0, le=1_000_000, description="tokens; 0 takes the longest row")
    scale_rewards: Literal["none", "batch"] = "none"  # "group" turns latency noise into unit variance
    beta: float = Field(0.0, ge=0, le=10, description="weight of the KL term to the base")
    resamples: int = Field(1, ge=0, le=20, description="new draws when no group of a step has two different rewards")
    latency_weight: float = Field(0.3, ge=0, le=0.3)
    process_weight: float = Field(0.1, ge=0, le=0.2)
    invalid_weight: float = Field(0.1, ge=0, le=0.2)
    latency_warmup_steps: int = Field(0, ge=0)
    free_s: float = Field(0.2, ge=0, description="latency that costs nothing, where a row brings none")
    max_s: float = Field(5.0, gt=0, description="latency from which the whole latency weight is lost")
    deadline_s: float = Field(30.0, gt=0, description="past this an episode counts as failed")
    ms_per_token: float = Field(10.0, ge=0, description="virtual writing time of a plan")


class Recipe(_Table):
    """One recipe.toml. A stage that is None has no table and cannot be run from this recipe."""

    router: RouterRecipe = RouterRecipe()
    causal: CausalRecipe | None = None
    sft: SftRecipe | None = None
    dpo: DpoRecipe | None = None
    grpo: GrpoRecipe | None = None
    machine: Machine = Machine()
    path: str = ""


R = TypeVar("R", bound=_Table)

STAGES: dict[str, type[_Table]] = {
    "router": RouterRecipe,
    "router.causal": CausalRecipe,
    "sft": SftRecipe,
    "dpo": DpoRecipe,
    "grpo": GrpoRecipe,
    "machine": Machine,
}


def read(file: Path) -> Recipe:
    """The recipe in `file`.

    Raises:
        TrainError: not readable, not TOML, or an unknown or bad key: names the file, the line and the known keys.
    """
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(f"recipe {str(file)!r} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise TrainError(f"recipe {str(file)!r} is not valid TOML: {error}") from None
    router = dict(table.pop("router", {}))
    found: dict[str, Any] = {"router": router}
    if "causal" in router:
        found["router.causal"] = router.pop("causal")
    for name, content in table.items():
        if name in FOREIGN:
            continue
        if name not in STAGES:
            known = ", ".join(f"[{known}]" for known in sorted((*STAGES, *FOREIGN)))
            raise TrainError(f"{_place(file, text, name)}: {name!r} is not a table of a recipe; known: {known}")
        found[name] = content
    stages: dict[str, Any] = {"path": str(file)}
    for name, content in found.items():
        key = name.rpartition(".")[2]
        stages[key] = settings(STAGES[name], content, lambda at, name=name: _place(file, text, name, at))
    return Recipe(**stages)


def settings(kind: type[R], given: "Mapping[str, Any] | R", place: Any = None) -> R:
    """`given` (a table or already the model) as the settings `kind` of one stage.

    Args:
        kind: the stage's model, for example SftRecipe.
        given: a mapping of its keys, or an instance.
        place: from a key to the text that says where it stands; default: the stage's name.

    Raises:
        TrainError: an unknown key or a value out of range; names it and the known keys.
    """
    if isinstance(given, kind):
        return given
    stage = kind.__name__.removesuffix("Recipe").lower()
    where = place or (lambda key: f"recipe of {stage!r}")
    if not isinstance(given, Mapping):
        raise TrainError(f"{where('')}: expected a table, got {given!r}")
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(kind.model_fields))
            raise TrainError(f"{where(key)}: {key!r} is not a setting of this stage; known: {known}") from None
        raise TrainError(f"{where(key)}: {key} = {given.get(key)!r} is not allowed: {first['msg']}") from None


def _place(file: Path, text: str, table: str, key: str = "") -> str:
    """`file:line` of a key (or of its table's header) in the text of a recipe."""
    header, at, current = re.compile(r"\s*\[+\s*([\w.\s\"'-]+?)\s*\]+"), 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := header.match(line):
            current = match[1].replace(" ", "").replace('"', "").replace("'", "")
            if current == table:
                at = number
        elif key and current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return f"{file}:{number}"
        elif not current and re.match(rf"\s*[\"']?{re.escape(table)}[\"']?\s*[.=]", line):
            at = number
    return f"{file}:{at}" if at else str(file)
