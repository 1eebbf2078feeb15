"""Which Keras the tests run on, and what they mean by `import keras`.

What a fresh process is to build says `from kind_of_keras import keras`: there is no conftest there.
"""

import importlib.util
import sys

from keras_tpu_ext._runtime.common.select import chosen

IS_KERAS2 = chosen() == "keras2_tf"
# The names by which the marks of a test call this runtime.
RUNTIMES = {chosen()}
if IS_KERAS2:
    RUNTIMES.add("keras2_tf215" if importlib.util.find_spec("tf_keras") is None else "keras2_tf221")

if IS_KERAS2:
    from keras2_facade import keras3_names

    sys.modules["keras"] = keras = keras3_names()
else:
    import keras as keras

VERSION = (2, 15) if IS_KERAS2 else tuple(map(int, keras.__version__.split(".")[:2]))
# Whether the loss of an activity regulariser is divided by the size of the batch.
DIVIDES_REGULARIZERS = IS_KERAS2 or VERSION >= (3, 14)
# Whether a progress bar shows our numbers rounded; else it has four decimals for all.
ROUNDS_IN_BARS = IS_KERAS2 or VERSION >= (3, 12)


def tensorflow_version():
    """Return the version of TensorFlow, of which there is none on JAX: a very new one."""
    if "keras3_jax" in RUNTIMES:
        return (99, 0)
    import tensorflow as tf

    return tuple(map(int, tf.__version__.split(".")[:2]))


# What the source of a fresh process says where it uses nothing of these tests, as a user's does.
IMPORT_KERAS = "from tensorflow import keras" if IS_KERAS2 else "import keras"
