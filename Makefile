# Every target sets itself up and needs nothing but python3, 3.11 or newer (PYTHON=python3.13 takes another one).
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test lint docs clean

help:  ## list the targets
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# An environment of uv, which installs in seconds what pip takes minutes for. Compiling once spares every process the
# half minute that torch takes where Python may not write its own byte code.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "LogN needs Python 3.11 or newer; set PYTHON=…" >&2; exit 2; }
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(1) $(1)/bin/uv pip install --quiet --compile-bytecode $(2)
	VIRTUAL_ENV=$(1) $(1)/bin/uv pip install --quiet --no-deps -e . $(3)
	touch $(1)/.installed
endef

.venv/.installed: pyproject.toml research/pyproject.toml requirements.txt
	$(call environment,.venv,-r requirements.txt,-e research)

.venv-demo/.installed: pyproject.toml requirements.txt
	$(call environment,.venv-demo,-r pyproject.toml --extra demo -c requirements.txt)

.venv-docs/.installed: pyproject.toml requirements-docs.txt
	$(call environment,.venv-docs,-r requirements-docs.txt)

install: .venv/.installed  ## make .venv with everything: torch, frameworks, tools, the research package

demo: .venv-demo/.installed  ## correct a detector that comes with LogN, and measure it; no torch
	.venv-demo/bin/logn demo

# Byte code is written even where that is switched off: else every process of the tests compiles LogN again.
test: .venv/.installed  ## all tests, and the examples of docstrings and pages
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal --durations=15

test-%: .venv/.installed  ## core, oldest, mmdet, engines, ray or dist: tests in an environment of their own
	$(BIN)/nox -s $*

lint: .venv/.installed  ## ruff, mypy, and the budget of code lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/budget.py

docs: .venv-docs/.installed  ## the documentation as a site in site/, links and workflows checked
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	.venv-docs/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv-docs/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bmr]*.yml
	@echo "Open site/index.html."

clean:  ## remove what the other targets made
	rm -rf .venv .venv-* .nox build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
