# Two commands matter: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEMO := .venvs/demo
TEST := .venvs/test
WHEEL := .venvs/wheel
SOURCES := $(shell find src -name '*.py' -o -path '*/assets/*') pyproject.toml constraints.txt

.PHONY: demo test checks unit wheel browser torture benchmarks clean

demo: $(DEMO)/ready
	$(DEMO)/bin/fedcrab demo

test: checks unit wheel

checks: $(TEST)/ready
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy

unit: $(TEST)/ready
	$(TEST)/bin/pytest -q -n 2

# The wheel alone, in an environment of its own, away from the checkout.
wheel: $(TEST)/ready
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	$(TEST)/bin/python -m build -q --wheel --outdir $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)/env
	$(WHEEL)/env/bin/pip install -q -c constraints.txt $(WHEEL)/*.whl
	cd / && "$(CURDIR)/$(WHEEL)/env/bin/fedcrab" demo --out "$(CURDIR)/$(WHEEL)/shown" > /dev/null
	cd / && "$(CURDIR)/$(WHEEL)/env/bin/fedcrab" report "$(CURDIR)/$(WHEEL)/shown" -o "$(CURDIR)/$(WHEEL)/incident.html"
	@echo "the wheel alone runs the demo and writes the page"

# The incident page in Debian's Chromium; installs the browser where it is missing (needs root and apt).
browser: $(TEST)/ready
	command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(TEST)/bin/pip install -q -c constraints.txt -e '.[browser]'
	$(TEST)/bin/pytest -q tests/report

# Long trials: crashes, faults, tampering, fuzzing, and thousands of random histories.
torture: $(TEST)/ready
	$(TEST)/bin/pytest -q -n 2 -m slow

benchmarks: $(TEST)/ready
	$(TEST)/bin/python benchmarks/history.py

$(DEMO)/ready: $(SOURCES)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install -q -c constraints.txt '.[simulate]'
	touch $@

$(TEST)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/pip install -q -c constraints.txt -e '.[dev,simulate,flower]'
	touch $@

clean:
	rm -rf .venvs build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
