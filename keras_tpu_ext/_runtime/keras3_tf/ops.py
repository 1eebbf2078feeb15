"""Operations for layers on Keras 3 and TensorFlow."""

# ruff: noqa: F403
from keras.ops import *

from keras_tpu_ext._runtime.compat.keras3 import add_counter as add_counter
from keras_tpu_ext._runtime.compat.keras3 import in_symbolic_call as in_symbolic_call
from keras_tpu_ext._runtime.compat.keras3 import no_autocast as no_autocast
from keras_tpu_ext._runtime.tensorflow.ops import ensure_shape as ensure_shape
from keras_tpu_ext._runtime.tensorflow.ops import one_hot_einsum as one_hot_einsum
from keras_tpu_ext._runtime.tensorflow.ops import one_hot_matmul as one_hot_matmul
from keras_tpu_ext._runtime.tensorflow.ops import value_of as value_of
