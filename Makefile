# Two commands matter: `make demo` and `make test`. Each sets everything up first.
PYTHON ?= python3
VENV   := .venv
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The demo alone needs a small part of what the tests do; where those are installed, it needs nothing more.
DEMO   := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.demo)
# PyPI's torch for Linux brings CUDA with it, gigabytes that fedpace never uses: the CPU build comes first, where this
# index can be reached. `make test TORCH_INDEX=` takes what pip finds. The demo needs no torch.
TORCH_INDEX ?= $(if $(filter Linux,$(shell uname -s)),https://download.pytorch.org/whl/cpu)
PIP_FLAGS ?=
PIP    := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt
# What pip does, a line per download: it takes minutes, and silence looks like a fault.
TELL   := awk '/(Downloading|Using cached|Processing) .*\.whl/ && !/metadata/ { \
	n = split($$2, part, "/"); print "  " part[n] ($$3 ~ /^\([0-9]/ ? " " $$3 " " $$4 : ""); fflush()} \
	/^Installing collected/ {print "  unpacking ..."; fflush()}'
# One process per core, each with one thread: threads of several processes only get in each other's way.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

comma  := ,
define torch
if [ -n "$(TORCH_INDEX)" ] && ! $(BIN)/python -m pip show --quiet torch 2>/dev/null; then \
	{ $(PIP) --no-deps --retries 0 --timeout 10 --index-url $(TORCH_INDEX) torch 2>/dev/null; \
		echo $$? > $(VENV)/.status; } | $(TELL); \
	[ `cat $(VENV)/.status` = 0 ] \
		|| echo "  no torch for CPUs from $(TORCH_INDEX): taking what pip finds, which may bring CUDA with it"; \
fi
endef
# The exit status is pip's, not awk's.
define install
{ $(PIP) $(1); echo $$? > $(VENV)/.status; } | $(TELL); exit `cat $(VENV)/.status`
endef

.PHONY: setup demo test test-slow test-deep test-flower test-nvflare test-flwr-datasets test-mlflow test-ray test-browser coverage docs image dist evidence bench bench-peers lint unit clean constraints help

help:            ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

setup: $(STAMP)  ## make .venv with all extras

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing fedpace with all extras into $(VENV): 2.1 GB on disk, some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(torch)
	@$(call install,-e '.[all$(comma)dev]')
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "Installing what the demo needs into $(VENV): 0.1 GB to download, 0.37 GB on disk, about a minute."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call install,--no-compile -e '.[demo]')
	@touch $@

demo: $(DEMO)    ## compare the schemes on the embedded digits experiment, offline
	$(BIN)/fedpace compare --out runs/demo --overwrite

test: setup lint unit  ## everything that must pass before a change lands

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: setup
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n auto -m "not slow"

test-slow: setup ## the suites that take minutes
	$(BIN)/python -m pytest -q -m slow

test-deep: setup ## anything at all into every public surface, 10,000 cases each; prints the counts
	$(ONE_THREAD) FEDPACE_FUZZ=10000 $(BIN)/python -m pytest -q tests/property/test_fuzz.py tests/property/test_fuzz_files.py tests/property/test_fuzz_study.py

test-flower: setup  ## Flower for real: simulation, SuperNodes on loopback, kills and restarts
	$(BIN)/python -m pytest -v -m flower tests/flower

test-nvflare: setup  ## NVFlare for real: its simulator, its deployment on loopback, a client that fails
	@$(PIP) --quiet -e '.[nvflare-he]'
	$(ONE_THREAD) $(BIN)/python -m pytest -v tests/nvflare

test-flwr-datasets: .venv-flwr-datasets/.installed  ## partitions of Flower Datasets, which needs an older `datasets`
	$(ONE_THREAD) .venv-flwr-datasets/bin/python -m pytest -v -m flwr_datasets tests/data/test_flwr_datasets.py

.venv-flwr-datasets/.installed: pyproject.toml
	@test -x .venv-flwr-datasets/bin/python || $(PYTHON) -m venv .venv-flwr-datasets
	@.venv-flwr-datasets/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) \
		-e '.[light,flwr-datasets]' scikit-learn pytest hypothesis
	@touch $@

test-mlflow: .venv-mlflow/.installed  ## a real MLflow server on loopback, which needs more than the client
	$(ONE_THREAD) .venv-mlflow/bin/python -m pytest -v -m mlflow tests/tracking

.venv-mlflow/.installed: pyproject.toml
	@test -x .venv-mlflow/bin/python || $(PYTHON) -m venv .venv-mlflow
	@.venv-mlflow/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) \
		-e '.[light,mlflow]' mlflow scikit-learn pytest hypothesis
	@touch $@

test-ray: setup  ## Ray for real: killed workers, a cluster of two nodes
	$(ONE_THREAD) $(BIN)/python -m pytest -v -m ray tests/sim/test_ray_engine.py

test-browser: setup  ## the page in a real browser; SHOTS=FOLDER keeps pictures of it
	@command -v chromedriver >/dev/null && command -v chromium >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; }
	FEDPACE_SHOTS=$(SHOTS) $(BIN)/python -m pytest -v -rP -m browser tests/browser

coverage: setup  ## which lines the tests run; the page is runs/coverage/html/index.html
	@mkdir -p runs/coverage
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n auto -m "not slow" --cov --cov-report=term --cov-report=html

# The site links to where this checkout came from, if that is a web address.
REPOSITORY ?= $(filter https://%,$(shell git remote get-url origin 2>/dev/null))
docs: setup      ## the documents as a site, into site/VERSION/; strict: a broken link is an error
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 FEDPACE_REPOSITORY="$(REPOSITORY)" $(BIN)/mkdocs build --strict

image:           ## the server's image, with docker or podman; without them only what it is made of is checked
	@builder=`command -v docker || command -v podman || true`; \
	if [ -n "$$builder" ] && $$builder info >/dev/null 2>&1; then $$builder build -f deploy/Dockerfile -t fedpace:$(VERSION) .; \
	else echo "no docker or podman runs here: checking deploy/ only"; $(BIN)/python -m pytest -q tests/test_deployment.py; fi

evidence: setup  ## measure again what is out of date, resumably; CHECK=1 only checks, ONLY=NAMES chooses
	$(ONE_THREAD) $(BIN)/python benchmarks/evidence.py $(if $(CHECK),--check) $(if $(ONLY),--only $(ONLY))

dist: setup      ## wheel and sdist into dist/, checked, and the wheel installed and run in a clean environment
	@$(PIP) --quiet build twine
	rm -rf dist && $(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	@scratch=`mktemp -d` && trap 'rm -rf '$$scratch EXIT && $(PYTHON) -m venv $$scratch/venv && \
		$$scratch/venv/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
			"`ls dist/*.whl`[demo]" && \
		cd $$scratch && venv/bin/fedpace --version && venv/bin/fedpace compare --seeds 1 --selectors random,pace-async

bench: setup     ## speed and memory, one JSON object per benchmark
	@set -e; for name in startup heterogeneity scale delays selectors; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done

bench-peers: .venv-peers/.installed  ## make .venv-peers with what benchmarks/simulator.py compares with

.venv-peers/.installed: benchmarks/peers.txt constraints.txt
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/peers.txt
	@touch $@

constraints:     ## rewrite constraints.txt from the current .venv
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//'; } > constraints.tmp
	@mv constraints.tmp constraints.txt

clean:           ## remove what make created
	rm -rf $(VENV) .venv-peers .venv-flwr-datasets .venv-mlflow runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
