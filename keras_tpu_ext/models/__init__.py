"""Models whose training step is exact at any number of replicas."""

from keras_tpu_ext._runtime import LossScale as LossScale
from keras_tpu_ext.models.tpu_model import TPUModel as TPUModel
