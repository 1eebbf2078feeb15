"""Rules for where the batch axis goes, for each type of TensorFlow's operations; see `graph_axis.py`.

Importing this package registers them.
"""

from keras_tpu_ext._runtime.tensorflow.graph_axis import Walk as Walk
from keras_tpu_ext._runtime.tensorflow.graph_rules import arithmetic, control, shapes

__all__ = ["Walk", "arithmetic", "control", "shapes"]
