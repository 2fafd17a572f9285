# What developers type; CI runs .ci/run, which does the same from nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types check clean

$(BIN)/activate: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable ".[lab,test,dev]"
	touch $@

demo: $(BIN)/activate
	$(BIN)/jupyter ivy demo

test: $(BIN)/activate
	$(BIN)/pytest

lint: $(BIN)/activate
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/activate
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
