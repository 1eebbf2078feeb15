"""What is specific to Keras 2 around a step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Callback, Layer, Metric, Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat.keras2 import LossScaleOptimizer, keras, private
from keras_tpu_ext._runtime.keras2 import batch_statistics
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.keras2.loss import ExactLosses
from keras_tpu_ext._runtime.keras2.metrics import ExactMetrics
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, KERAS_PATCHES, averaging, is_mean_local, valid_fraction
from keras_tpu_ext._runtime.training import models
from keras_tpu_ext._runtime.training.adapter import pads_to_longest
from keras_tpu_ext._runtime.training.batch import Batch

# The key of the epoch's number in a checkpoint of `BackupAndRestore`.
_SAVED_EPOCH = "ckpt_saved_epoch/.ATTRIBUTES/VARIABLE_VALUE"


def _reducing(stock: Callable[[Any], str]) -> Callable[[Any], str]:
    """Wrap the method of losses that returns their reduction: Keras refuses to take a mean on replicas."""

    def reduction_of(loss: Any) -> str:
        if not is_mean_local():
            return stock(loss)
        reductions = keras.losses.Reduction
        return str(reductions.SUM_OVER_BATCH_SIZE if loss.reduction == reductions.AUTO else loss.reduction)

    return reduction_of


_Optimizer: Any = private("optimizers.optimizer:Optimizer")
_Legacy: Any = keras.optimizers.legacy.Optimizer
KERAS_PATCHES += [
    (_Optimizer, "keras.src.optimizers.optimizer.Optimizer.aggregate_gradients", averaging),
    (_Legacy, "keras.optimizers.legacy.Optimizer._aggregate_gradients", averaging),
    (keras.losses.Loss, "keras.losses.Loss._get_reduction", _reducing),
]


def _is_known(thing: Any) -> bool:
    module = str(getattr(thing, "__module__", ""))
    runs_code = thing is keras.layers.Lambda or module.endswith(".tf_op_layer")
    return module.startswith(("keras.", "tf_keras.", "keras_tpu_ext.")) and not runs_code


def _layer_is_known(layer: Layer) -> bool:
    functions = [layer.activity_regularizer, getattr(layer, "activation", None)]
    of_layer = [type(layer), *(function for function in functions if function is not None)]
    compares_rows = isinstance(layer.activity_regularizer, keras.regularizers.OrthogonalRegularizer)
    return all(map(_is_known, of_layer)) and not compares_rows and not pads_to_longest(layer)


class Keras2Adapter:
    """The `TensorFlowAdapter` of Keras 2."""

    probabilities_taken_for_logits = staticmethod(models.probabilities_taken_for_logits)
    exclude_padding = staticmethod(batch_statistics.exclude_padding)
    build_for = staticmethod(optimizers.build)
    apply_gradients = staticmethod(optimizers.apply_summed)

    def make_exact(self, model: Model, batch: Batch) -> None:
        """Replace the compiled loss and metrics by exact ones."""
        model.compiled_loss = ExactLosses.of(model.compiled_loss)
        ExactMetrics.attach(model.compiled_metrics)

    def build_optimizer(self, model: Model) -> None:
        """Make the optimizer's variables; with several optimizers, only the user's step knows which each updates."""
        if not tf.nest.is_nested(model.optimizer):
            optimizers.build(model.optimizer, model.trainable_variables)

    def backup_epoch(self, backup: Callback) -> int:
        """Return the number of epochs after which a `BackupAndRestore` resumes training."""
        saved = tf.train.latest_checkpoint(os.path.join(backup.backup_dir, "chief"))
        return 0 if saved is None else int(tf.train.load_variable(saved, _SAVED_EPOCH)) + 1

    def write_patches(self, callback: Callback, save_weights: Callable[[str], None]) -> list[Patch]:
        """Return no patches: callbacks of Keras 2 know about other processes."""
        return []

    def has_partial_variables(self, model: Model) -> bool:
        """Return whether any saved variable is summed over replicas; the variables of metrics are saved too."""
        variables = [*model.variables, *(variable for metric in model.metrics for variable in metric.variables)]
        return any(variable.synchronization == tf.VariableSynchronization.ON_READ for variable in variables)

    def own_layers(self, model: Model) -> list[str]:
        """Return the names of layers and operations that are not known to process each example independently."""
        inner = model._kte.inner
        if not all(_is_known(function) for function in (type(inner).call, type(model).predict_step)):
            return [model.name]
        return [layer.name for layer in inner._flatten_layers(include_self=False) if not _layer_is_known(layer)]

    def forward(self, model: Model, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of `model`."""
        return model(x, training=training)

    def compute_loss(self, model: Model, *, y: Nest, training: bool, **batch: Nest) -> tf.Tensor | None:
        """Call `compute_loss` of `model`; Keras 2 trains only with a loss, and evaluates without one too."""
        loss = model.compute_loss(y=y, **batch)
        if training:
            model._validate_target_and_loss(y, loss)
        return loss

    def custom_metrics(self, model: Model) -> list[Metric]:
        """Return the metrics other than those of `compile`, which know about padding."""
        compiled = [*model.compiled_loss.metrics, *model.compiled_metrics.metrics]
        return [metric for metric in model.metrics if all(metric is not other for other in compiled)]

    def layer_losses(self, model: Model) -> list[tf.Tensor]:
        """Return the current `add_loss` terms of layers."""
        return [loss for layer in model._flatten_layers() for loss in layer._eager_losses]

    @contextlib.contextmanager
    def record_layer_losses(self, model: Model) -> Iterator[None]:
        """After the block, `BATCH.layer_losses` has the `add_loss` terms; every replica, a thread, has its own."""
        yield
        BATCH.layer_losses = [(layer, loss) for layer in model._flatten_layers() for loss in layer._eager_losses]
        unreduced = [loss for _, loss in BATCH.layer_losses if loss.shape.rank]
        BATCH.layer_loss_elements = _elements_of_examples(unreduced[0]) if unreduced else None

    def set_layer_losses(self, model: Model, losses: Sequence[tuple[Layer, tf.Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""
        for layer in model._flatten_layers():
            layer._eager_losses = [loss for owner, loss in losses if owner is layer]

    def weight_losses(self, model: Model) -> list[tf.Tensor]:
        """Return the losses of regularizers, and of functions passed to `add_loss`."""
        losses = [loss() for layer in model._flatten_layers() for loss in layer._callable_losses]
        return [loss for loss in losses if loss is not None]

    def scale_loss(self, optimizer: Optimizer, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale of an optimizer that scales it."""
        return optimizer.get_scaled_loss(loss) if isinstance(optimizer, LossScaleOptimizer) else loss

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[tf.Tensor]) -> Sequence[Any]:
        """Undo `scale_loss`, which an optimizer of Keras 2 leaves to whoever computes the gradients."""
        return optimizer.get_unscaled_gradients(gradients) if isinstance(optimizer, LossScaleOptimizer) else gradients


def _elements_of_examples(unreduced: tf.Tensor) -> tf.Tensor:
    elements = tf.cast(tf.size(unreduced), tf.float32) * valid_fraction()
    return elements if BATCH.has_any is None else tf.where(BATCH.has_any, elements, 0.0)
