"""Which Keras the tests run on."""

from keras_tpu_ext._runtime.select import chosen

IS_KERAS2 = chosen() == "keras2_tf"
