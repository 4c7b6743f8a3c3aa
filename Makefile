# make quickstart   create the environment, generate data, train, and tabulate accuracy per frame count
# make test         create the environment, run the tests in two processes
# make test-slow    run the tests that take minutes
# make docs         build the documentation into build/docs; a warning or a broken link is an error
# make lint         ruff: lint and format check
# make format       ruff: fix and format
#
# PYTHON=python3    creates the environment; 3.11 or newer
# EPOCHS=16         epochs of each of the two trainings of the quickstart
# TORCH_INDEX=URL   package index for torch and torchvision, as one with CPU builds

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
RUN ?= runs/quickstart
EPOCHS ?= 16
FRAMES ?= 2 4 6 8 10 12 14 16 18 20

BIN := $(VENV)/bin
TRAIN := $(BIN)/torchrun --standalone --nproc_per_node=2 tools/train.py
READY := $(VENV)/.ready
READY_FOR_TESTS := $(VENV)/.ready_for_tests
READY_FOR_DOCS := $(VENV)/.ready_for_docs

CHECK_PYTHON := 'import sys; sys.version_info >= (3, 11) or sys.exit("The versions in constraints.txt need Python \
	3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'

.PHONY: quickstart test test-slow docs lint format clean

$(READY): setup.cfg constraints.txt
	@test -d $(VENV) || $(PYTHON) -c $(CHECK_PYTHON)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c constraints.txt torch torchvision
	$(BIN)/python -m pip install -c constraints.txt -e '.[plot]'
	touch $@

$(READY_FOR_TESTS): $(READY)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

quickstart: export OMP_NUM_THREADS = 1
# Part 1 trains a plain network at 16 frames, part 2 the network for any frame count from it. The test takes the
# last weights, not the best ones: test videos must not be used for a choice. The third network has the paper's
# training at 4, 8 and 16 frames, in an earlier recipe, and ships with ffn.
quickstart: $(READY)
	$(BIN)/python -m ffn.datasets.synthetic data/motion
	$(TRAIN) configs/quickstart/motion_plain_16.yaml log.output=$(RUN)/plain_16 train.epochs=$(EPOCHS)
	$(TRAIN) configs/quickstart/motion_any_count.yaml log.output=$(RUN)/any_count train.epochs=$(EPOCHS) \
		model.weights=$(RUN)/plain_16/last.pt
	$(BIN)/python tools/test.py configs/quickstart/motion_any_count.yaml --output $(RUN)/test --overwrite \
		--weights $(RUN)/any_count/last.pt tsm_tiny.motion_f4_8_16 $(RUN)/plain_16/last.pt --frames $(FRAMES)

test: $(READY_FOR_TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(READY_FOR_TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu"

$(READY_FOR_DOCS): $(READY_FOR_TESTS)
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	touch $@

docs: $(READY_FOR_DOCS)
	rm -rf build/docs
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning -d build/doctrees docs build/docs
	$(BIN)/python docs/check_links.py build/docs

lint: $(READY_FOR_TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY_FOR_TESTS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
