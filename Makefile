# Two commands for a fresh machine with Python 3.10 to 3.12, make and pip:
#   make demo   train on real images on 8 rehearsed replicas, with JAX
#   make test   every check, and the tests on every runtime
# Both set up what they need under .envs/, and nothing outside it.

comma := ,
SUITABLE = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
# The pinned Keras and JAX need Python 3.11 or later: where there is none, uv gets it.
PYTHON ?= $(or $(shell for p in python3 python3.12 python3.11; do \
	$$p -c "$(SUITABLE)" 2>/dev/null && echo $$p && break; done),3.11)

# The environments of the tests, and the variables that they run with. `$(call in,keras3-jax)` runs Python in one.
include tests/environments.mk
in = $($(1).variables) .envs/$($(1).folder)/bin/python

UV := .envs/tools/bin/uv
TF := .envs/keras3-tf
JAX := .envs/keras3-jax
BOTH := .envs/keras3-both
ORBAX := .envs/keras3-orbax
TF215 := .envs/keras2-tf215
TF221 := .envs/keras2-tf221
COMPILER := .envs/keras3-compiler
TPU_KERNELS := .envs/keras3-tpu-kernels
KERAS2_PYTHON ?= $(or $(filter 3.11,$(PYTHON)),$(shell for p in $(PYTHON) python3.11; do \
	$$p -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" 2>/dev/null && echo $$p && break; done))
BUILD := .envs/build
LINT := .envs/lint
DOCS := .envs/docs
VERSIONS = $(UV) run --no-project --python $(PYTHON) tests/versions/run.py $(UV) $(PYTHON)
export UV_PYTHON_INSTALL_DIR ?= $(CURDIR)/.envs/python
# Trust what the machine trusts, a company's proxy say, as pip does.
export UV_SYSTEM_CERTS ?= 1

.PHONY: demo test lint test-keras3-tf test-keras3-jax test-keras3-both test-compiler test-tpu-kernels test-keras2 test-keras2-tf215 test-keras2-tf221 short-keras2-tf221 test-of test-addons parity exhaustive exhaustive-all exhaustive-keras3-tf exhaustive-keras3-jax exhaustive-keras3-both exhaustive-compiler exhaustive-keras2 exhaustive-keras2-tf215 exhaustive-keras2-tf221 versions torture torture-jax torture-tensorflow torture-keras2 keras-tests keras-tests-jax keras-tests-tensorflow faults check-wheel benchmarks dist kaggle notebooks lock docs clean

demo: $(JAX)/.ready
	@KERAS_BACKEND=jax $(JAX)/bin/python examples/fashion_mnist.py

# What is cheap first, and then one runtime on each core: a process of its own imports and collects only once. The
# longest come first. Which tests these are stands at the tests (tests/conftest.py).
RUNTIMES := test-keras3-tf test-keras3-jax test-compiler docs check-wheel test-keras3-both short-keras2-tf221
JOBS ?= 2
test: lint
	$(MAKE) --no-print-directory --jobs=$(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(RUNTIMES)
	@echo "Ran: ruff, import-linter and mypy; the tests that are in the gate on Keras 3 on TensorFlow, on Keras 3 on JAX"
	@echo "without TensorFlow (make exhaustive runs all tests on each); a short suite on Keras 2 on TensorFlow 2.21 (make"
	@echo "test-keras2 runs more, and on 2.15); what is about Keras 3 on JAX with TensorFlow and Grain beside it, and old"
	@echo "programs there; what asks the TPU compiler; the site; and the wheel. CI runs the oldest versions, too."

lint: $(LINT)/.ready
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check .
	$(LINT)/bin/lint-imports
	$(LINT)/bin/mypy
	$(LINT)/bin/mypy tests/type_checking/user_script.py
	$(LINT)/bin/python benchmarks/docs_tables.py --check
	$(LINT)/bin/python .ci/locks.py
	$(LINT)/bin/zizmor --offline --quiet --persona=pedantic .github
	$(LINT)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(LINT)/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(LINT)/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(LINT)/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@echo "make lint: all good. The tests of what you changed: make test-of FILE=..."

test-keras3-tf: $(TF)/.ready
	@echo "Keras 3 on TensorFlow:"
	$(call in,keras3-tf) -m pytest $(PYTEST)

test-keras3-jax: $(JAX)/.ready
	@echo "Keras 3 on JAX, without TensorFlow:"
	$(call in,keras3-jax) -m pytest $(PYTEST)

test-keras3-both: $(BOTH)/.ready
	@echo "Keras 3 on JAX, with TensorFlow and Grain beside it:"
	$(call in,keras3-both) -m pytest $(PYTEST) $(keras3-both.tests)
	$(call in,dropin) -m pytest $(PYTEST) $(dropin.tests)

test-compiler: $(COMPILER)/.ready
	@echo "The TPU compiler, with Keras 3 on JAX and on TensorFlow$(if $(PYTEST),$(comma) and Keras 2):"
	$(call in,compiler-jax) -m pytest $(PYTEST) $(compiler-jax.tests)
	$(call in,compiler-tf) -m pytest $(PYTEST) $(compiler-tf.tests)
	$(if $(PYTEST),$(call in,compiler-keras2) -m pytest $(PYTEST) $(compiler-keras2.tests))

test-tpu-kernels: $(TPU_KERNELS)/.ready
	@echo "TensorFlow with kernels for TPUs:"
	$(call in,tpu-kernels) -m pytest $(PYTEST) $(tpu-kernels.tests)

# Keras 2 and TensorFlow Addons are frozen, and have a gate of their own.
test-keras2: test-keras2-tf215 test-keras2-tf221
short-keras2-%: PYTEST := --tier=short
test-keras2-tf215: $(if $(KERAS2_PYTHON),$(TF215)/.ready)
	@echo "Keras 2 on TensorFlow 2.15, with TensorFlow Addons:"
	$(if $(KERAS2_PYTHON),$(call in,keras2-tf215) -m pytest $(PYTEST),@echo "NOT RUN: it needs Python 3.11")

test-keras2-tf221 short-keras2-tf221: $(if $(KERAS2_PYTHON),$(TF221)/.ready)
	@echo "Keras 2 on TensorFlow 2.21, with tf-keras and TensorFlow Addons:"
	$(if $(KERAS2_PYTHON),$(call in,keras2-tf221) -m pytest $(PYTEST),@echo "NOT RUN: it needs Python 3.11")

# The tests of files, on the environments that they are about: make test-of FILE=keras_tpu_ext/callbacks/throughput.py
# ON=keras3-jax takes one environment and makes it, PYTEST=--tier=exhaustive all their tests (docs/tests.md).
test-of: $(UV) $(foreach one,$(ON),.envs/$($(one).folder)/.ready)
	$(UV) run --no-project --python $(PYTHON) tests/support/tests_of.py $(FILE) $(addprefix --on=,$(ON)) -- $(PYTEST)

ALL := -m pytest --tier=exhaustive -n 2

# All cases of the parity suite on each runtime.
parity: $(TF)/.ready $(JAX)/.ready $(TF215)/.ready $(TF221)/.ready
	$(call in,keras3-tf) $(ALL) tests/parity
	$(call in,keras3-jax) $(ALL) tests/parity
	$(call in,keras2-tf215) $(ALL) tests/parity
	$(call in,keras2-tf221) $(ALL) tests/parity

# Every public name of TensorFlow Addons, on both.
test-addons: $(TF215)/.ready $(TF221)/.ready
	$(call in,keras2-tf215) $(ALL) tests/addons
	$(call in,keras2-tf221) $(ALL) tests/addons

# TensorFlow keeps some MB of every model that was trained on replicas: all tests in two processes need more than 24 GB.
PARTS := tests/models tests/callbacks tests/layers tests/addons tests/parity
define in_parts
	@failed=0; \
	for part in tests/models tests/callbacks "tests/layers tests/addons" "tests/parity" \
		"tests $(addprefix --ignore=,$(PARTS))"; \
	do echo "$(1) $(ALL) $$part"; $(1) $(ALL) $$part || failed=1; done; exit $$failed
endef

# Every test on every runtime of Keras 3, to the end, and on those of Keras 2.
exhaustive:
	$(MAKE) --no-print-directory --keep-going exhaustive-all

exhaustive-all: lint check-wheel exhaustive-keras3-tf exhaustive-keras3-jax exhaustive-keras3-both exhaustive-compiler \
	test-oldest-tensorflow test-oldest-jax

exhaustive-keras2:
	$(MAKE) --no-print-directory --keep-going exhaustive-keras2-tf215 exhaustive-keras2-tf221

exhaustive-keras3-tf: $(TF)/.ready
	$(call in_parts,$(call in,keras3-tf))

exhaustive-keras3-jax: $(JAX)/.ready $(ORBAX)/.ready
	$(call in,keras3-orbax) $(ALL) tests/test_jax_sharded_files.py -k orbax
	$(call in,keras3-jax) $(ALL)

exhaustive-keras3-both: $(BOTH)/.ready
	$(call in,keras3-both) $(ALL) tests/both tests/torture
	$(call in,dropin) $(ALL) $(dropin.tests)

exhaustive-compiler:
	$(MAKE) --no-print-directory --keep-going test-compiler test-tpu-kernels PYTEST=--tier=exhaustive

exhaustive-keras2-tf215: $(TF215)/.ready
	$(call in_parts,$(call in,keras2-tf215))

exhaustive-keras2-tf221: $(TF221)/.ready
	$(call in_parts,$(call in,keras2-tf221))

# Trainings that are killed 80 times each, and end as if they had not been.
torture: torture-jax torture-tensorflow torture-keras2

torture-jax: $(BOTH)/.ready
	$(call tortured,$(call in,keras3-both),jax)

torture-tensorflow: $(TF)/.ready
	$(call tortured,$(call in,keras3-tf),tensorflow)

torture-keras2: $(TF215)/.ready
	$(call tortured,$(call in,keras2-tf215),keras2)

define tortured
	rm -f benchmarks/results/torture-$(2).txt
	KTE_KILLS=50 KTE_RESULTS=benchmarks/results/torture-$(2).txt $(1) $(ALL) tests/torture
endef

# Keras's own tests, of the version that is installed: as Keras is, with the exact step on one device, and in a scope of
# eight replicas. It writes benchmarks/results; what pytest printed is in out/keras-tests.
keras-tests:
	$(MAKE) --no-print-directory --keep-going keras-tests-jax keras-tests-tensorflow

keras-tests-jax: $(BOTH)/.ready
	$(call in,keras3-both) tests/keras_tests/run.py --log out/keras-tests/jax \
		--results benchmarks/results/keras-tests-jax.txt

keras-tests-tensorflow: $(BOTH)/.ready
	KERAS_BACKEND=tensorflow $(BOTH)/bin/python tests/keras_tests/run.py --log out/keras-tests/tensorflow \
		--results benchmarks/results/keras-tests-tensorflow.txt

# Mutation testing: which of the faults in tests/faults the gate catches, on each runtime. Many hours; what is in
# out/faults.jsonl already is not run again.
faults: $(TF)/.ready $(JAX)/.ready $(TF215)/.ready $(TF221)/.ready
	$(call in,keras3-tf) tests/faults/run.py

# A short suite on every version that this release says it works with (docs/versions.md), and on the nightlies.
versions: $(UV)
	$(VERSIONS) --results benchmarks/results/versions.json

test-oldest-%: $(UV)
	@echo "The oldest versions:"
	$(VERSIONS) oldest-$*

# What is published: the wheel and the sources, which are made twice and must be the same to the byte; their digests, in
# out/SHA256SUMS; and how PyPI will show the README.
dist: $(BUILD)/.ready
	rm -rf dist out/dist
	$(BUILD)/bin/python .ci/release.py check
	$(UV) build --quiet --python $(PYTHON) --build-constraints locks/build.txt --require-hashes --out-dir dist
	$(UV) build --quiet --python $(PYTHON) --build-constraints locks/build.txt --require-hashes --out-dir out/dist
	diff --recursive dist out/dist
	$(BUILD)/bin/twine check --strict dist/*
	cd dist && sha256sum *.whl *.tar.gz | tee ../out/SHA256SUMS

# What one uploads to Kaggle, into out/kaggle; its kernels are run here, offline, with the versions of the image. With
# KAGGLE_USERNAME the metadata has your name there; KAGGLE=--store keeps what the kernels printed in examples/.
kaggle: $(UV)
	$(UV) run --no-project --python $(PYTHON) tests/versions/kaggle.py $(UV) $(PYTHON) $(KAGGLE)

# The outputs that the notebooks in examples/ are stored with. `make docs` says when they are old.
notebooks: $(TF)/.ready
	mkdir -p out/notebooks
	$(TF)/bin/python tests/versions/kaggle_execute.py examples/find_the_bottleneck.ipynb out/notebooks
	$(MAKE) --no-print-directory kaggle KAGGLE=--store
	$(TF)/bin/python .ci/notebooks.py --stamp

check-wheel: $(UV)
	$(UV) run --no-project --python $(PYTHON) .ci/check_wheel.py $(UV) $(PYTHON)

benchmarks: $(TF)/.ready $(JAX)/.ready $(BOTH)/.ready $(COMPILER)/.ready .envs/peers/.ready
	$(TF)/bin/python benchmarks/step_time.py
	KERAS_BACKEND=jax $(JAX)/bin/python benchmarks/step_time.py
	PYTHONPATH=.envs/peers $(TF)/bin/python benchmarks/callback_overhead.py
	PYTHONPATH=.envs/peers KERAS_BACKEND=jax $(BOTH)/bin/python benchmarks/callback_overhead.py
	$(TF)/bin/python benchmarks/host_bottleneck.py
	KERAS_BACKEND=jax $(JAX)/bin/python benchmarks/host_bottleneck.py
	$(TF)/bin/python benchmarks/input_ladder.py
	JAX_PLATFORMS=cpu KERAS_BACKEND=jax $(COMPILER)/bin/python benchmarks/tpu_program.py
	KERAS_BACKEND=tensorflow $(COMPILER)/bin/python benchmarks/tpu_program.py
	JAX_PLATFORMS=cpu KERAS_BACKEND=jax $(COMPILER)/bin/python benchmarks/published_rates.py
	JAX_PLATFORMS=cpu KERAS_BACKEND=jax $(COMPILER)/bin/python benchmarks/memory_limit.py
	JAX_PLATFORMS=cpu KERAS_BACKEND=jax $(COMPILER)/bin/python benchmarks/layers.py
	JAX_PLATFORMS=cpu $(COMPILER)/bin/python benchmarks/embedding_scatter.py
	JAX_PLATFORMS=cpu KERAS_BACKEND=jax $(COMPILER)/bin/python benchmarks/resnet50_layers.py
	KERAS_BACKEND=tensorflow $(COMPILER)/bin/python benchmarks/resnet50_layers.py --targets v5e-8

# What pyproject.toml pins, with all that it needs, into locks/. LOCK=--upgrade takes the newest versions of the rest.
lock: $(UV)
	$(UV) run --no-project --python $(PYTHON) .ci/locks.py $(UV) $(LOCK)

$(UV): locks/tools.txt
	@echo "Installing uv into .envs/tools"
	@PIP_ROOT_USER_ACTION=ignore $(or $(shell command -v $(PYTHON)),python3) -m pip install --quiet --disable-pip-version-check --upgrade \
		--target .envs/tools --require-hashes --requirement $<
	@touch $@

.envs/peers/.ready: locks/peers.txt | $(UV)
	$(UV) pip install --quiet --python $(PYTHON) --no-deps --require-hashes --target $(@D) --requirement $<
	@touch $@

# An environment has what its locks say, and this package.
.SECONDEXPANSION:
.envs/%/.ready: $$(wildcard locks/$$*.txt locks/$$*-alone.txt) | $(UV)
	@echo "Installing $$(cat $^ | grep -c ==) packages into $(@D)"
	@$(UV) venv --quiet --clear --python $(if $(findstring keras2,$@),$(KERAS2_PYTHON),$(PYTHON)) $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --require-hashes $(addprefix --requirement ,$^)
	@$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --build-constraints locks/build.txt \
		--require-build-hashes --editable .
	@touch $@

# The site, into out/site; what it warns of, a link that leads nowhere say, is an error.
docs: $(DOCS)/.ready
	$(DOCS)/bin/python .ci/notebooks.py
	KERAS_BACKEND=jax $(DOCS)/bin/python -m sphinx -q -W --keep-going -E docs out/site

clean:
	rm -rf .envs build dist out
