# Needs Python >= 3.10 with pip, and make. Everything is installed once: into .venv, or .venv-torch<version> with TORCH=.

PYTHON ?= python3
# Another index for torch, if the default one has only builds for GPUs: make demo TORCH_INDEX=<index of CPU builds>
TORCH_INDEX ?=
TORCH_FLAGS = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Another version of torch than that of constraints.txt, in an environment of its own: make test TORCH=2.15.0
TORCH ?=
VENV = .venv$(if $(TORCH),-torch$(TORCH))
CONSTRAINTS = $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
# The newest torchvision for each version of torch.
TORCHVISION_2.13 = 0.28.0
TORCHVISION_2.14 = 0.29.2
TORCHVISION_2.15 = 0.29.2
TORCHVISION = $(TORCHVISION_$(basename $(TORCH)))
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(CONSTRAINTS)

.PHONY: demo quick test nightly matrix fuzz superset field lint docs api release bench optimum optimum-page optimum-runtimes web

demo: $(VENV)/.installed
	$(VENV)/bin/fxonnx demo

# Two workers with one thread each: more threads would only wait for each other.
# PYTEST_FLAGS adds options: make test PYTEST_FLAGS=--durations=25
# --sample: a part of each large table; pytest without it runs all cases of the files that it gets.
PYTEST_FLAGS ?=
# Without bytecode, each of the tests' child processes would compile the package again.
test quick nightly: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist=worksteal -q --sample $(PYTEST_FLAGS)

# Everyday use, in about a minute: ordinary modules, networks that decode, opsets, files, the command.
quick: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist=worksteal -q --quick $(PYTEST_FLAGS) \
		$$($(VENV)/bin/python -m tests.matrix --quick)

# The same with other versions of Python and of libraries, each in an environment of its own; writes docs/matrix.json.
# make matrix MATRIX="torch-2.15 oldest"
MATRIX ?=
matrix: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.matrix $(MATRIX)

# All tests that make test leaves out, before a release and a large change: the other cases of large tables, more seeds,
# element types and networks.
nightly: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist=worksteal -q --sample -m nightly $(PYTEST_FLAGS)

# Random programs, eager torch against the exported file: make fuzz SEEDS=1000:2000 ZERO=1
# Programs with state, as a sequence of calls: make fuzz KIND=state SEEDS=0:1000
# Programs with Python control flow: make fuzz KIND=python SEEDS=0:3000 WITHOUT=aliases,handlers
SEEDS ?= 1000:1300
fuzz: $(VENV)/.installed-test
	$(VENV)/bin/python -W ignore -m tests.fuzz --seeds $(SEEDS) $(if $(ZERO),--zero) \
		$(if $(KIND),--kind $(KIND)) $(if $(WITHOUT),--without $(WITHOUT))

# Small programs that either exporter of torch exports right, and fxonnx not; their verdicts are stored, REFRESH=1 runs those
# that are unknown: make superset PROGRAMS=3000
PROGRAMS ?= 3000
superset: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -W ignore -m tests.superset --programs $(PROGRAMS) $(if $(REFRESH),--refresh)

# Models of published libraries, each in a process of its own; writes docs/field.md: make field ONLY=kornia
# MISSING=1: only those that are not right yet. REFRESH=1 runs torch's exporters too, where their results are unknown.
ONLY ?=
field: .field/.installed
	OMP_NUM_THREADS=1 $(VENV)/bin/python -W ignore -m tests.field $(if $(ONLY),--only '$(ONLY)') \
		$(if $(MISSING),--missing) $(if $(REFRESH),--refresh)

# Without their dependencies, which would bring other builds of torch, into a folder at the end of the path. The operators of
# torchaudio are built for GPUs; it works without them.
.field/.installed: tests/field/libraries.txt $(VENV)/.installed-test
	$(VENV)/bin/uv pip install --quiet --no-deps --python $(VENV)/bin/python --target .field/site -r tests/field/libraries.txt
	rm -rf .field/site/torchaudio/lib
	touch $@

# Exported directories in transformers.js, under node and in headless Chromium; make test runs them too once they are installed.
web: $(VENV)/.installed-test tests/web/node_modules
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q tests/web $(PYTEST_FLAGS)

# The scripts of onnxruntime-node would download builds for CUDA.
tests/web/node_modules: tests/web/package.json
	cd tests/web && npm install --ignore-scripts --no-package-lock --no-audit --no-fund
	touch $@

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m tests.size

# The site is written to build/site. Links, references to code and generated tables must resolve; --quiet would hide the
# warnings from --strict.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# Breaking changes of the public API since the last tag, or since another one: make api REF=v0.1.0
REF ?=
api: $(VENV)/.installed-docs
	$(VENV)/bin/python -m tests.api_changes $(REF)

# Versions, changelog, wheel and sdist, checked and installed, and the tag, all of it here: make release VERSION=0.1.0a1
VERSION ?=
release: $(VENV)/.installed-test
	$(PIP) --editable '.[release]'
	$(VENV)/bin/python -m tests.release $(VERSION)

# Takes about an hour and a half, most of it in torch.onnx; writes benchmarks/RESULTS.md.
bench: $(VENV)/.installed-test
	$(PIP) --editable '.[bench]'
	$(VENV)/bin/python -m benchmarks.run --all

# The exports of optimum-onnx, which needs an older transformers and therefore an environment of its own:
# make optimum OPTIMUM_FLAGS="--models bert,llama --torchscript"
OPTIMUM_FLAGS ?=
optimum: .venv-optimum/.installed
	OMP_NUM_THREADS=1 .venv-optimum/bin/python -W ignore -m benchmarks.optimum_exports $(OPTIMUM_FLAGS)

# The page docs/reference/optimum-types.md; takes about an hour.
optimum-page: .venv-optimum/.installed
	$(MAKE) optimum OPTIMUM_FLAGS="--torchscript --json .venv-optimum/pairs.json"
	$(MAKE) optimum OPTIMUM_FLAGS="--generate --json .venv-optimum/tokens.json"
	.venv-optimum/bin/python -m benchmarks.optimum_page .venv-optimum/pairs.json .venv-optimum/tokens.json

# Directories of fxonnx hf in ORTModelFor* of optimum and in sentence-transformers, compared with torch.
optimum-runtimes: .venv-optimum/.installed
	OMP_NUM_THREADS=1 .venv-optimum/bin/python -W ignore -m benchmarks.huggingface_runtimes

.venv-optimum/.installed: VENV = .venv-optimum
.venv-optimum/.installed: CONSTRAINTS = .venv-optimum/constraints.txt
.venv-optimum/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	grep -vE '^(transformers|diffusers)==' constraints.txt > $(CONSTRAINTS)
	printf '%s\n' 'transformers==4.57.6' 'diffusers==0.35.2' >> $(CONSTRAINTS)
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) --editable '.[cli]'
	$(PIP) transformers 'optimum-onnx[onnxruntime]==0.1.0' diffusers sentence-transformers==5.1.2 pillow scipy
	touch $@

# The rows of OpenVINO in python -m benchmarks.language_model_recipes: optimum-intel, which needs an older transformers, makes
# their files.
.venv-openvino/.installed: VENV = .venv-openvino
.venv-openvino/.installed: CONSTRAINTS = .venv-openvino/constraints.txt
.venv-openvino/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	grep -vE '^transformers==' constraints.txt > $(CONSTRAINTS)
	printf '%s\n' 'transformers==4.57.6' >> $(CONSTRAINTS)
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) transformers optimum-intel==2.2.0 openvino nncf==3.4.0
	touch $@

# torch goes first and alone, so that nothing else decides which build of it is installed.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH),)
	grep -vE '^(torch|torchvision)==' constraints.txt > $(CONSTRAINTS)
	echo 'torch==$(TORCH)' >> $(CONSTRAINTS)
	$(if $(TORCHVISION),echo 'torchvision==$(TORCHVISION)' >> $(CONSTRAINTS))
endif
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) --editable '.[cli]'
	touch $@

# Without their dependencies: the wheels of torchvision and timm ask for particular builds of torch, and Lightning for
# much that an export does not need.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps torchvision timm pytorch-lightning lightning-utilities torchmetrics
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	touch $@
