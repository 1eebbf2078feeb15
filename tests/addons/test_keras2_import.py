"""TensorFlow Addons on Keras 2, as `from keras_tpu_ext.addons import tfa` gives it."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

if importlib.util.find_spec("tensorflow_addons") is None:
    pytest.skip("TensorFlow Addons is not here", allow_module_level=True)

from keras_tpu_ext.addons import tfa
from keras_tpu_ext.addons.equivalents import EQUIVALENTS

pytestmark = pytest.mark.runtimes("keras2_tf")

AS_PUBLISHED = tf.__version__.startswith("2.15.")


@pytest.mark.parametrize("symbol", EQUIVALENTS)
def test_every_symbol_that_has_an_equivalent_exists(symbol):
    module, name = symbol.split(".")
    assert callable(getattr(getattr(tfa, module), name))


def test_its_layers_are_layers_of_this_keras():
    assert issubclass(tfa.layers.GroupNormalization, tf.keras.layers.Layer)
    assert issubclass(tfa.optimizers.LAMB, tf.keras.optimizers.legacy.Optimizer)


@pytest.mark.gate_on("keras2_tf221")
def test_it_says_one_line_of_its_own_and_leaves_keras_as_it_was():
    program = """
        import sys, warnings
        import keras_tpu_ext
        before = sys.modules.get("keras")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            from keras_tpu_ext.addons import tfa
        assert sys.modules.get("keras") is before or "keras.src" in sys.modules
        print([str(one.message) for one in told if "Addons" in str(one.message)])
    """
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    version = importlib.metadata.version("tensorflow-addons")
    if not AS_PUBLISHED:
        assert printed.startswith(f"['TensorFlow Addons {version} was made for TensorFlow 2.15. On {tf.__version__}")
        assert printed.count("Addons") == 1
    else:
        assert "has ended development" in printed  # its own words
