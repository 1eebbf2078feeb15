"""What differs between versions of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private

VERSION = tuple(map(int, tf.__version__.split(".")[:2]))

# Whether it can give out a program as StableHLO, from which JAX's compiler reads it.
WRITES_STABLEHLO = VERSION >= (2, 19)
# Elsewhere until 2.18.
CoordinatedJob: Any = (
    private("tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2:CoordinatedJob")
    if VERSION >= (2, 19)
    else private("tensorflow.tsl.protobuf.coordination_config_pb2:CoordinatedJob")
)
graph_building_time: Any = private(
    "tensorflow.python.eager.polymorphic_function.tracing_compilation:_graph_building_time_counter"
)
# What tf.data knows about its stages; 2.15 does not expose it.
get_model_proto: Any = (
    private("tensorflow.python.data.experimental.ops.iterator_model_ops:get_model_proto")
    if VERSION >= (2, 16)
    else None
)
