# Everything runs in a virtual environment of its own, made on first use. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench bench-gpu bench-growth bench-streaming bench-processes bench-engine bench-predict bench-accuracy bench-study bench-baselines reproduction clean

demo: $(VENV)/installed
	$(BIN)/swsgp demo

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

# Formats the code and shows what is left to mend.
check: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

# These compare with GPyTorch, which they install.
bench-engine: $(VENV)/installed-peers
	$(BIN)/python benchmarks/engine.py

bench-predict: $(VENV)/installed-peers
	$(BIN)/python benchmarks/predict.py

# These take the data sets from the folder named by SWSGP_DATA.
bench: $(VENV)/installed-peers
	$(BIN)/python benchmarks/compare.py

bench-gpu: $(VENV)/installed-peers
	$(BIN)/python benchmarks/gpu.py

bench-growth: $(VENV)/installed
	$(BIN)/python benchmarks/growth.py

bench-streaming: $(VENV)/installed
	$(BIN)/python benchmarks/streaming.py

bench-processes: $(VENV)/installed
	$(BIN)/python benchmarks/processes.py

bench-accuracy: $(VENV)/installed-peers
	$(BIN)/python benchmarks/accuracy.py

bench-study: $(VENV)/installed-peers
	$(BIN)/python benchmarks/study.py

# The systems that the paper compares with, on powerplant.
bench-baselines: $(VENV)/installed-dev
	$(BIN)/python benchmarks/baselines.py

# The tables, figures and page on the paper's experiments, from the logs of runs that are kept.
reproduction: $(VENV)/installed
	$(BIN)/python -m swsgp.experiments.page

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# PyTorch comes first, in the version that is known to have a build for CPUs.
$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable ".[dev,baselines]"
	touch $@ $(VENV)/installed

$(VENV)/installed-peers: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -r benchmarks/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) demo-output
