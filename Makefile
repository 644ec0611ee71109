# Needs Python >= 3.10 with pip, and make. Everything is installed into .venv, once.

PYTHON ?= python3
# torch's CPU builds; the one on PyPI brings gigabytes of CUDA along. `make TORCH_INDEX= ...` uses pip's own indexes.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_FLAGS = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --retries 1)
PIP = .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test lint

demo: .venv/.installed
	.venv/bin/fxonnx demo

# Two workers with one thread each: more threads would only wait for each other.
test: .venv/.installed-test
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 -q

lint: .venv/.installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# torch goes first and alone, so that nothing else decides which build of it is installed.
.venv/.installed: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) --editable .
	touch $@

# torchvision and timm without their dependencies: their wheels ask for particular builds of torch.
.venv/.installed-test: .venv/.installed
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps torchvision timm
	touch $@
