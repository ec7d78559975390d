# Every target sets itself up: it makes .venv from python3 (3.11 or newer) and installs the pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo demo-light test test-core test-mmdet test-engines test-ray test-oldest lint format docs dist bench lock lock-docs clean

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
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e . -e research
	touch $@

demo: $(INSTALLED)  ## the whole story on data made here
	$(BIN)/logn demo

# What the demo needs and nothing else, with the build of torch that has no CUDA, which uv finds by itself.
LIGHT := .venv-light
TORCH_BACKEND ?= cpu

$(LIGHT)/.installed: pyproject.toml
	test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(LIGHT) $(LIGHT)/bin/uv pip install --quiet --torch-backend $(TORCH_BACKEND) -e '.[torchvision,report]'
	touch $@

demo-light: $(LIGHT)/.installed  ## the same in an environment of its own, without CUDA: 1 GB instead of 7
	$(LIGHT)/bin/logn demo

IN_PARALLEL := -n auto --dist worksteal
# Warnings fail with the pinned packages alone; others warn of code of their own.
OTHER_PACKAGES := -W default

test: $(INSTALLED)  ## unit, reference, property and documentation tests
	$(BIN)/python -m pytest $(IN_PARALLEL) --durations=15

# The core alone, as continuous integration runs it on every system: no torch, no pictures, no ONNX.
CORE := .venv-core

$(CORE)/.installed: pyproject.toml
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(CORE) $(CORE)/bin/uv pip install --quiet -e . pytest hypothesis pyyaml
	touch $@

test-core: $(CORE)/.installed  ## the tests of what needs NumPy only, in an environment that has nothing else
	$(CORE)/bin/python -m pytest @tests/core.txt
	$(CORE)/bin/python tests/release/walk_readme.py

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

# What converts models for LiteRT needs an older torch; Lightning and what transformers' Trainer needs are here, too.
ENGINES := .venv-engines
ENGINES_PIP := VIRTUAL_ENV=$(ENGINES) $(BIN)/uv pip install --quiet --compile-bytecode

$(ENGINES)/.installed: $(INSTALLED)
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES_PIP) torch==2.14.1 torchvision==0.29.2 openvino==2026.4.1 nncf==3.4.0 litert-torch==0.10.0 \
		ai-edge-litert==2.3.0 ai-edge-quantizer==0.10.0 onnx==1.23.2 onnxruntime==1.31.1 ultralytics==8.4.190 \
		lightning==2.6.6 transformers==5.22.2 accelerate==1.15.0 pytest -e '.[torchvision,onnx]'
	touch $@

test-engines: $(ENGINES)/.installed  ## the tests on inference engines and training frameworks, in an environment of their own
	$(ENGINES)/bin/python -m pytest $(OTHER_PACKAGES) tests/engines

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

# The site has a small environment of its own: requirements-docs.txt, and what LogN itself cannot do without.
DOCS := .venv-docs

$(DOCS)/.installed: requirements-docs.txt pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(DOCS) $(DOCS)/bin/uv pip install --quiet -r requirements-docs.txt
	VIRTUAL_ENV=$(DOCS) $(DOCS)/bin/uv pip install --quiet --no-deps -e .
	touch $@

docs: $(DOCS)/.installed  ## the documentation as a site in site/; links, names and workflows are checked
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(DOCS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(DOCS)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bmr]*.yml
	@echo "Open site/index.html."

# Both are installed as a stranger would: into an environment that has nothing, and away from the sources.
DIST := .venv-dist

dist:  ## build sdist and wheel, install each into an empty environment, walk the README there
	rm -rf dist $(DIST)
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check build
	$(DIST)/bin/python -m build --outdir dist . > /dev/null
	$(MAKE) --no-print-directory $(patsubst %,$(DIST)/%,wheel sdist)

$(DIST)/wheel $(DIST)/sdist:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check dist/logn-*$(if $(filter %wheel,$@),.whl,.tar.gz)
	$@/bin/python -I tests/release/walk_readme.py
	$@/bin/logn --version

bench: $(INSTALLED)  ## speed and memory against peers; the figures are in docs/performance.md
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/collect_memory.py
	$(BIN)/python benchmarks/attached_inference.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/compare.py

lock: $(INSTALLED)  ## pin the newest packages that fit pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra frameworks --universal --python-version 3.11 --no-header --no-annotate --upgrade -o requirements.txt

lock-docs: $(INSTALLED)  ## the same for the site
	$(BIN)/uv pip compile pyproject.toml --extra docs --universal --python-version 3.11 --no-header --no-annotate --upgrade -o requirements-docs.txt

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(LIGHT) $(CORE) $(DOCS) $(DIST) $(MMDET) $(ENGINES) $(RAY) $(OLDEST) build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
