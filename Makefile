# Every target sets itself up: it makes .venv from python3 (3.11 or newer) and installs the pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-stress test-mmdet test-ray test-oldest lint format bench lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

install: $(INSTALLED)  ## make .venv with everything that the other targets need

# uv installs in seconds what pip takes minutes for, and shares the files between environments. Compiling once spares
# every process the half minute that torch and its like take where Python may not write its own byte code.
$(INSTALLED): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "LogN needs Python 3.11 or newer; set PYTHON=…" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -r requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	touch $@

demo: $(INSTALLED)  ## the whole story on data made here
	$(BIN)/logn demo

IN_PARALLEL := -n auto --dist worksteal
# Warnings fail with the pinned packages alone; others warn of code of their own.
OTHER_PACKAGES := -W default

test: $(INSTALLED)  ## unit, reference, property and documentation tests
	$(BIN)/python -m pytest $(IN_PARALLEL) --durations=15

# RUNS=10 runs them more often, TESTS=tests/cli only some of them.
RUNS ?= 5
TESTS ?=

test-stress: $(INSTALLED)  ## the tests five times over, on a machine that is kept busy
	$(BIN)/python benchmarks/stress_tests.py --runs $(RUNS) -- $(IN_PARALLEL) $(TESTS)

# MMDetection needs an older torch and has an environment of its own. Its operators are compiled, which takes about
# 35 minutes on two cores; MMCV_WHEEL=path installs a wheel that was built before.
MMDET := .venv-mmdet
MMDET_PIP := $(MMDET)/bin/python -m pip install --quiet --disable-pip-version-check
MMCV_WHEEL ?=

$(MMDET)/.installed:
	test -x $(MMDET)/bin/python || $(PYTHON) -m venv $(MMDET)
	$(MMDET_PIP) torch==2.13.0
	$(if $(MMCV_WHEEL),$(MMDET_PIP) $(MMCV_WHEEL),$(MMDET_PIP) setuptools wheel ninja psutil)
	$(if $(MMCV_WHEEL),,MMCV_WITH_OPS=1 $(MMDET_PIP) --no-build-isolation --no-binary onedl-mmcv onedl-mmcv==2.3.6)
	$(MMDET_PIP) onedl-mmengine==0.10.12 onedl-mmdetection==3.5.1 lvis==0.5.3 pytest
	$(MMDET_PIP) --editable .
	touch $@

test-mmdet: $(MMDET)/.installed  ## the tests on real MMDetection models, in an environment of their own
	$(MMDET)/bin/python -m pytest $(OTHER_PACKAGES) tests/frameworks/mmdet

# Ray brings pandas, pyarrow and a cluster of its own, which nothing else here needs. Its parts wait 15 seconds for each
# other to start, which they may need where nothing is compiled.
RAY := .venv-ray
RAY_PIP := VIRTUAL_ENV=$(RAY) $(RAY)/bin/uv pip install --quiet --compile-bytecode

$(RAY)/.installed: pyproject.toml
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(RAY_PIP) 'ray[data]==2.60.0' -e '.[torchvision,ray]' pytest hypothesis
	touch $@

test-ray: $(RAY)/.installed  ## the tests on a real local Ray, in an environment of their own
	$(RAY)/bin/python -m pytest $(OTHER_PACKAGES) tests/frameworks/ray

# The oldest version of each dependency that pyproject.toml allows. Left out: frameworks, which are newer than that torch,
# and two processes, since that torch may not end while its peer is gone.
OLDEST := .venv-oldest
OLDEST_PIP := VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet

$(OLDEST)/.installed: $(INSTALLED)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST_PIP) --resolution lowest-direct '.[all]'
	$(OLDEST_PIP) hypothesis lvis 'numpy<2' pycocotools pytest pytest-xdist scikit-learn tidecv
	$(OLDEST_PIP) --no-deps -e .
	touch $@

test-oldest: $(OLDEST)/.installed  ## the tests with the oldest dependencies, in an environment of their own
	$(OLDEST)/bin/python -m pytest $(IN_PARALLEL) $(OTHER_PACKAGES) \
		--ignore tests/frameworks --ignore tests/docs --ignore tests/training/losses/test_loss_processes.py

lint: $(INSTALLED)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## speed and memory against peers; the figures are in docs/performance.md
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/collect_memory.py
	$(BIN)/python benchmarks/attached_inference.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/compare.py

lock: $(INSTALLED)  ## pin the newest packages that fit pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra frameworks --universal --python-version 3.11 --no-header --no-annotate --upgrade -o requirements.txt

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(MMDET) $(RAY) $(OLDEST) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
