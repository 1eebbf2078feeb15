"""Rules for where the batch axis goes, for each type of TensorFlow's operations; see `graph_axis.py`."""

from keras_tpu_ext._runtime.tensorflow.graph_rules import arithmetic, control, shapes
from keras_tpu_ext._runtime.tensorflow.graph_rules.registry import RULES as RULES

__all__ = ["RULES", "arithmetic", "control", "shapes"]
