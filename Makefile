# Every target makes the virtual environment it needs; nothing else has to be installed first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
EXTRAS := torch,files,dask,plots,proofs,dev,docs
# Two test processes fill two cores; threads inside BLAS would only fight over them.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help tour test check proofs bench docs fuzz clean

help:
	@echo "make tour   set up, run four short scripts, write one HTML page"
	@echo "make test   set up, run the whole test suite"
	@echo "make check  ruff, strict mypy, documentation build"
	@echo "make proofs prove the polynomial identities symbolically"
	@echo "make bench  run every benchmark and rewrite benchmarks/README.md"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make fuzz   damage files and arguments for MINUTES=10, of all rooms or of WORDS=readers"
	@echo "make clean  remove everything that make created"

# Installs again only when the metadata changed.
$(READY): pyproject.toml constraints.txt
	@echo "== making the virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== installing overt and its extras ($(EXTRAS))"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

tour: $(READY)
	@$(BIN)/overt tour --out overt-tour

test: $(READY)
	@echo "== running the test suite"
	@$(ONE_THREAD) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

proofs: $(READY)
	@$(BIN)/python -c "from overt.papers.symbolic import main; main()"

bench: $(READY)
	@$(BIN)/python -m benchmarks

docs: $(READY)
	@echo "== building the documentation"
	@$(BIN)/sphinx-build --quiet -W --keep-going -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

MINUTES ?= 10
SEED ?= 0
WORDS ?=
fuzz: $(READY)
	@$(ONE_THREAD) PYTHONPATH=tests $(BIN)/python -m fuzz $(MINUTES) $(SEED) $(WORDS)
	@$(ONE_THREAD) PYTHONPATH=tests $(BIN)/python -m fuzz.interrupts 3 $(SEED)

clean:
	rm -rf $(VENV) overt-tour overt-results build dist docs/_build docs/auto_* docs/reference/generated \
		.pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
