"""FLOPs of a model's training step on TensorFlow: traced once more, with a batch of a fixed size, and never run.

Private names that this module leans on (tests/_runtime/test_tensorflow_executions.py and test_tf_private_names.py
watch them): TensorFlow's `PerReplicaSpec._value_specs`, and of Keras 3 `Trainer._call_has_training_arg`.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import FlopsCount, UncountableError
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.tensorflow.graph_flops import flops_of_graph
from keras_tpu_ext._runtime.tensorflow.step import ExactStep

AsKerasTraces = Callable[[Callable[..., Any]], Callable[..., Any]]


def count_flops(model: Any, batch: Any, batch_size: int, as_keras_traces: AsKerasTraces) -> FlopsCount:
    """Return the FLOPs of a step of `model`.

    It is traced outside of the model's strategy, which makes it the step of one device with the whole batch. Of a
    step that is Keras's or ours, the optimizer and the metrics are left out; of one of the user's own nothing is.

    Args:
        model: A compiled model that has been trained.
        batch: What an execution says of its batches, see `Execution.run_and_describe`.
        batch_size: Number of examples in a batch over all replicas.
        as_keras_traces: Makes a function one whose code AutoGraph treats as it does that of Keras's train function.

    Raises:
        UncountableError: If they cannot be counted.
    """
    own = type(model).train_step not in (keras.Model.train_step, ExactStep.train_step)
    step = model.train_step if own else lambda data: _gradients(model, data)
    specs = [_of_size(spec, batch_size) for spec in tf.nest.flatten(batch)]

    def on_leaves(*tensors: Any) -> Any:
        rest = iter(tensors)
        with patched(_updates_of_metrics(model)):
            return step(tf.nest.pack_sequence_as(batch, [None if spec is None else next(rest) for spec in specs]))

    traced = tf.function(as_keras_traces(on_leaves))
    # Keras 2 calls callbacks inside the scope of the strategy, and a new thread is outside of all scopes.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        there = [spec for spec in specs if spec is not None]
        graph = thread.submit(lambda: traced.get_concrete_function(*there)).result().graph
    return FlopsCount(flops_of_graph(graph, graph.outputs) / batch_size, batch_size)


def _gradients(model: Any, data: Any) -> Any:
    """Return the gradients of a step that is Keras's or ours."""
    if isinstance(model, ExactStep):
        return model._gradients_of_batch(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        takes_training = getattr(model, "_call_has_training_arg", True)
        y_pred = model(x, training=True) if takes_training else model(x)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return tape.gradient(loss, model.trainable_variables)


def _of_size(spec: Any, batch_size: int) -> Any:
    """Return what describes one tensor of a batch, with its number of examples."""
    spec = next(iter(getattr(spec, "_value_specs", [spec])))  # that of a replica's part
    if (
        isinstance(spec, tf.OptionalSpec) or type(spec).__name__ == "NoneTensorSpec"
    ):  # which TensorFlow does not export
        return None
    if not isinstance(spec, tf.TensorSpec):
        raise UncountableError(f"its batches have a part that is no dense tensor ({type(spec).__name__})")
    if not spec.shape.rank:
        return spec
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _updates_of_metrics(model: Any) -> list[Any]:
    """Return what updates metrics; outside of their strategy those of several replicas cannot be updated."""
    places = [(metric, "update_state") for metric in model.metrics]
    variables = [variable for metric in model.metrics for variable in metric.variables]
    places += [(variable, method) for variable in variables for method in ("assign", "assign_add")]
    return [(*place, lambda update: _nothing) for place in places]


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Update nothing."""
