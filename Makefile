# Every target sets itself up: `make test` works in a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
BIN    := .venv/bin
STAMP  := .venv/.stamp
# Where bytecode is not to be written, each of the thousand processes of the tests would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=
# Where there is no home to keep compiled kernels in, each process would compile them for itself.
export XDG_CACHE_HOME := $(or $(XDG_CACHE_HOME),$(if $(shell test -w "$$HOME" && echo yes),,$(CURDIR)/.cache))
ORDER  := $(if $(SEED),--randomly-seed=$(SEED))
.PHONY: demo demo-failover demo-plan test test-full test-alone test-full-alone types-beside lint style types kernels bench \
        screenshots clean

# `make demo TRACE=jobs.csv` runs the jobs of a real trace instead of generated ones, which arrive in bursts.
demo: $(STAMP)
	$(BIN)/longshore evaluate --cluster examples/hetero64.yaml $(if $(TRACE),--trace '$(TRACE)',--workloads 32) --estimates log-normal --report report.html

# A job of four processes on this machine loses one, and goes on with its spare.
demo-failover: $(STAMP)
	$(BIN)/python examples/failover/demo.py

# Plans a small GPT for this machine, trains by the plan with four processes, and compares times with the prediction.
demo-plan: $(STAMP)
	$(BIN)/python examples/plan/demo.py

# A file's tests stay together, as some share a server. Files come in a random order, and so do the tests in each:
# `make test SEED=1234` repeats the order whose seed was printed.
# More processes than cores, of one thread each, as many tests wait for servers, in the full lane most.
# A test that hangs where no exception reaches it ends its process, and another goes on with the tests behind it.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --max-worker-restart 20 --dist loadfile --no-loadscope-reorder

# Types take a minute the first time, of one core, so that tests begin beside them; what is said of them comes last.
TYPES := .mypy_cache/said
test test-full: $(STAMP)
	$(MAKE) --no-print-directory style kernels
	@$(MAKE) --no-print-directory -j 2 types-beside $@-alone; status=$$?; cat $(TYPES); exit $$status

test-alone: $(STAMP)
	$(PYTEST) -n 4 $(ORDER)

# All tests, the slow ones and rarer faults too, each with more examples.
test-full-alone: $(STAMP)
	$(PYTEST) -n 5 $(ORDER) -m "" --hypothesis-profile full

types-beside: $(STAMP)
	@mkdir -p $(dir $(TYPES))
	@$(BIN)/mypy >$(TYPES) 2>&1

# The install has compiled the kernels; what has changed since is compiled once for all tests.
kernels: $(STAMP)
	$(BIN)/longshore compile

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

bench-%: $(STAMP)
	$(BIN)/python -m benchmarks.$*

screenshots: $(STAMP)
	$(BIN)/python -m tests.scheduler.dashboard.screenshots

clean:
	rm -rf .venv build dist src/*.egg-info

# Made again when what is installed could have changed; written last, so a broken install is tried again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Longshore needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "This Python makes no virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "installing Longshore and what it needs into .venv: minutes, most of them for PyTorch" >&2
	@here() { ls -d .venv/lib/python*/site-packages/*.dist-info 2>/dev/null | wc -l; }; \
	  { while sleep 5; do echo "installing: $$(here) of about $$(grep -c == constraints.txt) packages are in place" >&2; done; } & \
	  telling=$$!; trap "kill $$telling" EXIT; \
	  $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -c constraints.txt -e '.[dev]' >&2
	@echo "compiling what was installed: else each process of the first tests would do it for itself" >&2
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # some files are no Python of today
	@$(BIN)/longshore compile >&2 || true  # who uses what cannot be compiled says why
	@$(BIN)/pytest --collect-only -q -m "" >/dev/null 2>&1 || true  # rewrites asserts: else each of its processes would
	@missing=$$(.ci/missing); [ -z "$$missing" ] || \
	  echo "some tests will be skipped; to run them, on Debian: apt-get install --no-install-recommends $$missing" >&2
	@touch $@
