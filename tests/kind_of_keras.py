"""Which Keras, and which TensorFlow, the tests run on."""

from keras_tpu_ext._look import version
from keras_tpu_ext._runtime.select import chosen

IS_KERAS2 = chosen() == "keras2_tf"
IS_TENSORFLOW_FOR_TPUS = version("tensorflow-tpu") is not None
