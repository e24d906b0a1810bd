# Everything starts here; see README.md. One virtual environment, .venv, from requirements.lock by plain pip.
PYTHON ?= python3.11
BIN := .venv/bin
# Installed means: installed from these very files. A second `make setup` does nothing.
STAMP := .venv/.installed-$(shell cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)

.PHONY: setup demo up down test e2e check nightly

setup: $(STAMP)

$(STAMP):
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there; install it, or say where it is: make PYTHON=<path> setup" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-*
	@touch $@

demo: setup
	$(BIN)/python -m examples.demo

up: setup
	$(BIN)/elastic up

down: setup
	$(BIN)/elastic down

test: setup
	$(BIN)/pytest -m "not e2e" -n 2 --dist loadfile

e2e: setup
	$(BIN)/pytest -m "e2e and not nightly"

# What is too long for every change: further resizes, a thousand seeds of faults, and every mutant. Interrupted, the last
# two go on where they were.
nightly: setup
	$(BIN)/pytest -m nightly
	$(BIN)/python -m benchmarks.simulated_faults --resume
	$(BIN)/python -m benchmarks.mutants --resume

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p elastic_core
	PYTHONPATH=.:plugins $(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/vulture
	$(BIN)/pytest tests/docs
