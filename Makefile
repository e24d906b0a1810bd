# Everything starts here; see README.md. One virtual environment, .venv, from requirements.lock by plain pip.
PYTHON ?= python3.11
BIN := .venv/bin
# Installed means: installed from these very files. A second `make setup` does nothing.
STAMP := .venv/.installed-$(shell cat requirements.lock requirements-cuda.lock pyproject.toml | sha256sum | cut -c1-16)

# Tools that are no part of the platform: to write the lock's hashes, and to ask for known vulnerabilities.
TOOLS := .venv-tools/bin
# What builds the site of the documentation.
DOCS := .venv-docs/bin
# What checks deploy/kubernetes.
KUBERNETES := .venv-kubernetes/bin
COMPILE = $(TOOLS)/uv pip compile --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--index-url https://pypi.org/simple --generate-hashes --no-annotate --no-header --quiet

# Where tests of real services lie; the others need not be read to find them.
E2E := tests/e2e tests/launch tests/security tests/track
# Where tests lie that need Ray or a library of the adapters, and are not too long for every change.
OPTIONAL := tests/launch/on_ray tests/launch/test_contract.py tests/train/adapters
# The platform in containers; nightly, as it takes hours.
CONTAINERS := tests/e2e/test_container_stack.py
# The control plane's life under faults, seed by seed.
SEEDS := tests/benchmarks/test_simulated_faults.py

.PHONY: setup ray adapters demo up down test e2e check docs docker-test docker-test-if-any kubernetes-check nightly lock \
	licences sbom audit

setup: $(STAMP)

$(STAMP):
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there; install it, or say where it is: make PYTHON=<path> setup" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# --no-deps: the lock has all that is needed (pip check), and resolving it anew would only find the same.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements.lock
	@if $(BIN)/python -c "import sys; from importlib.metadata import requires as r; sys.exit('triton' not in str(r('torch')))"; \
	then $(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements-cuda.lock; fi
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-*
	@touch $@

# Ray, for ELASTIC_LAUNCHER=ray: beside the lock, which stays as it is.
ray: setup
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements-ray.lock

# Hugging Face's Trainer and Lightning, for entry points by elastic_core.train.adapters: beside the lock as well.
adapters: setup
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements-adapters.lock

demo: setup
	$(BIN)/python -m examples.demo

up: setup
	$(BIN)/elastic up

down: setup
	$(BIN)/elastic down

# Fifty seeds of faults first, by two processes of their own. Whatever a machine sets, compiled modules are kept: four
# processes read all tests.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup
	$(BIN)/pytest $(SEEDS) -m "not nightly"
	$(BIN)/pytest -m "not e2e and not nightly" --ignore=$(SEEDS) -n 4 --dist loadfile --no-loadscope-reorder

e2e: setup
	$(BIN)/pytest $(E2E) -m "e2e and not nightly"

# What is too long for every change: further resizes, laws over ten times as many cases and drawn anew, a thousand seeds
# of faults, and every mutant (interrupted, these two go on where they were), then the containers, where an engine answers.
# What it installs its tests must find (tests/required.py), and chromium, which the machine has to have: one that lacks it
# fails there, and is skipped elsewhere.
nightly: setup ray adapters $(KUBERNETES)/kubernetes-validate
	ELASTIC_REQUIRE=ray,adapters,kubernetes,chromium $(BIN)/pytest -m nightly --ignore=$(CONTAINERS)
	@# Of what `make test` runs, too: that of what it does not install.
	ELASTIC_REQUIRE=ray,adapters $(BIN)/pytest $(OPTIONAL) -m "not e2e and not nightly"
	ELASTIC_TEST_EFFORT=10 $(BIN)/pytest tests/policy tests/predict tests/state tests/control/test_stateful.py \
		tests/control/ledger/test_profiles.py tests/placement/planners $(SEEDS) \
		-m "not e2e"
	$(BIN)/python -m benchmarks.simulated_faults --resume
	$(BIN)/python -m benchmarks.mutants --resume
	@$(MAKE) docker-test-if-any

# Builds the image and starts the platform in containers, in three sizes; which engine: docs/guide/containers.md. Without
# one it fails.
docker-test: setup
	ELASTIC_REQUIRE=containers $(BIN)/pytest -m nightly $(CONTAINERS) -rs

# The same where an engine answers; elsewhere it says that nothing was started, and why.
docker-test-if-any:
	@if why=$$($(BIN)/python -c "import sys; from tests.e2e.container_stack import why_no_engine as why; sys.exit(why())" 2>&1); \
	then $(MAKE) docker-test; else echo "docker-test is left out: $$why" >&2; fi

# deploy/kubernetes against Kubernetes' own schemas; nothing is run.
kubernetes-check: setup $(KUBERNETES)/kubernetes-validate
	ELASTIC_REQUIRE=kubernetes $(BIN)/pytest tests/machines/test_kubernetes.py -rs

$(KUBERNETES)/kubernetes-validate: supply_chain/kubernetes.lock
	test -x $(KUBERNETES)/python || $(PYTHON) -m venv .venv-kubernetes
	$(KUBERNETES)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r supply_chain/kubernetes.lock
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p elastic_core
	PYTHONPATH=.:plugins $(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/vulture
	$(BIN)/pytest tests/docs tests/house

# The documentation as a site, in build/site; any warning of MkDocs is an error.
docs: setup $(DOCS)/mkdocs
	PYTHONPATH=.:plugins $(BIN)/python -m docs_site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict --quiet --config-file docs_site/mkdocs.yml

$(DOCS)/mkdocs: supply_chain/docs.lock
	test -x $(DOCS)/python || $(PYTHON) -m venv .venv-docs
	$(DOCS)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r supply_chain/docs.lock
	@touch $@

$(TOOLS)/uv: supply_chain/tools.lock
	test -x $(TOOLS)/python || $(PYTHON) -m venv .venv-tools
	$(TOOLS)/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r supply_chain/tools.lock
	@touch $@

# The hashes of all files that PyPI has of the pinned versions, into the lock; pins stay as they are.
lock: $(TOOLS)/uv
	$(BIN)/python -m supply_chain.write_lock $(COMPILE)

licences: setup
	$(BIN)/python -m supply_chain.licences

sbom: setup
	$(BIN)/python -m supply_chain.sbom build/sbom.cdx.json

# Known vulnerabilities of all that is pinned, the tools' locks as well. Fails for any, for a package that could not be
# asked about (--strict), and where the database cannot be reached. One lock after the other: tools have pins of their own.
AUDITS := $(patsubst %,audit-%,$(wildcard requirements*.lock supply_chain/*.lock))
.PHONY: $(AUDITS)
audit: $(AUDITS)

$(AUDITS): audit-%: $(TOOLS)/uv
	$(TOOLS)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $*
