# `make` alone lists the targets. PYTHON= chooses the interpreter, ARGS= goes to pytest, JOBS=0
# runs the tests one after another.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Tests and benchmarks start the program thousands of times: its modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Tests that run at the same time: many wait for a disk, a server or a clock.
JOBS ?= 3
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
DEMO_VENV := build/demo-venv
BENCH_VENV := build/bench-venv
# An environment of another version of Python is made anew.
STAMP := .stamp-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

.PHONY: help system venv format lint quick quick-tests types layers test test-slow test-model test-crash test-mount \
	test-s3 static checks fuzz soak docs docs-check screenshots man check coverage bench bench-page demo wheel release pins clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up ------------------------------------------------------------------------------------

system:
	@contrib/setup/system-packages $(PYTHON)

# The stamps are newer than what the environment was made from, so nothing is done twice.
$(VENV)/$(STAMP): requirements/dev.txt setup.cfg setup.py pyproject.toml s3fs_meta/fuse/fuse_intercept.c
	@$(MAKE) --no-print-directory system
	@[ -e $@ ] || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $@

$(DEMO_VENV)/$(STAMP): requirements/dev.txt setup.cfg setup.py pyproject.toml $(shell find s3fs_meta -name '*.py' -o -name '*.sql' -o -name '*.c')
	@$(MAKE) --no-print-directory system
	@[ -e $@ ] || rm -rf $(DEMO_VENV)
	$(PYTHON) -m venv $(DEMO_VENV)
	rm -rf build/lib build/lib.* build/bdist.*
	$(DEMO_VENV)/bin/pip install --quiet --constraint requirements/dev.txt --upgrade .
	touch $@

venv: $(VENV)/$(STAMP)  ## make .venv with the pinned requirements/dev.txt

# --- what a commit must pass -------------------------------------------------------------------

format: venv  ## rewrite the sources in the one format, mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages and folders without wording that contrib/lint/prose.py finds; the rest of docs is generated.
PROSE := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md Makefile .ci changes contrib s3fs_meta tests \
	$(filter-out docs/reference/% docs/design/invariants.md,$(shell git ls-files 'docs/*.md')) docs/reference/metrics.md docs/reference/json.md

lint: venv  ## ruff, flake8-async, spelling, wording
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --quiet --preview --select RUF029 s3fs_meta contrib
	$(BIN)/python contrib/lint/async_rules.py
	$(BIN)/codespell
	$(BIN)/python contrib/lint/prose.py $(PROSE)

types: venv  ## mypy, strict
	$(BIN)/mypy

layers: venv  ## imports point down, one door per library
	$(BIN)/lint-imports

test: venv  ## every test but the slow ones, with real mounts and a real S3 server; ARGS= for pytest
	$(PYTEST) -m 'not slow' --numprocesses $(JOBS) --dist worksteal $(ARGS)

# The steps run at the same time, because most of them use only one core.
TOGETHER = @$(MAKE) --no-print-directory --keep-going --jobs --output-sync=target
STATIC := lint types layers docs-check

static: venv  ## every check but the tests
	$(TOGETHER) $(STATIC)

CHECKS := static test
check: $(CHECKS)  ## what a commit must pass, and what continuous integration runs

checks:
	@echo $(CHECKS)

quick: venv  ## while writing: a minute; no mounts, servers, crashes and damages
	$(TOGETHER) quick-tests $(STATIC)

quick-tests: venv
	$(PYTEST) -m 'not slow and not thorough and not mount and not s3' --numprocesses $(JOBS) --dist worksteal $(ARGS)

# --- the other levels --------------------------------------------------------------------------

test-slow: venv  ## the slow tests
	$(PYTEST) -m slow $(ARGS)

test-model: venv  ## random operations against the reference model
	$(PYTEST) tests/model $(ARGS)

test-crash: venv  ## kill and cut power at every step
	$(PYTEST) tests/sync/test_crash_points.py tests/power $(ARGS)

test-mount: venv  ## all tests on real mounts
	$(PYTEST) -m mount $(ARGS)

test-s3: venv  ## all tests against a real S3 server
	$(PYTEST) -m s3 $(ARGS)

FUZZ_EXAMPLES ?= 10000
fuzz: venv  ## the parsers of all objects, with FUZZ_EXAMPLES=10000 mutations per test: some minutes
	S3FS_META_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) tests/fuzz $(ARGS)

SOAK_MINUTES ?= 60
SOAK_SEED ?=
soak: venv  ## random use, kills, outages, damage and repair, as root: SOAK_MINUTES=60, SOAK_SEED=
	$(BIN)/python -m contrib.soak --minutes $(SOAK_MINUTES) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) $(ARGS)

coverage: venv  ## branch coverage of the fast tests
	$(BIN)/coverage run -m pytest -m 'not slow' $(ARGS)
	$(BIN)/coverage report

bench: venv  ## all benchmarks, some hours, as root: docs/benchmarks; ARGS=--plan=hour: an hour; ARGS=--quick: minutes, build/benchmarks
	$(BIN)/python -m contrib.bench $(ARGS)

$(BENCH_VENV)/$(STAMP): requirements/bench.txt
	@[ -e $@ ] || rm -rf $(BENCH_VENV)
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install --quiet --requirement requirements/bench.txt
	touch $@

bench-page: $(BENCH_VENV)/$(STAMP)  ## build/benchmarks/index.html from docs/benchmarks/figures.json; ARGS=--from… --to…
	$(BENCH_VENV)/bin/python -m contrib.bench.page $(ARGS)

# --- documents ---------------------------------------------------------------------------------

docs: venv  ## write the generated pages: commands, settings, exit statuses, errnos, what damage costs
	$(BIN)/python -m contrib.docs.reference docs/reference
	$(BIN)/python -m tests.damage_matrix.page docs/design/durability.md

screenshots: venv  ## renew the pictures of the pages in docs/guide/browse; needs Chromium and /dev/fuse
	$(BIN)/python -m tests.browse.screenshots docs/guide/browse

docs-check: venv  ## fail if a generated page is stale
	$(BIN)/python -m contrib.docs.reference --check docs/reference
	$(BIN)/python -m tests.damage_matrix.page --check docs/design/durability.md

man: venv  ## write man pages to generated/man and shell completion to generated/completion
	$(BIN)/python -m contrib.docs.reference --man generated/man
	$(BIN)/python -m contrib.docs.reference --completion generated/completion

# --- use ---------------------------------------------------------------------------------------

demo: $(DEMO_VENV)/$(STAMP)  ## install, make a filesystem on a directory, use it, compare every byte
	$(DEMO_VENV)/bin/python contrib/demo/demo.py

wheel: man  ## dist/: sdist, and the wheel made of it, with man pages and completion
	rm -rf build/lib build/lib.* build/bdist.*
	$(BIN)/python -m build

VERSION ?=
release: venv  ## VERSION=0.2.0: changelog, sdist, wheel, tried in a new environment; then commit and tag
	$(BIN)/python contrib/setup/release.py $(VERSION)

pins: venv  ## renew requirements/dev.txt from setup.cfg and dev.in; needs Python 3.10 and 3.11
	$(BIN)/python contrib/setup/pins.py

clean:  ## remove what was built, the environments too
	rm -rf $(VENV) build dist generated *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache .flake8_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f s3fs_meta/fuse/*.so
