# Two commands matter: `make run` and `make test`. Both set up .venv on a machine that has only Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL_FOR_TESTS := pypi:qwen2.5-coder-0.5b-instruct
TEST := GOMP_SPINCOUNT=1000 ATTENTION_MODEL=$(MODEL_FOR_TESTS) $(BIN)/python -m pytest
# In CI no test is skipped for want of weights or of a browser
export REQUIRE_ALL ?= $(if $(CI),1)

.PHONY: run test check weights clean

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing packages into $(VENV): two or three minutes, once"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/installed-for-tests: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,corpus]'
	touch $@

run: $(VENV)/installed  ## fetch weights once, then serve on http://127.0.0.1:8000 (HOST, PORT, ATTENTION_MODEL honoured)
	$(BIN)/attention-service fetch-weights
	exec $(BIN)/attention-service serve

weights: $(VENV)/installed  ## the weights that the tests and the README's examples name
	ATTENTION_MODEL=$(MODEL_FOR_TESTS) $(BIN)/attention-service fetch-weights

test: $(VENV)/installed-for-tests weights  ## every test, on real weights
	OMP_NUM_THREADS=1 $(TEST) --numprocesses 2 --dist loadfile tests/unit tests/service tests/contract
	$(TEST) tests/e2e tests/browser  # which start processes of their own, and have the machine to themselves

check: $(VENV)/installed-for-tests  ## lint, format, types, known vulnerabilities of what is pinned
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/audit.py

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache
