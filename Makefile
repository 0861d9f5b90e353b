# One command per question; CONTRIBUTING.md lists them. Everything happens in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt README.md $(wildcard _package/* augment/*.py datastores/*.py train/*.py tools/*.py)

.PHONY: demo test check lint types contracts tests soak format develop clean

demo: $(VENV)/demo-installed  ## the whole main job on real images, in under a minute
	$(BIN)/headrace demo --out demo

test: check tests  ## everything that CI runs

check: lint types contracts  ## all but the tests

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev-installed
	$(BIN)/mypy

contracts: $(VENV)/dev-installed
	$(BIN)/lint-imports

tests: $(VENV)/dev-installed
	$(BIN)/python -m pytest

soak: $(VENV)/dev-installed  ## the long runs that CI leaves out
	$(BIN)/python -m pytest -m soak

format: $(VENV)/dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An editable install for daily work: edits are live; say `make develop` again after adding or renaming a file.
develop: $(VENV)/dev-installed
	$(BIN)/python -m pip install --quiet --no-deps --editable . --config-settings editable_mode=strict

# build/ keeps modules that were deleted since, and setuptools would ship them again.
$(VENV)/%-installed: $(SOURCES) | $(BIN)/python
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ".[$*]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build demo *.egg-info
