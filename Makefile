# The two commands a newcomer needs are `make demo` and `make test`; each sets up .venv by itself.
PYTHON ?= python3.11
BIN := .venv/bin
RUNS ?= 5000

.PHONY: demo test check unit fuzz simulate chaos bench clean help

help:
	@echo 'make demo    watch a scripted agent mend a small project through harness and worker'
	@echo 'make test    linters, type checkers, layering, tests (what CI runs, with the fuzzers)'
	@echo 'make check   linters and type checkers only'
	@echo 'make unit    tests only; ARGS="-k name" selects'
	@echo 'make fuzz    each fuzz target for a bounded number of inputs; RUNS=1000000 TARGET=connection'
	@echo 'make simulate  whole peers over a network of faults on a virtual clock; SEEDS=10000, and a cut at every byte'
	@echo 'make chaos   real processes under load that are cut, stopped and killed; SEEDS=50'
	@echo 'make bench   speed as ratios to raw baselines'

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The demo needs little, and should be quick to see; all else comes with the checks.
.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[demo]'
	@touch $@

.venv/.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	@touch $@ .venv/.demo

demo: .venv/.demo
	@$(BIN)/rlm-harness demo

test: check unit

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright --level error

# The framework that drives the harness in tests needs packages in other versions than ours: half a gigabyte of its own.
.venv/.verifiers: tests/harness/acp/verifiers.txt | $(BIN)/python
	$(PYTHON) -m venv .venv/verifiers
	.venv/verifiers/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

unit: .venv/.ready .venv/.verifiers
	$(BIN)/pytest $(ARGS)

# Some machines have no atheris: it is installed when it is first needed, and by this target only.
.venv/.fuzz: .venv/.ready
	$(INSTALL) '.[fuzz]'
	@touch $@

fuzz: .venv/.fuzz
	$(BIN)/python -m fuzz --runs $(RUNS) $(if $(TARGET),--target $(TARGET)) $(ARGS)

simulate: SEEDS ?= 1000
simulate: .venv/.ready
	$(BIN)/python -m rlm_wire.testing.simulation --seeds $(SEEDS)
	RLM_WIRE_EVERY_BYTE=1 $(BIN)/pytest -q tests/simulation/test_every_cut.py

chaos: SEEDS ?= 10
chaos: .venv/.ready
	RLM_CHAOS_SEEDS=$(SEEDS) $(BIN)/pytest -q tests/chaos/test_chaos.py $(ARGS)

bench: .venv/.ready
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf .venv
