# The environment lives in .venv, is made on first use and reused after; it is rebuilt when the requirements change.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test lint docs bench bench-quick published results clean

demo: $(READY)
	$(VENV)/bin/spikegcl demo

# A process a core with one thread each is three times faster than one process; what threads share is tested with all of them.
test: $(READY) lint
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(PYTHON) -m pytest -n auto
	$(PYTHON) -m pytest -k 'kernel or thread'

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(READY)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bench: $(READY)
	$(PYTHON) -m benchmarks.run

bench-quick: $(READY)
	$(PYTHON) -m benchmarks.run --quick

published: $(READY)
	$(PYTHON) -m benchmarks.published

results: export SPIKEGCL_DATA ?= ../shared/data
results: $(READY)
	$(PYTHON) -m spikegcl reproduce all --draw-only --page docs/results.md

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
