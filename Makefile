# Bayesieve: `make demo` shows it, `make test` checks it. Both work on a fresh clone.

# The first interpreter that runs and is new enough; override with `make PYTHON=... test`.
CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$p; break; fi; done)

VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
JOBS ?= 2

# Compiled modules are kept whatever the shell says: without them every worker rewrites all tests, and
# every process that a test starts compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=
# Files of tests are kept in memory where it has a gigabyte free: a disk makes replaced files wait.
MEMORY := $(shell [ -w /dev/shm ] && df -Pm /dev/shm | awk 'NR == 2 && $$4 > 1000 {print "/dev/shm"}')
TESTED := OMP_NUM_THREADS=1 $(addprefix TMPDIR=,$(MEMORY)) $(BIN)/python -m pytest -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help demo quick lowest test lint types format docs wheel bench calibrate faults ranks zoo clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(CORE) ## train, sieve and report on a small example, into runs/demo
	$(BIN)/bayesieve demo --out runs/demo

# Unit, contract and property tests without the slow ones, the browser, the studies and end to end.
quick: $(STAMP) ## lint and the fast tests, for every few minutes of work
	$(BIN)/ruff check -q .
	$(TESTED) -q -m "not slow" \
		--ignore=tests/unit/test_docs.py --ignore=tests/unit/deliver --ignore=tests/unit/cli \
		--ignore=tests/unit/estimators --ignore=tests/unit/report --ignore=tests/unit/runs --ignore=tests/unit/nets \
		tests/unit tests/contract tests/property

# A second environment, .venv-lowest. Newer warnings of old versions are no errors there. For a CPU build
# of torch: point pip at one with PIP_EXTRA_INDEX_URL.
lowest: $(LOWEST)/.installed ## the fast tests with the oldest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(JOBS) -q -W default -m "not slow" \
		--ignore=tests/unit/test_site.py --ignore=tests/unit/test_docs.py tests/unit tests/contract tests/golden

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet -c constraints-lowest.txt -e ".[tables,onnx]" \
		pytest pytest-xdist hypothesis pandas
	@touch $@

# One torch thread per worker: two workers then use two cores, not four.
test: lint types ## lint, types, then every test and doctest
	$(TESTED) --doctest-modules

lint: $(STAMP) ## ruff check and ruff format --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

format: $(STAMP) ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## run every benchmark, one after another
	@set -e; for script in $(wildcard benchmarks/*.py); do \
		echo "$$script"; PYTHONPATH=. $(BIN)/python "$$script"; done

calibrate: $(STAMP) ## measure how far every engine is from exact, and write docs/calibration.md
	rm -f results/calibration.json
	$(BIN)/python -m studies.calibration --full --out results/calibration.json
	$(BIN)/python docs/make_results_table.py

# The short form is part of `make test`; this one has larger numbers.
faults: $(STAMP) ## inject every fault, 7 to 15 minutes, and write docs/reliability.md
	rm -f results/faults.json
	BAYESIEVE_FAULTS=long BAYESIEVE_FAULTS_RECORD=results/faults.json $(TESTED) -q tests/faults
	$(BIN)/python docs/make_results_table.py

ranks: $(STAMP) ## train on two processes, stop and kill them: half a minute
	BAYESIEVE_RANKS=long $(TESTED) -q tests/end_to_end/test_ranks.py tests/unit/training/test_distributed.py

zoo: $(STAMP) ## try every architecture, minutes, and write docs/models.md
	BAYESIEVE_ZOO=whole $(TESTED) -q tests/zoo

# One folder per version. NO_MKDOCS_2_WARNING: the theme's notice about its successor is in docs/dependencies.md.
docs: $(VENV)/.docs ## build the site into site/VERSION, run its tutorials, check its links
	$(BIN)/python docs/make_cli.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python docs/check_site.py "site/$$($(BIN)/bayesieve --version)"

wheel: $(STAMP) ## build the wheel, install it into a clean environment and run a short demo
	$(BIN)/python .ci/try_wheel.py

clean: ## remove caches and build outputs; keeps .venv and runs
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src studies tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs the package alone; everything else its tools and extras too. An existing .venv is
# kept and brought up to date. The build backend comes from constraints.txt too, hence
# --no-build-isolation.
$(CORE): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
		if [ -z "$(PYTHON)" ]; then \
			echo "make: needs Python 3.11 or newer, found none of: $(CANDIDATES)." \
				"Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi; \
		echo "$(PYTHON) -m venv $(VENV)"; $(PYTHON) -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e .
	@touch $@

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

$(VENV)/.docs: $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[docs,onnx]"
	@touch $@
