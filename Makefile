# The two README commands are `make demo` and `make test`; both work on a bare clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test fast check figures format schemas docs install bench bench-draft mutate clean vllm-env test-long test-vllm

# Exit codes 0, 3, 4, 5 and 6 are verdicts; only an operating error (1) or wrong usage (2) fails the demo.
demo: $(READY)
	@$(BIN)/speclift decide; code=$$?; case $$code in 0|3|4|5|6) exit 0;; *) exit $$code;; esac

# The tests' matrices are small: more threads than one would spin on each other.
test fast test-long test-vllm: export OPENBLAS_NUM_THREADS = 1
# They start hundreds of processes: what those import is compiled once.
test fast test-long test-vllm: export PYTHONDONTWRITEBYTECODE =

# Tests wait for servers that hang, so more of them run together than there are cores; those of a file share what they
# start (tests/conftest.py orders the files). Real engines are given one thread each, so that two run together.
# What judges times waits more than it computes: two of those run together, at the end and beside nothing else.
TOGETHER := -n 3 --dist loadfile --no-loadscope-reorder
ENGINES := -n 2 --dist worksteal
ALONE := -n 2 --dist loadfile
SERVED := llama or vllm or gpu or ray
REAL := $(SERVED) or browser or prometheus

test: $(READY)
	$(BIN)/python -m pytest $(TOGETHER) --hypothesis-profile=ci -m "not ($(SERVED) or alone)"
	$(BIN)/speclift models fetch
	$(BIN)/python -m pytest $(ENGINES) -m "llama and not (alone or vllm or gpu or ray or long)"
	$(BIN)/python -m pytest $(ALONE) -m "alone and not (vllm or gpu)"

# Half a minute or more each: the real llama.cpp at length, then a Ray cluster of three nodes.
test-long: $(READY)
	$(BIN)/speclift models fetch
	$(BIN)/python -m pytest $(ENGINES) -m "long and not (vllm or gpu or ray)"
	$(BIN)/python -m pytest -m ray

# Without real engines, without what waits for seconds or has to be alone: for every day.
fast: $(READY)
	$(BIN)/python -m pytest $(TOGETHER) -m "not ($(REAL) or alone or slow)"

# A real vLLM (CPU build) in an environment of its own in the user's cache; some minutes, about 3 GB.
vllm-env:
	$(PYTHON) tests/vllm/make_environment.py

test-vllm: $(READY) vllm-env
	SPECLIFT_FETCH=1 $(BIN)/python -m pytest -m vllm

check: lint test figures

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# How large the product is, beside its budgets (docs/adr/0010-budgets.md).
figures: $(READY)
	$(BIN)/python tests/figures.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# docs/schema from the types of the documents; a test fails where they differ.
schemas: $(READY)
	$(BIN)/python docs/schema/write.py

# The statistics on synthetic truth: coverage of the intervals, false alarms, power of the verdict. Then whatever a
# server might send: 14,000 answers at the parsers, 10,000 over sockets; and 10,000 mangled lines at lint.
bench: $(READY)
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/fleet.py
	$(BIN)/python benchmarks/crossover.py
	$(BIN)/python benchmarks/studies.py
	$(BIN)/python benchmarks/tails.py
	$(BIN)/python benchmarks/lossless.py
	$(BIN)/python benchmarks/soak_faults.py
	$(BIN)/python benchmarks/verdicts.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/medians.py
	$(BIN)/python benchmarks/watch_200.py
	$(BIN)/python benchmarks/watch_alarms.py
	$(BIN)/python -m pytest tests/hostile/test_fuzzed_answers.py --hypothesis-profile=night --timeout 900
	$(BIN)/python -m pytest tests/hostile/test_lint_words.py --hypothesis-profile=night
	$(BIN)/python benchmarks/fuzz.py

# Accepted length, cost and break-even of the bundled draft on this machine; about ten minutes on two idle cores.
bench-draft: $(READY)
	$(BIN)/speclift models fetch
	$(BIN)/python benchmarks/draft.py

# Which changed comparisons and operators no test notices, in the rooms that lead to a verdict; some minutes. More:
# make mutate MUTATE="--count 200 --seed 2"
mutate: export OPENBLAS_NUM_THREADS = 1
mutate: $(READY)
	nice -n 19 $(BIN)/python benchmarks/mutate.py $(MUTATE)

# docs/verbs/, from the declarations of the command line.
docs: $(READY)
	$(BIN)/python docs/verb_pages.py

install: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "speclift needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[llama,dev]'
	@# What the tests import is compiled here, once, and not by every process of the first run.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq >/dev/null
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
