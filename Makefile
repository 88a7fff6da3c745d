# `make` lists the targets. VENV, PYTHON and TORCH: see the top of setup-env.sh.
VENV ?= .venv
export VENV

# In a recipe: the environment's commands come first, and Python keeps what it compiles: PyTorch is large.
ACTIVATE = unset PYTHONDONTWRITEBYTECODE; PATH="$$(cd "$$VENV/bin" && pwd):$$PATH"; export PATH
# A test process for each core. One that has no tests left takes some of another's.
PYTEST = pytest -n auto --dist worksteal

.PHONY: help setup demo quickstart lint check test coverage docs gpu-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## make the environment .venv, or bring it up to date
	@./setup-env.sh

demo: setup ## set up, then translate phrases with the models that come with the package
	@$(ACTIVATE); macaron-fairseq demo

quickstart: setup ## set up, then run examples/quickstart/run.sh
	@$(ACTIVATE); examples/quickstart/run.sh

lint: setup ## ruff (lint and format), mypy and shellcheck
	@$(ACTIVATE); set -ex; ruff check; ruff format --check; mypy; \
	shellcheck --shell=bash *.sh .ci/run examples/*/*.sh examples/*/*.sbatch

check: lint ## lint, and the tests that take a moment: before each commit
	@$(ACTIVATE); set -x; $(PYTEST) -m "not slow and not recipe"

test: lint ## lint, and all tests: before a merge
	@$(ACTIVATE); set -x; $(PYTEST)

docs: setup ## the documentation as a site, build/docs/index.html; a warning is an error
	@$(ACTIVATE); sphinx-build -n -W --keep-going -q docs build/docs; \
	echo "open build/docs/index.html"

gpu-check: setup ## whether training and translation are right and fast on this GPU: ten minutes
	@$(ACTIVATE); set -x; python benchmarks/gpu_check.py --json gpu-check.json

coverage: setup ## all tests, and the lines of the package that none of them runs
	@$(ACTIVATE); set -x; $(PYTEST) --cov --cov-report=term-missing
