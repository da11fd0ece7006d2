# make demo: one run from a GPT-2-shaped ONNX file to a proven plan and a compared step.
# make matrix: every planner on every graph, with its results written down.
# make mutants: seeds faults into correct plans and counts those that the verifier misses (some minutes).
# make redteam: what was found against the verifier, the reader and the generated code must not come back (minutes).
# make docs: the documentation as a site, without a warning.
# make test: every promise at a small size, in JOBS processes of one thread each; under ten minutes on two quiet cores.
# make check: that and what takes longer: slow tests, matrix, mutants, red team; before a change is called done; on a
#   machine with nothing else to do, since planners and proofs have limits of time.
# Each makes the virtual environment if there is none.

export REMAT_COMPILE_CACHE = off # what is measured here is planned here
# Tests start hundreds of processes: where the environment forbids to keep bytecode, each would compile
# all of the package again, half a second and more.
export PYTHONDONTWRITEBYTECODE =
PYTHON ?= python3
VENV ?= .venv
DEMO ?= .demo
JOBS ?= 2
BIN := $(VENV)/bin

.PHONY: demo docs test check check-slow check-accelerator check-matrix check-runners lint coverage matrix mutants redteam faults install clean

demo: install
	@mkdir -p $(DEMO)
	$(BIN)/python examples/gpt2_onnx.py -o $(DEMO)/gpt2.onnx
	$(BIN)/remat-compile $(DEMO)/gpt2.onnx -o $(DEMO)/gpt2.fbir --activation-budget 50% --time-limit 20
	$(BIN)/remat-compile verify $(DEMO)/gpt2.fbir
	$(BIN)/remat-compile run $(DEMO)/gpt2.fbir --model $(DEMO)/gpt2.onnx

# worksteal: a process has neighbouring tests, which share captures and fixtures.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# `make test`, the slow tests in as many processes, then the rest side by side.
# The matrix has a quarter of the time per cell here, and leaves the results of `make matrix` as they are.
check: lint test docs check-slow
	@mkdir -p $(DEMO)
	$(MAKE) --no-print-directory -j $(JOBS) check-matrix check-runners check-accelerator

# The documentation as a site in build/site; a warning or a link that leads nowhere stops it.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

check-matrix: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/conformance.py --time-limit 1 -o $(DEMO)/matrix.csv

# Left out: what check-matrix and check-runners do for all cases together.
SEEN_THERE = tests/planners/test_matrix.py tests/frontends/onnx/test_old_releases.py tests/frontends/onnx/test_light_models.py

# The device of tests/accelerator must be there before anything else of a process.
check-accelerator: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -rs tests/accelerator
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -rs tests/gpu

check-slow: install
	XLA_FLAGS= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow $(addprefix --deselect ,$(SEEN_THERE)) --ignore tests/accelerator --ignore tests/gpu
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --hypothesis-profile=breadth tests/ir

check-runners: mutants
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_checker.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_reader_fuzz.py --inputs 2000
	$(BIN)/python tests/runners/run_second_solver.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_faults.py --seconds 20
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_random_plans.py --plans 120
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_pipelines.py --kills 20
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_random_plans.py --backend jax --plans 24
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_operator_samples.py --each 1
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_onnx_operators.py --releases $(DEMO)/onnx
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_onnx_fuzz.py --files 2000
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_onnx_models.py

# Every planner on every graph under six budgets: about 50 minutes. Writes benchmarks/results.
matrix: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/conformance.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --strict
	cd tests && $(abspath $(BIN))/mypy --strict --config-file ../pyproject.toml .

# Which lines of src no test of `make test` runs: a table, and .coverage-html. Half as slow again as `make test`.
coverage: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --cov=remat_compile --cov-branch --cov-report=term:skip-covered --cov-report=html:.coverage-html

mutants: install
	$(BIN)/python tests/runners/run_mutants.py --each 3

# What an attacker and a sceptic try; each runner prints a table and stops the rest where something fails.
redteam: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/redteam -m ""
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_situations.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_reader_fuzz.py --inputs 2000
	$(BIN)/python tests/runners/run_second_solver.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_faults.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_random_plans.py --plans 500
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_random_plans.py --backend jax --plans 60

# Faults in our own trusted modules, and who of solver and checker catches them.
faults: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/runners/run_faults.py

install: $(VENV)/.remat-compile

# The stamp says which pyproject.toml and constraints the environment was made from.
$(VENV)/.remat-compile: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(DEMO) build dist
