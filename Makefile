# `make demo` and `make test` set up all they need in .venv, then do their work.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
READY  := $(VENV)/.ready
PIP    := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable
ORT    := ort.wasm.min.mjs ort-wasm-simd-threaded.mjs ort-wasm-simd-threaded.wasm
HASHES := blake2.js _blake.js _md.js _u64.js utils.js
RUNTIME := src/pflego/deploy/gateway/page/runtime/ort-wasm-simd-threaded.wasm
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

# Installed uncompiled: each module is compiled by its first import, and kept, so that no process does it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo web browser test quick lint style layers types tests fast thorough docs dist fuzz simulation coverage format bench lock audit clean

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25'  # half of the time of the pip of Python 3.11

$(BASE): $(BIN)/python pyproject.toml constraints.txt
	$(PIP) '.[report,plots]'
	touch $@

$(READY): $(BIN)/python pyproject.toml light/pyproject.toml constraints.txt
	$(PIP) '.[dev]' --editable ./light
	touch $(BASE) $@

demo: $(BASE)  ## twenty people with a pen pad: what federating gains and costs, and somebody new
	$(BIN)/python examples/demo.py

web: $(RUNTIME)  ## install onnxruntime-web and @noble/hashes, with npm, for clients in browsers

$(RUNTIME): web/package.json web/package-lock.json
	npm ci --prefix web --ignore-scripts --no-audit --no-fund --loglevel=error
	mkdir -p $(@D)
	cp $(addprefix web/node_modules/onnxruntime-web/dist/,$(ORT)) $(addprefix web/node_modules/@noble/hashes/,$(HASHES)) $(@D)/
	cp web/node_modules/@noble/hashes/LICENSE $(@D)/LICENSE-noble-hashes
	touch $@

browser: $(READY) $(RUNTIME)  ## draw digits in a browser, and personalise with others who are played here
	$(BIN)/python examples/browser.py

test: style layers  ## lint, types, tests: all that a change must pass
	@$(MAKE) --no-print-directory --jobs=2 types tests

quick: style layers  ## what one runs while editing: lint, types and all fast tests
	@$(MAKE) --no-print-directory --jobs=2 types fast

lint: style layers types  ## ruff, import-linter and mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(READY)
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(PYTEST) -m "not thorough"

fast: $(READY)
	$(PYTEST) -m "not slow and not thorough"

thorough: $(READY)  ## all tests, with every case of those that have many
	$(PYTEST)

docs: $(READY)  ## build the documentation as a site in site/, warnings as errors
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir website --doctree-dir .doctrees . site
	@echo "open site/index.html"

dist: $(READY) $(if $(shell command -v npm),$(RUNTIME))  ## build wheels and sdists of both distributions in dist/
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist light

fuzz: $(READY)  ## files, settings and arguments of every wrong kind, for long: EXAMPLES=2000 of each
	PFLEGO_FUZZ=$(or $(EXAMPLES),2000) $(PYTEST) tests/fuzz

simulation: $(READY)  ## install Ray too, so that Flower's simulation is tested
	$(PIP) '.[dev,simulation]' --editable ./light

coverage: $(READY)  ## the tests once more, and which lines they reach
	$(PYTEST) --cov --cov-report=term

format: $(READY)  ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure speed, as ratios within one run
	$(BIN)/python -m benchmarks

lock: $(READY)  ## write down the versions that are installed
	@{ sed -n '/^#/p' tested-versions.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > .tested-versions
	@mv .tested-versions tested-versions.txt

audit: $(READY)  ## look for known holes in what is installed, where an index of them can be reached
	$(PYTHON) -m venv .audit && .audit/bin/pip install --quiet pip-audit
	.audit/bin/pip-audit --requirement tested-versions.txt --no-deps --disable-pip

clean:  ## remove the set-up and everything made
	rm -rf $(VENV) web/node_modules $(dir $(RUNTIME)) site .doctrees dist .audit .bench .coverage .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
