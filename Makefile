# Needs Python 3.11 or newer, make and pip; everything else goes into .venv.
#   make demo       plan and train a transformer on 2 local processes
#   make bench-runtime   the runtime against layouts written by hand, on 1, 2 and 4 local processes
#   make test       lint, then every test that is not marked slow
# Variables: PYTHON (interpreter to build .venv with), WORKERS (test processes), PYTEST_ARGS.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

WORKERS ?= 2
PYTEST_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.setup-stamp
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help setup demo test test-slow coverage bench-runtime lint format clean

help:
	@echo "targets: setup demo test test-slow coverage bench-runtime lint format clean"

setup: $(STAMP)

# setuptools comes first, pinned, so that the editable build needs no isolated download of its own.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python="$(PYTHON)"; \
	  for candidate in python3 python3.13 python3.12 python3.11 python; do \
	    [ -z "$$python" ] || break; \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      python="$$candidate"; \
	    fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "no Python 3.11 or newer found; name one: make setup PYTHON=/path/to/python" >&2; exit 1; \
	  fi; \
	  echo "creating .venv with $$("$$python" --version)"; \
	  "$$python" -m venv .venv 2>/dev/null || { \
	    "$$python" -m venv --clear --without-pip .venv; \
	    "$$python" -m pip --python $(BIN)/python install --quiet pip; }; \
	fi
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev,hf,report]'
	@touch $@

demo: setup
	$(BIN)/python -m autopar.demo

# loadfile keeps one file's tests in one process: module fixtures run once, and at most WORKERS gloo worlds exist.
test: lint
	$(PYTEST) -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# One process: a slow test starts a world of up to 8 processes by itself.
test-slow: setup
	$(PYTEST) -m slow $(PYTEST_ARGS)

# Writes docs/coverage.md: every family traced, planned and trained on simulated meshes.
coverage: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.families

# Interleaved pairs: half an hour on a small machine that does nothing else.
bench-runtime: setup
	$(BIN)/python -m benchmarks.runtime

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
