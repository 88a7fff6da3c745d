# `make` lists the targets. VENV, PYTHON and TORCH: see the top of setup-env.sh.
VENV ?= .venv
export VENV
export PYTHONUTF8 := 1

# In a recipe: the environment's commands come first, and Python keeps what it compiles: PyTorch is large.
ACTIVATE = unset PYTHONDONTWRITEBYTECODE; PATH="$$(CDPATH= cd "$$VENV/bin" && pwd):$$PATH"; export PATH
# A test process for each core that there is to use, and one more: a third of the time they wait for what they
# started. One that has no tests left takes some of another's.
PROCESSES = $$(python -c 'from macaron_fairseq.common.environment import available_cores as n; print(n() + 1)')
PYTEST = pytest -n "$(PROCESSES)" --dist worksteal

# The commands are not on the PATH of the shell that make was started from.
ACTIVATE_HINT = command -v macaron-fairseq >/dev/null || echo "In each new shell, first: . $(VENV)/bin/activate"

.PHONY: help environment setup quickstart lint check test coverage docs gpu-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

environment:
	@./setup-env.sh

setup: environment ## make the environment .venv, or bring it up to date
	@$(ACTIVATE_HINT)

quickstart: environment ## set up, then run examples/quickstart/run.sh
	@$(ACTIVATE); exec examples/quickstart/run.sh # which a signal to make then ends
	@$(ACTIVATE_HINT)

lint: environment ## ruff (lint and format), mypy and shellcheck
	@$(ACTIVATE); set -ex; ruff check; ruff format --check; mypy; \
	shellcheck --shell=bash *.sh .ci/run examples/*/*.sh examples/*/*.sbatch

check: lint ## lint, and the tests that take a moment: before each commit
	@$(ACTIVATE); set -x; $(PYTEST) -m "not slow and not recipe"

test: lint ## lint, and all tests: before a merge
	@$(ACTIVATE); set -x; $(PYTEST)

docs: environment ## the documentation as a site, build/docs/index.html; a warning is an error
	@$(ACTIVATE); sphinx-build -n -W --keep-going -q docs build/docs && \
	echo "open build/docs/index.html"

gpu-check: environment ## whether training and translation are right and fast on this GPU: ten minutes
	@$(ACTIVATE); set -x; python benchmarks/gpu_check.py --json gpu-check.json

coverage: environment ## all tests, and the lines of the package that none of them runs
	@$(ACTIVATE); set -x; $(PYTEST) --cov --cov-report=term-missing
