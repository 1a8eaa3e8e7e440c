# Kitestring.  `make run` opens the studio; `make test` proves it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: all install run test test-slow test-exhaustive test-all test-failed lint format docs bench bench-ppo demo-model clean
.DEFAULT_GOAL := all

all: lint test

install: $(STAMP)

# CONSTRAINTS=  (empty) takes the newest versions that pyproject.toml allows.
# TORCH_INDEX=https://…/whl/cpu  picks the CPU build of torch where pip would fetch CUDA.
CONSTRAINTS ?= -c constraints.txt
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(CONSTRAINTS) -e '.[dev]'
	touch $(STAMP)

run: install
	$(BIN)/python launch.py serve $(ARGS)

# Three processes per two cores (tests/conftest.py), one thread each: small models gain nothing from threads.
# A file stays in one process, so that its server or browser is started once.
# Compiled modules are kept, whatever the environment says: tests start hundreds of interpreters.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

test: install
	$(PYTEST) $(PARALLEL)

test-slow: install
	$(PYTEST) $(PARALLEL) -m "slow and not exhaustive"

# Every model family, documented benchmark and language.
test-exhaustive: install
	$(PYTEST) $(PARALLEL) -m exhaustive

test-all: test test-slow test-exhaustive

# What failed last, one test at a time.
test-failed: install
	$(PYTEST) -m "slow or exhaustive or not slow" --last-failed --last-failed-no-failures none

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, in build/site; a broken link is an error.
docs: install
	$(BIN)/python docs/site/build.py

bench: install
	$(BIN)/python -m benchmarks

# Makes an environment with the last TRL that had PPO, and runs both engines in turn.
bench-ppo: install
	$(BIN)/python -m benchmarks.ppo $(ARGS)

demo-model: install
	$(BIN)/python -m pipeline.demo.build
	$(BIN)/python -m pipeline.demo.pairs

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
