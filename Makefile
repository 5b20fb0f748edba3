# Two commands matter: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEMO := .venvs/demo
TEST := .venvs/test
WHEEL := .venvs/wheel
INTEGRATIONS := .venvs/integrations
WORKERS ?= $(shell expr $$(nproc) + 1)
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile torch and Flower again, seconds each
KERNELS := $(wildcard src/fedcrab/native/*.[ch]) hatch_build.py
SOURCES := $(shell find src -name '*.py' -o -path '*/assets/*') $(KERNELS) pyproject.toml constraints.txt

# $(call environment,PLACE): a virtual environment with uv in it, and pip only where $(PYTHON) has none to lend,
# as it takes six seconds to put it there.
define environment
	$(PYTHON) -m venv --without-pip $(1)
	$(PYTHON) -m pip --python $(1)/bin/python install -q --no-compile -c constraints.txt uv || \
	{ $(PYTHON) -m venv $(1) && $(1)/bin/pip install -q --no-compile -c constraints.txt uv; }
endef

# $(call install,PLACE,PACKAGES,BY): into the environment PLACE, by uv, several times as fast as pip, which does
# it where uv cannot. uv is told where pip would look besides the index. It is in the environment BY.
TESTED := -e '.[dev,simulate,flower]'
PIP = $$(test -x $(1)/bin/pip && echo $(1)/bin/pip || echo $(PYTHON) -m pip)
define install
	UV_FIND_LINKS="$$($(call PIP,$(3)) config get global.find-links 2> /dev/null || echo "$$PIP_FIND_LINKS")" \
	$(3)/bin/uv pip install -q --python $(1)/bin/python -c constraints.txt $(2) || \
	$(call PIP,$(3)) --python $(1)/bin/python install -q --no-compile -c constraints.txt $(2)
endef

.PHONY: demo test prepare chromium checks unit wheel compatibility integrations torture s3 benchmarks clean

demo: $(DEMO)/ready
	$(DEMO)/bin/fedcrab demo

# The tests often wait for processes and disks: the rest runs beside them, as soon as the packages are there.
test:
	+$(MAKE) --no-print-directory -j 3 unit wheel checks

prepare:
	+$(MAKE) --no-print-directory -j 2 $(TEST)/ready chromium

checks: $(TEST)/installed
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy

unit: $(TEST)/ready chromium
	$(TEST)/bin/pytest -q -n $(WORKERS)

# The wheel alone, in an environment of its own, away from the checkout.
wheel: $(TEST)/installed
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	$(TEST)/bin/python -m build -q --no-isolation --wheel --outdir $(WHEEL)
	$(PYTHON) -m venv --without-pip $(WHEEL)/env
	$(call install,$(WHEEL)/env,$(WHEEL)/*.whl,$(TEST))
	cd / && "$(CURDIR)/$(WHEEL)/env/bin/fedcrab" demo --out "$(CURDIR)/$(WHEEL)/shown" > /dev/null
	cd / && "$(CURDIR)/$(WHEEL)/env/bin/fedcrab" report "$(CURDIR)/$(WHEEL)/shown" -o "$(CURDIR)/$(WHEEL)/incident.html"
	@echo "the wheel alone runs the demo and writes the page"

# The incident page is tested in Chromium and node, which are installed where they can be: by root, with apt.
chromium:
	@command -v chromium > /dev/null && command -v node > /dev/null || \
	{ test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium nodejs > /dev/null; } || \
	echo "no Chromium or node here, and no way to install them: the page's tests that need them are skipped"

# A fast part of the tests on every Python found, with the newest packages allowed and with the oldest.
compatibility: $(TEST)/ready
	$(TEST)/bin/python tests/compatibility.py

# Loggers, data frames and data sets against the real packages, which the other tests do without. They have an
# environment of their own: `datasets` allows only older versions of fsspec than the one that s3fs needs.
integrations:
	$(PYTHON) -m venv $(INTEGRATIONS)
	grep -v '^fsspec==' constraints.txt > $(INTEGRATIONS)/constraints.txt
	$(INTEGRATIONS)/bin/pip install -q --no-compile -c $(INTEGRATIONS)/constraints.txt \
		-e '.[dev,simulate,flower,pandas,tensorboard,mlflow,wandb,datasets]' flwr-datasets
	$(INTEGRATIONS)/bin/pytest -q tests/integrations

# Long trials: crashes, faults, tampering, fuzzing, thousands of random histories, ten times the examples of each law.
torture: $(TEST)/ready
	$(TEST)/bin/pytest -q -n 2 -m 'slow or hypothesis' --hypothesis-profile thorough

# Histories on S3, against moto's server: thirty packages that nothing else needs.
s3: $(TEST)/ready
	$(call install,$(TEST),'.[s3]' 'moto[server]>=5' gcsfs gcp-storage-emulator,$(TEST))
	$(TEST)/bin/pytest -q -n 0 tests/history/test_remote.py

benchmarks: $(TEST)/ready
	$(TEST)/bin/python benchmarks/history.py

$(DEMO)/ready: $(SOURCES)
	$(call environment,$(DEMO))
	$(call install,$(DEMO),'.[simulate]',$(DEMO))
	touch $@

$(TEST)/installed: pyproject.toml constraints.txt $(KERNELS)
	$(call environment,$(TEST))
	$(call install,$(TEST),$(TESTED),$(TEST))
	touch $@

# Packages and tests are compiled once here, and not by every process that imports them first.
$(TEST)/ready: $(TEST)/installed
	$(TEST)/bin/python -c 'import distributed, flwr.cli.app, flwr.server, ray, sklearn.cluster, torch'
	-$(TEST)/bin/pytest --collect-only -qq > /dev/null
	touch $@

clean:
	rm -rf .venvs build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
