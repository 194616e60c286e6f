from pathlib import Path

import pytest

from agentops.errors import TrainError
from agentops.train import recipe


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "recipe.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_recipe_reads_with_defaults_for_what_it_leaves_out(tmp_path: Path) -> None:
    read = recipe.read(
        write(tmp_path, '[pipeline]\nname = "x"\n[router]\n[router.causal]\nsteps = 12\n[grpo]\ngenerations = 4\n')
    )
    assert read.causal is not None
    assert read.causal.steps == 12
    assert read.causal.batch_size == 32
    assert read.grpo is not None
    assert read.grpo.scale_rewards == "none"
    assert read.sft is None  # no table: the stage cannot be run from this recipe


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("[sft]\nsteps = 4\nlearning_rte = 1e-4\n", ":3", "known: base, batch_size"),
        ("[sft]\nsteps = 4\n\n[grpo]\nsteps = 0\n", ":5", "steps = 0 is not allowed"),
        ("[sft]\n\n[gpro]\nsteps = 1\n", ":3", "'gpro' is not a table of a recipe"),
        ("[router.causal]\nlora_r = 'many'\n", ":2", "lora_r = 'many'"),
        ("[dpo]\nbeta = nan\n", ":2", "beta"),
        ("[sft]\nsteps = true\n", ":2", "steps = True"),
        ("[grpo]\nlatency_weight = 0.9\n", ":2", "latency_weight = 0.9"),
        ("sft = 3\n", ":1", "expected a table"),
        ("[sft\n", "recipe.toml", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_line_and_rule(tmp_path: Path, text: str, place: str, says: str) -> None:
    with pytest.raises(TrainError) as caught:
        recipe.read(write(tmp_path, text))
    assert f"recipe.toml{place}" in str(caught.value) or place == "recipe.toml"
    assert says in str(caught.value)
    assert "recipe.toml" in str(caught.value)


def test_a_missing_recipe_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot be read"):
        recipe.read(tmp_path / "none.toml")


def test_the_reference_pipelines_recipe_reads(repo: Path) -> None:
    files = sorted(repo.glob("pipelines/*/recipe.toml"))
    if not files:
        pytest.skip("the reference project has no pipeline yet")
    for file in files:
        assert recipe.read(file).causal is not None


def test_a_stage_takes_a_table_or_its_model() -> None:
    table = recipe.settings(recipe.SftRecipe, {"steps": 3})
    assert recipe.settings(recipe.SftRecipe, table) is table
    with pytest.raises(TrainError, match="recipe of 'sft': 'stps' is not a setting"):
        recipe.settings(recipe.SftRecipe, {"stps": 3})
