"""A release of Keras that calls a private name otherwise: the package imports, and what needs the name says so."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gate_on("keras3_jax")

KERAS2, KERAS3 = pytest.mark.runtimes("keras2_tf"), pytest.mark.runtimes("keras3_tf", "keras3_jax")
TENSORFLOW, JAX = pytest.mark.runtimes("keras3_tf"), pytest.mark.runtimes("keras3_jax")
# It imports a Keras in whose source a name is another one everywhere.
PROGRAM = """
import importlib.machinery, re, sys

NAME = sys.argv[1]

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        if NAME not in source:
            return super().get_code(fullname)
        return compile(re.sub(rf"\\b{NAME}\\b", f"{NAME}_of_another_release", source), self.path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name.split(".")[0] not in ("keras", "tf_keras"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)

import numpy as np
import keras_tpu_ext as kte
keras = kte._runtime.keras

x, y = np.ones((6, 2), "float32"), np.ones((6, 1), "float32")

def network():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

def told(function):
    try:
        function()
    except kte.errors.RuntimeNotSupportedError as error:
        return str(error)
    return "nothing was told"

def fit():
    model = kte.TPUModel.from_model(network())
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution="auto")
    model.fit(x, y, verbose=0)

def fit_stock():
    model = network()
    model.compile("sgd", "mse")
    return len(model.fit(x, y, verbose=0, callbacks=[kte.callbacks.Throughput()]).history["loss"])

print(told(fit))
print(fit_stock())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        # Classes that ours are made of.
        pytest.param("CompileLoss", marks=KERAS3),
        pytest.param("CompileMetrics", marks=KERAS3),
        pytest.param("LossesContainer", marks=KERAS2),
        # A method that ours overrides, and that Keras would not call any more.
        pytest.param("_symbolic_build", marks=JAX),
        pytest.param("_maybe_symbolic_build", marks=TENSORFLOW),
        pytest.param("get_data_handler", marks=KERAS2),
    ],
)
def test_the_package_imports_and_what_needs_the_name_says_so(name):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, epochs = done.stdout.splitlines()[-2:]
    assert f"{name}` is gone, a private name that keras_tpu_ext uses" in told
    assert "Upgrade this package, or write: pip install " in told
    assert epochs == "1"  # what does not need it goes on as before
