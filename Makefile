# Daily commands. `make` alone lists them. Everything is installed into .venv; the first use of a command does that.

PYTHON ?= python3
# The tested version. An open range would pull gigabytes of CUDA libraries where none is used.
TORCH ?= torch==2.13.0
TASK ?= My email is marta.haas@example.org. Where is my newest order?
export TASK

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Static tools don't see the folders' import names through an editable install, so they look at an installed copy.
COPY := .mypy-target
ROOMS := tools|decoding|speculator|traces

.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm lint format types imports check-copy bench docs pocket pocket-drafts dev clean
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed ## Install and run the built-in agent on a task (TASK="..." for your own)
	@$(BIN)/agent run shop "$$TASK"

test: lint types imports ## Run every check: lint, types, import rule, tests (PYTEST="-k name" for some)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

test-vllm: $(VENV)/.developing ## Run the tests that need a real vLLM (installs it once into the user's cache, 3.5 GB)
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" scripts/install_vllm.sh
	AGENT_RUNTIME_TEST_VLLM=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/server/test_server_vllm.py tests/server/test_server_transformers.py $(PYTEST)

lint: $(VENV)/.developing ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.developing ## Fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: check-copy ## Check types (mypy --strict) on an installed copy
	cd $(COPY) && ../$(BIN)/mypy --cache-dir ../.mypy_cache -p agent_runtime \
		| sed -E 's#^agent_runtime/($(ROOMS))/#\1/#'

imports: check-copy ## Check which room may import which
	cd $(COPY) && ../$(BIN)/lint-imports --cache-dir ../.import_linter_cache

check-copy: $(VENV)/.developing
	@rm -rf $(COPY) build/lib build/bdist.*
	@$(PIP) --no-deps --target $(COPY) .
	@cp pyproject.toml $(COPY)

bench: $(VENV)/.installed ## Measure what speculation saves in the demo (TASKS=30)
	$(BIN)/agent bench speculate shop --tasks $(or $(TASKS),30)

docs: $(VENV)/.installed ## Write the generated pages of docs/
	$(BIN)/python -m agent_runtime.cli.pages docs/cli.md

pocket: $(VENV)/.installed ## Train the demo's model from its seed (ARGS="--minutes 60"; see docs/pocket.md)
	$(BIN)/python scripts/train_pocket.py --publish agent_runtime/demo/pocket $(ARGS)

pocket-drafts: $(VENV)/.installed ## Train the drafts of the demo's model (ARGS="medusa"; see docs/drafts.md)
	$(BIN)/python scripts/train_pocket_drafts.py $(ARGS)

dev: $(VENV)/.developing ## Install so that editors and type checkers see the rooms as they are imported
	$(PIP) --editable ".[dev]" --config-settings editable_mode=strict

clean: ## Remove the environment and everything built
	rm -rf $(VENV) $(COPY) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "installing into $(VENV) (once; torch is large)" >&2
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	$(PIP) --editable .
	@touch $@

$(VENV)/.developing: pyproject.toml | $(VENV)/.torch
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.installed
