"""Whole programs in processes of their own: what depends on being first cannot be tried in this one."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.runtimes("keras3_tf")

ROOT = Path(__file__).resolve().parents[2]
MENTIONED = ("TPU", "KERAS", "TF_", "CUDA", "KUBE")


def python(program, **environ):
    """Run `program` in a new Python, in a plain environment plus `environ`; return the finished process."""
    plain = {name: value for name, value in os.environ.items() if not any(word in name for word in MENTIONED)}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-W", "error:::keras_tpu_ext", "-c", textwrap.dedent(program)],
        env={**plain, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def lines_of(program, **environ):
    done = python(program, **environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_import_and_looking_start_no_device_and_a_rehearsal_follows():
    program = """
        import os
        before = dict(os.environ)
        import keras_tpu_ext as kte
        watched = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
        changed = [name for name in watched if os.environ.get(name) != before.get(name)]
        print("variables set:", changed)
        from tensorflow.python.eager import context
        print("after import:", context.context()._initialized)
        kte.hardware.detect(), kte.hardware.find_tpu(), kte.precision.recommended_policy()
        print("after looking:", context.context()._initialized)
        try:
            kte.strategy_scope(require="tpu")
        except kte.errors.HardwareNotFoundError:
            print("after an error:", context.context()._initialized)
        print("policy:", kte.strategy_scope(precision="auto").precision)
        print("after one replica:", context.context()._initialized)

        import keras, numpy as np, tensorflow as tf
        keras.utils.set_random_seed(1)
        with kte.strategy_scope(replicas=8) as scope:
            inputs = keras.Input((3,))
            model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse")
        print(scope.num_replicas, type(scope.strategy).__name__, len(tf.config.list_logical_devices("CPU")))
        x = np.ones((scope.global_batch_size(4), 3), "float32")
        losses = model.fit(x, x[:, :1], batch_size=len(x), epochs=3, verbose=0).history["loss"]
        print("learns:", losses[0] > losses[1] > losses[2])
    """
    assert lines_of(program) == [
        "variables set: []",
        "after import: False",
        "after looking: False",
        "after an error: False",
        "policy: float32",
        "after one replica: False",
        "8 MirroredStrategy 8",
        "learns: True",
    ]


@pytest.mark.exhaustive
def test_a_rehearsal_that_is_too_late_names_what_came_too_early():
    program = """
        import keras
        import keras_tpu_ext as kte
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        try:
            kte.strategy_scope(replicas=8)
        except kte.errors.ScopeError as error:
            print(error)
    """
    (text,) = lines_of(program)
    assert text.startswith(
        "strategy_scope(replicas=8) needs 8 virtual CPU devices, but TensorFlow has already started its devices "
        "with 1 of them; they cannot be added afterwards. An earlier call came too early: it made "
    )
    assert "a variable" in text
    assert "What to do: write `with strategy_scope(replicas=8) as scope:` before the first line that makes" in text


@pytest.mark.exhaustive
def test_an_unusable_local_tpu_is_told_and_a_rehearsal_still_works():
    program = """
        import warnings
        import keras_tpu_ext as kte
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scope = kte.strategy_scope(replicas=8)
        print([type(one.message).__name__ for one in caught])
        print(caught[0].message)
        print(scope)
        try:
            kte.strategy_scope(require="tpu")
        except kte.errors.HardwareNotFoundError as error:
            print(type(error).__name__, error)

        # The same for real, past the look at the kernels: TensorFlow is asked, and starts its devices for it.
        from keras_tpu_ext._runtime.tensorflow import devices
        devices.has_tpu_kernels = lambda: True
        try:
            kte.strategy_scope(require="tpu")
        except kte.errors.TpuUnusableError as error:
            print(type(error.__cause__).__name__, error)
    """
    kinds, warning, scope, looked, tried = lines_of(program, TPU_NAME="local")
    cause = "This TensorFlow was built without TPU kernels"
    cure = "What to do: install a pair that fits, pip install tensorflow-tpu 'libtpu<=0.0.31'"
    assert kinds == "['HardwareUnusableWarning']"
    assert warning.startswith(
        f"The TPU found by TPU_NAME=local cannot be used, so the next best device is taken. {cause}"
    )
    assert cure in warning
    assert scope.startswith("8 replicas on CPU")
    assert looked.startswith(f"TpuUnusableError {cause}")
    assert cure in looked
    assert tried.split(" ", 1)[0] in ("InvalidArgumentError", "NotFoundError")
    assert tried.split(" ", 1)[1].startswith(cause)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"KERAS_BACKEND": "jax"}, "is set to a backend whose framework, jax, is not installed. Before the first"),
        ({"TF_USE_LEGACY_KERAS": "1"}, "the package tf-keras, which is Keras 2 for tensorflow 2."),
    ],
)
def test_a_runtime_that_cannot_be_had_is_one_clear_error(environ, found):
    program = """
        try:
            import keras_tpu_ext
        except ImportError as error:
            print(type(error).__name__, error)
    """
    (text,) = lines_of(program, **environ)
    assert text.startswith("RuntimeNotSupportedError ")
    assert found in text
