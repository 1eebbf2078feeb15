"""Count the FLOPs of a train step on TensorFlow: traced once more, with a batch of static size, and never run."""

from __future__ import annotations

import concurrent.futures

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import FlopsCount, UncountableError
from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces
from keras_tpu_ext._runtime.tensorflow.graph_flops import flops_of_graph
from keras_tpu_ext._runtime.tensorflow.replicas import is_none
from keras_tpu_ext._runtime.training.model import ExactModel, is_own_step


def count_flops(model: Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step of `model`.

    It is traced outside the model's strategy, as the step of one device with the whole batch. For Keras's step and
    ours, the optimizer and the metrics are left out; for a user's own step, everything counts.

    Args:
        model: A compiled model that has been trained.
        batch: The specs of a batch that `Execution.run_and_describe` returns.
        batch_size: Number of examples in a batch over all replicas.
    """
    own = not is_own_step(type(model).train_step) and type(model).train_step is not keras.Model.train_step
    step = model.train_step if own else lambda data: _gradients(model, data)
    specs = [_with_size(spec, batch_size) for spec in tf.nest.flatten(batch)]

    def on_leaves(*tensors: tf.Tensor) -> Nest:
        rest = iter(tensors)
        with patched(_metric_updates(model)):
            return step(tf.nest.pack_sequence_as(batch, [None if spec is None else next(rest) for spec in specs]))

    traced = tf.function(as_keras_traces(on_leaves))
    # Keras 2 calls callbacks inside the scope of the strategy; a new thread is outside all scopes.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        present = [spec for spec in specs if spec is not None]
        graph = thread.submit(lambda: traced.get_concrete_function(*present)).result().graph
    return FlopsCount(flops_of_graph(graph, graph.outputs) / batch_size, batch_size)


def _gradients(model: Model, data: Nest) -> list[tf.Tensor | None]:
    """Compute the gradients as Keras's step or ours does."""
    if isinstance(model, ExactModel):
        return model._kte.gradients_of_batch(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        takes_training = getattr(model, "_call_has_training_arg", True)
        y_pred = model(x, training=True) if takes_training else model(x)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return tape.gradient(loss, model.trainable_variables)


def _with_size(spec: tf.TypeSpec, batch_size: int) -> tf.TensorSpec | None:
    """Return the spec of one tensor of a batch with a static batch size; `None` for an absent tensor."""
    spec = next(iter(getattr(spec, "_value_specs", [spec])))  # that of the first replica
    if is_none(spec):
        return None
    if not isinstance(spec, tf.TensorSpec):
        raise UncountableError(f"its batches have a part that is no dense tensor ({type(spec).__name__})")
    if not spec.shape.rank:
        return spec
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _metric_updates(model: Model) -> list[Patch]:
    """Return patches that turn off the updates of metrics, which fail outside a strategy with several replicas."""
    places = [(metric, "a metric's update_state") for metric in model.metrics]
    variables = [variable for metric in model.metrics for variable in metric.variables]
    places += [(one, f"a metric's variable's {method}") for one in variables for method in ("assign", "assign_add")]
    return [(*place, lambda update: _do_nothing) for place in places]


def _do_nothing(*args: object, **kwargs: object) -> None:
    pass
