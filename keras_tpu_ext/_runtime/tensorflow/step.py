"""The exact training and test step under `tf.distribute`, for any Keras on TensorFlow."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import PaddedBatch, PaddedOutputs, without_own_weights
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    batch_context,
    gather_examples,
    has_any,
    needs_gather,
    real_rows,
    valid_fraction,
    whole_batch_view,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.custom_metrics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import finite_if_empty, no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.replicas import (
    as_global,
    num_replicas,
    share_as_whole,
    sum_over_replicas,
)
from keras_tpu_ext._runtime.tensorflow.update import accumulate_or_apply
from keras_tpu_ext._runtime.training.augment import Augments


class ExactStep(Augments):
    """Train and test steps in which every replica works on its share of the global loss.

    The runtime's `TrainStep` inherits from this and provides what differs between Keras 2 and Keras 3:
    `_unpack`, `_forward`, `_scaled_by`, `_layer_losses`, `_record_layer_losses`, `_set_layer_losses`,
    `_weight_losses`, `_exclude_padding`, `_metrics_of_own_code`, `_has_own_compute_loss`, `_has_own_compute_metrics`,
    `_check_optimizer`, `_build_for`, `_apply_reduced` and, if a skipped step counts there, `_note_skipped_by`.
    """

    def predict_step(self: Any, data: Any) -> Any:
        """Predict one replica's part of the batch, which may be empty; of a padded one say which rows count."""
        x, _, _ = self._unpack(data)
        there = has_any(x)
        outputs = no_row_if_empty(self._forward(one_row_if_empty(x, there), training=False), there)
        return PaddedOutputs(outputs, real_rows(data)) if isinstance(data, PaddedBatch) else outputs

    def train_step(self: Any, data: Any) -> dict[str, Any]:
        """Take one optimizer step on one replica's part of the batch.

        Args:
            data: `x`, `(x, y)` or `(x, y, sample_weight)`; the leading dimension is this replica's share of
                the batch and may be 0.

        Returns:
            The metrics by name. Inside `fit`, `evaluate` and the `*_on_batch` methods they are then read
            once more over all replicas.
        """
        data = no_row_if_empty(data, BATCH.has_examples)
        x, y, sample_weight = self._unpack(without_own_weights(data))
        with batch_context(data):
            (BATCH.total,) = sum_over_replicas([BATCH.examples])
            before = self._snapshot()
            x, y = self._augmented(x, y)
            with tf.GradientTape() as tape:
                y_pred = self._predictions(x, training=True)
                loss, tracked = self._share_of_loss(x, y, y_pred, sample_weight, training=True)
            self._track_loss(tracked)
            if self.trainable_variables:
                gradients = self._gradients(loss, self.trainable_variables, self.optimizer, tape)
                accumulate_or_apply(self, gradients, self.trainable_variables, self.optimizer, BATCH.total, before)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def _gradients_alone(self: Any, data: Any) -> Any:
        """Return the gradients that `train_step` takes for `data`, and change nothing."""
        x, y, sample_weight = self._unpack(without_own_weights(data))
        with batch_context(data):
            (BATCH.total,) = sum_over_replicas([BATCH.examples])
            x, y = self._augmented(x, y)
            with tf.GradientTape() as tape:
                y_pred = self._predictions(x, training=True)
                loss, _ = self._share_of_loss(x, y, y_pred, sample_weight, training=True)
            return self._gradients(loss, self.trainable_variables, self.optimizer, tape)

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        """Evaluate one replica's part of the batch; takes and returns what `train_step` does."""
        data = no_row_if_empty(data, BATCH.has_examples)
        x, y, sample_weight = self._unpack(without_own_weights(data))
        with batch_context(data):
            (BATCH.total,) = sum_over_replicas([BATCH.examples])
            y_pred = self._predictions(x, training=False)
            _, tracked = self._share_of_loss(x, y, y_pred, sample_weight, training=False)
            self._track_loss(tracked)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute what it likes from its arguments: it is then called with the
        batches of all replicas joined, and this method returns the whole loss.
        """
        layer_losses = self._layer_losses()  # before a sum over replicas lets another one put its own there
        losses = []
        if self._compile_loss is not None:
            rows = no_row_if_empty((y, y_pred, sample_weight), BATCH.has_examples)
            loss = self._compile_loss(*rows)
            losses += [] if loss is None else [loss]
        losses += layer_losses
        losses += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self._weight_losses()]
        if not losses:
            raise ValueError("No loss to compute. Provide a `loss` argument in `compile()`.")
        return losses[0] if len(losses) == 1 else sum(tf.cast(loss, losses[0].dtype) for loss in losses)

    def global_mean(self: Any, per_example: Any, sample_weight: Any = None) -> Any:
        """Return the mean over the whole batch, all replicas, of what this replica holds a part of.

        For a `train_step` of your own, inside its `GradientTape`; then call `minimize`. The value is the same
        on every replica, so it can be returned as a log; any function of it may be minimised.

        Args:
            per_example: Tensor whose first dimension is this replica's part of the batch, which may be empty.
            sample_weight: Weights to multiply it with, of the same leading dimensions. As in Keras, the
                denominator is the number of elements and not the sum of the weights.

        Returns:
            A scalar tensor.
        """
        values = tf.convert_to_tensor(per_example)
        if sample_weight is not None:
            weight = tf.cast(sample_weight, values.dtype)
            trailing = [1] * (values.shape.rank - weight.shape.rank)
            values *= tf.reshape(weight, tf.concat([tf.shape(weight), tf.constant(trailing, tf.int32)], 0))
        values = zero_invalid_rows(values) if values.shape.rank else values
        size, total = _number_of_elements(values), tf.reduce_sum(values)
        if BATCH.has_examples is not None:
            size, total = (tf.where(BATCH.has_examples, number, tf.zeros_like(number)) for number in (size, total))
        return as_global(tf.math.divide_no_nan(total, sum_over_replicas([size])[0]))

    def minimize(self: Any, loss: Any, variables: Any, optimizer: Any, tape: tf.GradientTape) -> None:
        """Take one step of `optimizer` on a loss made of `global_mean`.

        In the order of `train_step`: scale, gradient, sum over replicas, unscale, check, clip, apply.

        Args:
            loss: Scalar tensor, computed inside `tape` from values of `global_mean`, regularisers too:
                `self.global_mean(sum(network.losses))`.
            variables: The variables to update.
            optimizer: A Keras optimizer, made inside the model's `strategy_scope()`. There may be several.
            tape: The `tf.GradientTape` that watched.

        Under `loss_scale` every call is judged by itself: an inf in one network's gradients skips that network's
        update only. The scale is one for all optimizers, and every call counts for it as a step: with two
        optimizers `LossScale(growth_steps=4000)` grows as often as one optimizer does by default.

        Under `gradient_accumulation_steps` each optimizer has a window of its own, which counts its calls.

        Raises:
            ScopeError: If `optimizer` was made outside the model's `strategy_scope()`.
        """
        self._check_optimizer(optimizer)
        variables = list(variables)
        weight: Any = 1
        if self._step_state.accumulation_steps > 1 and BATCH.examples is not None:
            (weight,) = sum_over_replicas([BATCH.examples])
        accumulate_or_apply(self, self._gradients(loss, variables, optimizer, tape), variables, optimizer, weight)

    def _note_skipped_by(self, optimizer: Any) -> None:
        """Note, in a replica, that a step of `optimizer` was skipped: as a rule it does not count."""

    def _augmented(self: Any, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the batch as the model is to see it."""
        if not self._augments():
            return x, y
        there = BATCH.has_any
        x, y = one_row_if_empty((x, y), there)
        return no_row_if_empty(self._pair(_as_declared(x, getattr(self, "inputs", None)), y), there)

    def _predictions(self: Any, x: Any, *, training: bool) -> Any:
        """Return the predictions, and keep the `add_loss` terms as shares."""
        there = BATCH.has_any
        with (
            self._exclude_padding(),
            self._record_layer_losses(),
            mask_metrics(self._metrics_of_own_code()),
        ):
            y_pred = self._forward(one_row_if_empty(x, there), training=training)
        BATCH.layer_losses = [(layer, _share_of_layer_loss(loss)) for layer, loss in BATCH.layer_losses]
        return no_row_if_empty(y_pred, there)

    def _gradients(self: Any, loss: Any, variables: Any, optimizer: Any, tape: tf.GradientTape) -> Any:
        """Return the gradients of the scaled loss; scaling the seed is scaling the loss."""
        seed = tf.ones_like(loss)
        if self._step_state.loss_scale is not None:
            seed *= tf.cast(tf.convert_to_tensor(self._step_state.scale), seed.dtype)
        else:
            seed = self._scaled_by(optimizer, seed)
        gradients = tape.gradient(loss, variables, output_gradients=seed)
        return finite_if_empty(gradients, BATCH.has_any)

    def _snapshot(self: Any) -> list[tuple[Any, Any]]:
        """Return what the forward pass may change, with its values, in case that the step is skipped."""
        if self._step_state.loss_scale is None:
            return []
        return [(v, tf.identity(tf.convert_to_tensor(v))) for v in self.non_trainable_variables]

    def _share_of_loss(
        self: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool
    ) -> tuple[Any, Any]:
        """Return this replica's share of what is minimised, and of the one number that is tracked.

        They differ where a loss is not reduced: its gradient is that of the sum, and Keras tracks the mean.
        """
        layer_losses = BATCH.layer_losses
        self._set_layer_losses(layer_losses)
        if not needs_gather() or not self._has_own_compute_loss():
            share = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
            if share is None or not share.shape.rank:
                return share, share
            (size,) = sum_over_replicas([_number_of_elements(share)])
            return share, tf.math.divide_no_nan(tf.reduce_sum(share), size)
        # The user's own function may be anything: it gets the whole batch, on every replica.
        replicas = num_replicas()
        x, y, y_pred, sample_weight = gather_examples((x, y, y_pred, sample_weight))
        whole = [(layer, share_as_whole(share)) for layer, share in layer_losses]
        with whole_batch_view():
            self._set_layer_losses(whole)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        if loss is None:
            return None, None
        share = loss / tf.cast(replicas, loss.dtype)
        return share, tf.reduce_mean(share)

    def _updated_metrics(self: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        # Only a function of the user's updates other metrics than those of `compile`, which know of padded rows.
        padded = BATCH.real is not None and self._has_own_compute_metrics()
        with mask_metrics(self._metrics_of_own_code() if padded else ()):
            return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _track_loss(self: Any, share: Any) -> None:
        """Weigh the global loss by the global batch size, as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its share.
        """
        self._loss_tracker.total.assign_add(tf.cast(share, tf.float32) * tf.cast(BATCH.total, tf.float32))
        self._loss_tracker.count.assign_add(tf.cast(BATCH.examples, tf.float32))


def _number_of_elements(values: Any) -> Any:
    """Return how many elements of `values` belong to examples."""
    return tf.cast(tf.size(values), values.dtype) * tf.cast(valid_fraction(), values.dtype)


def _share_of_layer_loss(loss: Any) -> Any:
    """Return the share of an `add_loss` term: a scalar is a mean over the batch, anything else is summed."""
    loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
    share = tf.reduce_sum(zero_invalid_rows(loss) if loss.shape.rank else loss)
    if BATCH.total is None:
        return share
    if BATCH.has_any is not None:
        share = tf.where(BATCH.has_any, share, tf.zeros_like(share))
    if not loss.shape.rank:
        share *= tf.cast(BATCH.examples, share.dtype) / tf.cast(BATCH.total, share.dtype)
    return share


def _as_declared(x: Any, inputs: Any) -> Any:
    """Return `x` with the sizes of a model's only input, where the data do not tell them, as those of a generator."""
    if not isinstance(x, tf.Tensor) or not inputs or len(inputs) != 1 or x.shape.rank != len(inputs[0].shape):
        return x
    return tf.ensure_shape(x, (None, *inputs[0].shape[1:])) if None in tuple(x.shape)[1:] else x
