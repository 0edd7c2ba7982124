# make demo    install into .venv, generate the demo clinic, start the gateway, print how to connect
# make secrets passwords and a certificate for docker compose, in secrets/; what is there is kept
# make check   format, lint, types and the quickest tests, in a minute; the environment has the test tools
# make test    install with the test tools, then format, lint, types and all tests that are not slow
# make test-all  make test, then the slow tests, and the coverage gate over both
# make docs    build the docs as a site, in site/; strict: each link must lead somewhere
# make attack  let every attack fall upon a naive gateway and upon dpsql; one table
#
# PYTHON=python3.12 chooses the interpreter of a new .venv; ARGS="--port 6544" goes to `dpsql demo` and to pytest;
# make demo ENGINE=postgres has the clinic in a PostgreSQL server that it brings along, ENGINE=spark in a Spark server.

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check -qq
CODE := dpsql tests benchmarks examples

ENGINE := duckdb

.PHONY: help demo secrets check test test-all docs attack lint format bench clean
.DELETE_ON_ERROR:

help:
	@sed -n '1,10s/^# *//p' Makefile

demo: $(VENV)/installed$(if $(filter postgres spark,$(ENGINE)),-$(ENGINE))
	@$(BIN)/dpsql demo --engine $(ENGINE) $(ARGS)

# The directory is closed, and the files are open: who a container runs as is nobody here.
secrets:
	@umask 022; mkdir -p -m 700 secrets; cd secrets; \
	for name in owner reader; do test -s $$name || openssl rand -hex 24 >$$name; done; \
	test -s tls.key || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
		-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt 2>/dev/null
	@chmod 644 secrets/*

QUICK := test_architecture.py test_errors.py test_literals.py test_settings.py cli/test_start.py policy privacy \
	$(patsubst %,compiler/test_%.py,arrays bounds commands joins parameters plan quoting rejected rewrite top_k \
	types verify verify_tree error_weights) \
	ledger/test_charge.py ledger/test_verification.py wire/test_messages.py wire/test_protocol.py wire/test_session.py

# They start some hundred processes more, each of which would compile dpsql anew where Python writes no bytecode.
check test test-all: export PYTHONDONTWRITEBYTECODE =
# Generated examples depend on the order of sets: with one seed each run draws the same.
check test test-all: export PYTHONHASHSEED = 0

check: lint
	@$(BIN)/pytest --numprocesses 2 -m 'not (client or postgres or slow or statistical)' $(addprefix tests/,$(QUICK)) $(ARGS)

# Tests wait for servers and processes about as long as they compute, so four run at once even on two cores.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist worksteal

# Folders that are slow as a whole are not even imported.
FAST := -m 'not slow' --ignore=tests/attacks --ignore=tests/clients

# What ARGS names is run though it is slow.
test: export HYPOTHESIS_PROFILE ?= short
test: lint
	@$(PYTEST) $(if $(ARGS),,$(FAST)) $(ARGS)

# A test that the others starved of a processor runs once more, alone, and is named; what fails twice fails the run.
define again
|| { test $$? -eq 1 && echo 'once more, alone:' && $(BIN)/pytest --last-failed --last-failed-no-failures none \
	-rA --show-capture no --cov --cov-append --cov-report=; }
endef

# Every branch of what carries the guarantee is tested; pyproject.toml names it. The report of the gate is printed only if
# it fails, so that the summary of pytest closes the run.
test-all: lint
	@rm -f .pytest_cache/v/cache/lastfailed
	@$(PYTEST) $(FAST) --cov --cov-report= $(again)
	@$(PYTEST) -m slow --cov --cov-append --cov-report= $(again)
	@$(BIN)/coverage report --show-missing --skip-covered --fail-under=100 >.coverage-gate \
		|| { cat .coverage-gate; exit 1; }

docs: $(VENV)/installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	@echo 'open site/index.html'

attack: $(VENV)/installed-test
	@$(BIN)/python -m tests.attacks

lint: $(VENV)/installed-test
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo 'make format repairs the layout'; exit 1; }
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/installed-test
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

bench: $(VENV)/installed-test
	@$(BIN)/python -m benchmarks $(ARGS)

# demo/ stays: it holds a ledger, and a new ledger would be a new budget.
clean:
	@rm -rf $(VENV) build dist site .coverage .coverage-gate .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo 'installing dpsql into $(VENV) …'
	@$(PIP) install --editable .
	@touch $@

$(VENV)/installed-postgres: pyproject.toml | $(BIN)/python
	@echo 'installing dpsql and a PostgreSQL server into $(VENV) …'
	@$(PIP) install --editable '.[postgres-demo]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-spark: pyproject.toml | $(BIN)/python
	@echo 'installing dpsql and a Spark Connect server into $(VENV) …'
	@$(PIP) install --editable '.[spark-demo]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: pyproject.toml | $(BIN)/python
	@echo 'installing dpsql and what builds its docs into $(VENV) …'
	@$(PIP) install --editable '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	@echo 'installing dpsql and its test tools into $(VENV) …'
	@$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/installed $(VENV)/installed-docs

# Some systems ship Python without ensurepip; there, pip installs itself into the new environment.
$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
		$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		$$python -m venv $(VENV) >/dev/null 2>&1 && exit; \
		$$python -m venv --without-pip $(VENV) && $$python -m pip -qq --python $(BIN)/python install pip && exit; \
		rm -rf $(VENV); exit 1; \
	done; \
	echo 'dpsql needs Python 3.11 or later; name one: make PYTHON=/path/to/python3.12' >&2; exit 1
