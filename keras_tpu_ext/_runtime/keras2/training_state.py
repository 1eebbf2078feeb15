"""The state of a training run with Keras 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Layer, Model, Nest, Optimizer, Tensor, Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2.data_adapter import reading_batches as reading_batches
from keras_tpu_ext._runtime.keras2.program import is_legacy
from keras_tpu_ext._runtime.tensorflow.replicas import with_none
from keras_tpu_ext._runtime.tensorflow.training_state import all_gather_int as all_gather_int
from keras_tpu_ext._runtime.tensorflow.training_state import assign_variables, read_variables, variables_of_step
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext._runtime.training.models import draws_random_numbers, flatten_layers
from keras_tpu_ext.errors import CheckpointError

_OPTIMIZERS = (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)


def read(model: Model, *, on_host: bool) -> list[SavedVariable]:
    """Return the value of each variable of `model` that training changes, always on the host."""
    if not _has_trained(model) and not _has_own_step(model):  # it may have to stop before the first step
        with model._kte.own_scope():
            _build(model)
    return read_variables(all_variables(model))


def assign(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Assign values that `read` returned to the variables of `model`."""
    with model._kte.own_scope():
        if _has_own_step(model):
            _assign_as_built(model, saved)
            return
        _build(model)
        assign_variables(all_variables(model), saved)


def not_kept(model: Model) -> str:
    """Return which state of `model` cannot be kept: layers may draw from operations that expose no state."""
    layers = [layer for layer in flatten_layers(model) if draws_random_numbers(layer)]
    names = [layer.name for layer in layers if _generator_of(layer) is None]
    if not names:
        return ""
    return (
        f"the random numbers of {', '.join(names)}. For layers that draw the same again write "
        "keras.backend.experimental.enable_tf_random_generator() before the line that makes the model"
    )


def all_variables(model: Model) -> list[tuple[str, Variable]]:
    """Return each variable of `model` that training changes and its role, each of them once."""
    candidates = [*tf.nest.flatten(model.optimizer), *vars(model).values()]
    optimizers = [one for one in candidates if isinstance(one, _OPTIMIZERS)]
    named = [("weight", variable) for variable in model.weights]
    named += [("optimizer", variable) for optimizer in optimizers for variable in _variables_of_optimizer(optimizer)]
    named += [("metric", variable) for metric in model.metrics for variable in metric.variables]
    generators = [_generator_of(layer) for layer in [model, *flatten_layers(model)]]
    named += [("random", generator.state) for generator in generators if generator is not None]
    named += variables_of_step(model)
    return list({id(variable): (role, variable) for role, variable in reversed(named)}.values())[::-1]


def _variables_of_optimizer(optimizer: Optimizer) -> Iterator[Variable]:
    """Yield its variables, those of the optimizer that it wraps, and those that callbacks change (learning rate)."""
    if not is_legacy(optimizer):
        yield from optimizer.variables
        if isinstance(optimizer.learning_rate, tf.Variable):
            yield optimizer.learning_rate
    elif not hasattr(optimizer, "inner_optimizer"):
        yield from optimizer.variables()
        yield from (value for _, value in sorted(optimizer._hyper.items()) if isinstance(value, tf.Variable))
    for name in ("inner_optimizer", "_optimizer"):  # of a LossScaleOptimizer, of a wrapper of TensorFlow Addons
        inner = getattr(optimizer, name, None)
        if isinstance(inner, _OPTIMIZERS):
            yield from _variables_of_optimizer(inner)
    if getattr(optimizer, "dynamic", False):
        yield optimizer._loss_scale._current_loss_scale
        yield optimizer._loss_scale.counter


def _generator_of(layer: Layer) -> tf.random.Generator | None:
    return getattr(getattr(layer, "_random_generator", None), "_generator", None)


def _has_own_step(model: Model) -> bool:
    return not is_own_step(type(model).train_step)


def _assign_as_built(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Assign values to a model with its own `train_step`, which alone knows what it creates in its first step."""
    try:
        assign_variables(all_variables(model), saved)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Its own train_step makes variables when it first runs. Build the model and its optimizers "
            "before fit, such as self.optimizer.build(self.trainable_variables)"
        ) from None


def _has_trained(model: Model) -> bool:
    return bool(model.built and model.compiled_metrics.built)


def _build(model: Model) -> None:
    """Create the variables that Keras creates in the first step."""
    if not _has_trained(model):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(with_none(model._kte.running.data.element_spec))
        predictions = model(_one_example(x, getattr(model, "inputs", None)), training=False)
        model.compiled_loss.build(predictions)
        model.compiled_metrics.build(predictions, _one_example(y, None))
    for optimizer in tf.nest.flatten(model.optimizer):
        if is_legacy(optimizer):
            getattr(optimizer, "inner_optimizer", optimizer)._create_all_weights(model.trainable_variables)
    model._kte.build_optimizer()
    model._kte.build_accumulator()


def _one_example(spec: Nest, inputs: Nest) -> Nest:
    """Return a batch of one example for specs; sizes that they leave open, as a generator's do, are the inputs'."""
    leaves = tf.nest.flatten(spec)
    declared = leaves if inputs is None else tf.nest.flatten(inputs)
    declared = declared if len(declared) == len(leaves) else leaves

    def zeros(leaf: tf.TensorSpec | None, other: Tensor) -> tf.Tensor | None:
        if leaf is None:
            return None
        is_open = leaf.shape.rank is None or None in leaf.shape[1:]
        shape = other.shape if is_open and other.shape.rank is not None else leaf.shape
        sizes = [] if shape.rank is None else [1 if size is None else size for size in shape[1:]]
        return tf.zeros([1, *sizes], leaf.dtype)

    return tf.nest.pack_sequence_as(spec, [zeros(*pair) for pair in zip(leaves, declared, strict=True)])
