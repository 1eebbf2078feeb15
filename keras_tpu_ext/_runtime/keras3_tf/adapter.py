"""What is specific to Keras 3 around a step on TensorFlow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch, install, patched
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest, Optimizer, Variable
from keras_tpu_ext._runtime.compat.keras3 import DIVIDES_REGULARIZERS, moments_patches, regularizer_patches
from keras_tpu_ext._runtime.compat.keras3_tensorflow import is_summed_when_read
from keras_tpu_ext._runtime.keras3.adapter import Keras3Adapter
from keras_tpu_ext._runtime.keras3.per_example import own_layers
from keras_tpu_ext._runtime.keras3_tf.optimizer import apply_summed
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    KERAS_PATCHES,
    averaging,
    unscaled_if_local,
    valid_rows_of,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.batch_statistics import (
    has_any_example,
    regularizer_of_examples,
    regularizer_of_whole_batch,
    synchronizes,
    weighted_moments,
    weights_of,
)
from keras_tpu_ext._runtime.tensorflow.replicas import number_of_replicated

TFOptimizer: Any = private("keras.src.backend.tensorflow.optimizer:TFOptimizer")
losses: Any = private("keras.src.losses.loss")
_ALL_REDUCE = "keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients"
KERAS_PATCHES += [
    (TFOptimizer, _ALL_REDUCE, averaging),
    (losses, "keras.src.losses.loss.scale_loss_for_distribution", unscaled_if_local),
    (losses, "keras.src.losses.loss.unscale_loss_for_distribution", unscaled_if_local),
]
install([(keras.Variable, "keras.Variable.__int__", functools.partial(number_of_replicated, int))])
install([(keras.Variable, "keras.Variable.__float__", functools.partial(number_of_replicated, float))])


class Keras3TensorFlowAdapter(Keras3Adapter):
    """The `TensorFlowAdapter` of Keras 3."""

    own_layers = staticmethod(own_layers)
    apply_gradients = staticmethod(apply_summed)

    def has_partial_variables(self, model: Model) -> bool:
        """Return whether any saved variable is summed over replicas when it is read."""
        optimizer = getattr(model, "optimizer", None)  # a model that was never compiled has no attribute
        variables = [*model.variables, *getattr(optimizer, "variables", ())]
        return any(is_summed_when_read(variable) for variable in variables)

    def forward(self, model: Model, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of `model`."""
        return model(x, training=training) if model._call_has_training_arg else model(x)

    def compute_loss(self, model: Model, *, y: Nest, training: bool, **batch: Nest) -> tf.Tensor | None:
        """Call `compute_loss` of `model`, which need not accept `training`."""
        return model._compute_loss(y=y, training=training, **batch)

    def custom_metrics(self, model: Model) -> list[Metric]:
        """Return all metrics: those of `compile` know about padding."""
        return list(model.metrics)

    @contextlib.contextmanager
    def exclude_padding(self, model: Model) -> Iterator[None]:
        """Within the block, layers learn only from the examples of the batch."""
        layers = list(model._flatten_layers())
        patches = moments_patches(layers, functools.partial(_moments, model))
        if not DIVIDES_REGULARIZERS:
            patches += regularizer_patches(layers, regularizer_of_whole_batch)
        elif BATCH.valid is not None:
            patches += regularizer_patches(layers, regularizer_of_examples)
        with patched(patches):
            yield

    def layer_losses(self, model: Model) -> list[tf.Tensor]:
        """Return the current `add_loss` terms of layers."""
        return [loss for layer in model._flatten_layers() for loss in layer._get_own_losses()]

    @contextlib.contextmanager
    def record_layer_losses(self, model: Model) -> Iterator[None]:
        """Within the block, `add_loss` terms of this replica are added to `BATCH.layer_losses`."""
        # A layer keeps its terms until its next call, which may be another replica's: replicas take turns at every
        # sum over replicas, and a synchronized batch normalization has one in the middle of the forward pass.
        BATCH.layer_losses = []
        with patched([_recording_patch(layer) for layer in model._flatten_layers()]):
            yield

    def set_layer_losses(self, model: Model, losses: Sequence[tuple[Layer, tf.Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""
        for layer, _ in losses:
            layer._losses.clear()
        for layer, loss in losses:
            layer._losses.append(loss)

    def weight_losses(self, model: Model) -> list[tf.Tensor]:
        """Return the losses of regularizers."""
        return list(model._get_regularization_losses())

    def scale_loss(self, optimizer: Optimizer, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale of the optimizer."""
        return optimizer.scale_loss(loss)

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[tf.Tensor]) -> Sequence[Any]:
        """Return `gradients`: an optimizer of Keras 3 unscales them itself."""
        return gradients

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Create the variables of `optimizer` before the graph, which would be traced twice, into a condition."""
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(variables)


def _recording_patch(layer: Layer) -> Patch:
    def make(add_loss: Any) -> Any:
        def add_and_record(loss: tf.Tensor) -> None:
            before = len(layer._losses)
            add_loss(loss)
            BATCH.layer_losses += [(layer, added) for added in layer._losses[before:]]

        return add_and_record

    return layer, "a layer's add_loss", make


def _moments(
    model: Model, layer: Layer, stock: Any, inputs: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance; on a replica without examples, values that change nothing."""
    valid = valid_rows_of(inputs)
    if synchronizes(model, layer):
        weights = weights_of(inputs)  # if there is a mask, Keras looks at one replica only
        weights = weights if mask is None else weights * tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        return weighted_moments(inputs, layer._reduction_axes, weights, of_all_replicas=True)[:2]
    if valid is None:
        mean, variance = stock(inputs, mask)
    elif mask is None:
        axes = layer._reduction_axes
        mean, variance, _ = weighted_moments(inputs, axes, weights_of(inputs), of_all_replicas=False)
    else:
        mean, variance = stock(inputs, zero_invalid_rows(mask))
    has_any = has_any_example()
    if has_any is None:
        return mean, variance

    def or_moving(value: tf.Tensor, moving: keras.Variable) -> tf.Tensor:
        return tf.where(has_any, value, tf.reshape(tf.cast(moving.value, value.dtype), tf.shape(value)))

    return or_moving(mean, layer.moving_mean), or_moving(variance, layer.moving_variance)
