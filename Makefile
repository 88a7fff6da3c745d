# `make` lists the targets. VENV, PYTHON and TORCH: see the top of setup-env.sh.
VENV ?= .venv
export VENV

# In a recipe: the environment's commands come first.
ACTIVATE = PATH="$$(cd "$$VENV/bin" && pwd):$$PATH"; export PATH

.PHONY: help setup quickstart test coverage

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## make the environment .venv, or bring it up to date
	@./setup-env.sh

quickstart: setup ## set up, then run examples/quickstart/run.sh
	@$(ACTIVATE); examples/quickstart/run.sh

test: setup ## set up, then lint, check the types and run the tests
	@$(ACTIVATE); set -ex; \
	ruff check macaron_fairseq examples benchmarks tests setup.py; \
	ruff format --check macaron_fairseq examples benchmarks tests setup.py; \
	mypy; \
	pytest -n auto --dist worksteal

coverage: setup ## set up, then run the tests and list the lines that none of them runs: slower
	@$(ACTIVATE); \
	pytest -n auto --dist worksteal --cov=macaron_fairseq --cov-report=term-missing
