# `make run` starts a whole console; `make test` proves it; `make check` is what a change must pass first.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test test-faults test-torch check format bench bench-cli bench-scheduler bench-logs bench-events bench-metrics screenshots clean

setup: .venv/requirements.installed

# The project itself is installed editable, for its two commands; what it needs comes from the pinned file alone.
# `compat` is a plain path entry: the default, an import hook, costs every start of Python 17 ms.
.venv/requirements.installed: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed (PYTHON=… names one)")'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo 'Installing what requirements.txt names: a minute or two the first time'
	$(BIN)/pip install --quiet --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	touch $@

.venv/requirements-dev.installed: .venv/requirements.installed requirements-dev.txt
	$(BIN)/pip install --quiet --requirement requirements-dev.txt
	touch $@

run: setup
	$(BIN)/python manage.py up $(UP)

# TESTS chooses tests and options: make test TESTS='tests/agent -k docker'
test: .venv/requirements-dev.installed
	tests/install
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --durations=15 $(TESTS)

# Kills, cuts, full disks, lost messages and clocks that jump, on real processes: `make test` runs the everyday part only.
test-faults: .venv/requirements-dev.installed
	tests/install
	FAULTS=whole $(BIN)/python -m pytest tests/faults --durations=15 $(TESTS)

# Real PyTorch in runs on two machines: in a virtual environment of its own, made from the Python that runs find.
TORCH_PYTHON := $(shell PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin command -v python3)

.venv-torch/installed: .venv/requirements-dev.installed
	test -x .venv-torch/bin/python || $(TORCH_PYTHON) -m venv --without-pip .venv-torch
	$(BIN)/pip --python .venv-torch/bin/python install --quiet torch==2.13.0
	touch $@

test-torch: .venv-torch/installed
	TORCH_PYTHON=$(CURDIR)/.venv-torch/bin/python $(BIN)/python -m pytest tests/torch_rendezvous.py $(TESTS)

# Needs no database, Redis or container engine.
check: .venv/requirements-dev.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py check
	DB_POOL_SIZE=0 $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

format: .venv/requirements-dev.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m bench.console $(BENCH)

bench-cli: setup
	$(BIN)/python -m bench.cli $(BENCH)

bench-scheduler: setup
	$(BIN)/python -m bench.scheduler $(BENCH)

bench-events: setup
	$(BIN)/python -m bench.events $(BENCH)

bench-metrics: setup
	$(BIN)/python -m bench.metrics $(BENCH)
	$(BIN)/python -m bench.idle_agents

bench-logs: .venv/requirements-dev.installed
	tests/install
	$(BIN)/python -m bench.logs $(BENCH)

screenshots: .venv/requirements-dev.installed
	tests/install
	$(BIN)/python -m bench.screenshots

clean:
	rm -rf .venv .venv-torch build screenshots staticfiles *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
