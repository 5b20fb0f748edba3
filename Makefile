# Two commands matter: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEMO := .venvs/demo
TEST := .venvs/test
WHEEL := .venvs/wheel
SOURCES := $(shell find src -name '*.py') pyproject.toml constraints.txt

.PHONY: demo test checks unit wheel torture benchmarks clean

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
	cd / && "$(CURDIR)/$(WHEEL)/env/bin/fedcrab" demo > /dev/null
	@echo "the wheel alone runs the demo"

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
