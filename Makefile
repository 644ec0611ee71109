# Needs Python >= 3.10 with pip, and make. Everything is installed into .venv, once.

PYTHON ?= python3
# Another index for torch, if the default one has only builds for GPUs: make demo TORCH_INDEX=<index of CPU builds>
TORCH_INDEX ?=
TORCH_FLAGS = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PIP = .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test lint bench

demo: .venv/.installed
	.venv/bin/fxonnx demo

# Two workers with one thread each: more threads would only wait for each other.
test: .venv/.installed-test
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 -q

lint: .venv/.installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Takes about an hour and a half, most of it in torch.onnx; writes benchmarks/RESULTS.md.
bench: .venv/.installed-test
	$(PIP) --editable '.[bench]'
	.venv/bin/python -m benchmarks.run --all

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
