# Onefold: `make demo` shows it, `make test` checks it, `make bench` measures it beside its peers.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-slow test-lowest audit docs bench install clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Onefold needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,kernels,server]'
	touch $@

demo: install
	$(BIN)/onefold tune digits --trials 54 --max-epochs 54 --minutes 2.5

# Three test processes keep two cores busy, since tests wait for processes a quarter of the time. Files run in the order of
# their names, which ends with short ones. If a test process dies, the run ends.
PYTEST_OPTIONS := -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Tests start hundreds of processes that import the package: compile it once.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(PYTEST_OPTIONS)

test-slow: install
	$(BIN)/pytest -m slow

# The lowest versions that pyproject.toml permits, in an environment of their own.
test-lowest: export PYTHONDONTWRITEBYTECODE =
test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/pytest $(PYTEST_OPTIONS)

.venv-lowest/.ready: pyproject.toml tests/lowest_versions.py
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/lowest_versions.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet -c .venv-lowest/constraints.txt -e '.[dev,kernels,server]'
	touch $@

# Installed versions with published vulnerabilities; exits with 1 if there are any.
audit: install
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip freeze --exclude-editable > .venv-audit/requirements.txt
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r .venv-audit/requirements.txt

docs: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python benchmarks/claims/page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Peers live in an environment of their own, so that Onefold never depends on them.
bench: install .venv-bench/.ready
	for file in benchmarks/*.py; do .venv-bench/bin/python $$file || status=1; done; exit $${status:-0}

.venv-bench/.ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -c constraints.txt -e '.[kernels]' -r benchmarks/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-bench .venv-lowest .venv-audit
