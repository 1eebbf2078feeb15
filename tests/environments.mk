# The environments that the tests run in. Of each: its folder in .envs; the marks of tests that are about it
# (tests/conftest.py); the tests that it is for, where these are not all; and its variables.
# The Makefile includes this file, and tests/support/environments.py reads it: only plain values, no functions.

export TF_CPP_MIN_LOG_LEVEL ?= 2
# Memory in large pages, where glibc can: half as many page faults, of which TensorFlow and XLA have many.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Keep what Python compiles, whatever is set here: else each of the many processes of the tests compiles TensorFlow anew.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.envs/bytecode

# Tests are about numbers and not about speed: so XLA compiles a program of theirs in a third of the time.
# And it keeps what it has compiled, for the other processes: half of the time of these tests goes into that.
JAX_TESTS := KERAS_BACKEND=jax XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
	--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1" \
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.envs/xla JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

keras3-tf.folder := keras3-tf
keras3-tf.marks := keras3_tf

keras3-jax.folder := keras3-jax
keras3-jax.marks := keras3_jax
keras3-jax.variables := $(JAX_TESTS)

# Keras 2, and TensorFlow Addons, which needs Python 3.11 or older: on the last TensorFlow that they were made for, and on
# a new one.
keras2-tf215.folder := keras2-tf215
keras2-tf215.marks := keras2_tf keras2_tf215

keras2-tf221.folder := keras2-tf221
keras2-tf221.marks := keras2_tf keras2_tf221
keras2-tf221.variables := TF_USE_LEGACY_KERAS=1

# JAX, with TensorFlow and Grain beside it.
keras3-both.folder := keras3-both
keras3-both.marks := keras3_jax
keras3-both.tests := tests/both
keras3-both.variables := $(JAX_TESTS)

# The same with the drop-in, which replaces much of Keras and TensorFlow in its process.
dropin.folder := keras3-both
dropin.marks := keras3_jax
dropin.tests := tests/dropin
dropin.variables := $(JAX_TESTS)

# JAX, with what `keras.callbacks.OrbaxCheckpoint` writes with.
keras3-orbax.folder := keras3-orbax
keras3-orbax.marks := keras3_jax
keras3-orbax.tests := tests/test_jax_sharded_files.py
keras3-orbax.variables := $(JAX_TESTS)

# The TPU compiler, beside everything that preflight lowers with.
compiler-jax.folder := keras3-compiler
compiler-jax.marks := keras3_jax
compiler-jax.tests := tests/compiler
compiler-jax.variables := $(JAX_TESTS) JAX_PLATFORMS=cpu

compiler-tf.folder := keras3-compiler
compiler-tf.marks := keras3_tf
compiler-tf.tests := tests/compiler

compiler-keras2.folder := keras3-compiler
compiler-keras2.marks := keras2_tf keras2_tf221
compiler-keras2.tests := tests/compiler
compiler-keras2.variables := TF_USE_LEGACY_KERAS=1

# TensorFlow with kernels for TPUs, which preflight refuses. Without a TPU: libtpu is not to ask the network for one.
tpu-kernels.folder := keras3-tpu-kernels
tpu-kernels.marks := keras3_tf
tpu-kernels.tests := tests/compiler/test_tensorflow_tpu_kernels.py
tpu-kernels.variables := TPU_SKIP_MDS_QUERY=1

# The variables in the environments of tests/versions: of these flags of XLA old and new versions know the first only.
versions-tensorflow.variables := KERAS_BACKEND=tensorflow
versions-jax.variables := KERAS_BACKEND=jax JAX_PLATFORMS=cpu XLA_FLAGS="--xla_backend_optimization_level=0"
versions-keras2.variables :=
