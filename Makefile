# `make demo` and `make test` set up all they need in .venv, then do their work.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
READY  := $(VENV)/.ready
PIP    := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Installed uncompiled: each module is compiled by its first import, and kept, so that no process does it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test coverage lint format bench clean

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) '.[report]'
	touch $@

$(READY): $(BASE)
	$(PIP) '.[dev]'
	touch $@

demo: $(BASE)  ## train a federation of handwritten digits and show what federating gains and costs
	$(BIN)/python examples/demo.py

test: lint  ## every check: lint, types, tests
	$(PYTEST)

coverage: $(READY)  ## the tests once more, and which lines they reach
	$(PYTEST) --cov --cov-report=term

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure speed, as ratios within one run
	$(BIN)/python -m benchmarks

clean:  ## remove the set-up and everything made
	rm -rf $(VENV) .bench .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
