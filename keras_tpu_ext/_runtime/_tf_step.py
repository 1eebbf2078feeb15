"""The exact training and test step under `tf.distribute`, for any Keras on TensorFlow."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._tf_descent import descend
from keras_tpu_ext._runtime._tf_empty import finite_if_empty, no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime._tf_replicas import (
    as_global,
    batch_size,
    gather_batch,
    num_replicas,
    share_as_whole,
    sum_over_replicas,
    whole_batch_view,
)


class _Batch(threading.local):
    """What the step that runs in this thread (a replica has one) knows of its batch.

    Attributes:
        examples: Number of examples of this replica.
        total: Number of examples of all replicas.
        has_any: Whether this replica has any example; `None` where it is certain to have.
        not_a_stand_in: The same where a step of the user's own runs, which gets one row of ones instead of none;
            `None` in the steps here, which take that row away first.
        own_losses: Shares of the `add_loss` terms of its forward pass, by layer.
    """

    examples: Any = None
    total: Any = None
    has_any: Any = None
    not_a_stand_in: Any = None
    own_losses: Any = ()


_BATCH = _Batch()


class ExactStep:
    """Train and test steps in which every replica works on its share of the global loss.

    The runtime's `TrainStep` inherits from this and provides what differs between Keras 2 and Keras 3:
    `_unpack`, `_forward`, `_own_losses`, `_put_own_losses`, `_weight_losses`, `_statistics_only_if`,
    `_has_own_compute_loss`, `_check_optimizer` and `_apply_reduced`.
    """

    def predict_step(self: Any, data: Any) -> Any:
        """Predict one replica's part of the batch, which may be empty."""
        x, _, _ = self._unpack(data)
        has_any = _has_any(x)
        return no_row_if_empty(self._forward(one_row_if_empty(x, has_any), training=False), has_any)

    def train_step(self: Any, data: Any) -> dict[str, Any]:
        """Take one optimizer step on one replica's part of the batch.

        Args:
            data: `x`, `(x, y)` or `(x, y, sample_weight)`; the leading dimension is this replica's share of
                the batch and may be 0.

        Returns:
            The metrics by name. Inside `fit`, `evaluate` and the `*_on_batch` methods they are then read
            once more over all replicas.
        """
        x, y, sample_weight = self._unpack(no_row_if_empty(data, _BATCH.not_a_stand_in))
        with _counted(x):
            before = self._snapshot()
            with tf.GradientTape() as tape:
                y_pred = self._predictions(x, training=True)
                loss = self._share_of_loss(x, y, y_pred, sample_weight, training=True)
            self._track_loss(loss)
            if self.trainable_variables:
                gradients = self._gradients(loss, self.trainable_variables, self.optimizer, tape)
                descend(self, gradients, self.trainable_variables, self.optimizer, _BATCH.total, before)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        """Evaluate one replica's part of the batch; takes and returns what `train_step` does."""
        x, y, sample_weight = self._unpack(no_row_if_empty(data, _BATCH.not_a_stand_in))
        with _counted(x):
            y_pred = self._predictions(x, training=False)
            loss = self._share_of_loss(x, y, y_pred, sample_weight, training=False)
            self._track_loss(loss)
        return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute what it likes from its arguments: it is then called with the
        batches of all replicas joined, and this method returns the whole loss.
        """
        own_losses = [loss for _, of_layer in self._own_losses() for loss in of_layer]
        losses = []
        if self._compile_loss is not None:
            rows = no_row_if_empty((y, y_pred, sample_weight), _BATCH.not_a_stand_in)
            loss = self._compile_loss(*rows)
            losses += [] if loss is None else [loss]
        losses += own_losses
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
        size, total = tf.cast(tf.size(values), values.dtype), tf.reduce_sum(values)
        if _BATCH.not_a_stand_in is not None:
            size, total = (tf.where(_BATCH.not_a_stand_in, number, tf.zeros_like(number)) for number in (size, total))
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
        if not optimizer.built:  # inside the graph TensorFlow would trace twice, and keep both behind a condition
            with tf.init_scope():
                optimizer.build(variables)
        weight: Any = 1
        if self._step_state.accumulation_steps > 1 and _BATCH.examples is not None:
            (weight,) = sum_over_replicas([_BATCH.examples])
        descend(self, self._gradients(loss, variables, optimizer, tape), variables, optimizer, weight)

    def _predictions(self: Any, x: Any, *, training: bool) -> Any:
        """Return the predictions, and keep the `add_loss` terms as shares.

        Layers hold these terms until their next call, and that may be another replica's, at any sum over
        replicas: they are taken at once, and put back where `losses` is read.
        """
        has_any = _BATCH.has_any
        with self._statistics_only_if(has_any):
            y_pred = self._forward(one_row_if_empty(x, has_any), training=training)
        y_pred = no_row_if_empty(y_pred, has_any)
        _BATCH.own_losses = [
            (layer, [_share_of_own_loss(loss) for loss in of_layer]) for layer, of_layer in self._own_losses()
        ]
        return y_pred

    def _gradients(self: Any, loss: Any, variables: Any, optimizer: Any, tape: tf.GradientTape) -> Any:
        """Return the gradients of the scaled loss; scaling the seed is scaling the loss."""
        seed = tf.ones_like(loss)
        if self._step_state.loss_scale is not None:
            seed *= tf.cast(tf.convert_to_tensor(self._step_state.scale), seed.dtype)
        else:
            seed = optimizer.scale_loss(seed)
        return finite_if_empty(tape.gradient(loss, variables, output_gradients=seed), _BATCH.has_any)

    def _snapshot(self: Any) -> list[tuple[Any, Any]]:
        """Return what the forward pass may change, with its values, in case that the step is skipped."""
        if self._step_state.loss_scale is None:
            return []
        return [(v, tf.identity(tf.convert_to_tensor(v))) for v in self.non_trainable_variables]

    def _share_of_loss(self: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
        own_losses = _BATCH.own_losses
        self._put_own_losses(own_losses)
        if num_replicas() == 1 or not self._has_own_compute_loss():
            return self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        # The user's own function may be anything: it gets the whole batch, on every replica.
        replicas = num_replicas()
        x, y, y_pred, sample_weight = gather_batch((x, y, y_pred, sample_weight))
        whole = [(layer, [share_as_whole(share) for share in of_layer]) for layer, of_layer in own_losses]
        with whole_batch_view():
            self._put_own_losses(whole)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        return loss / tf.cast(replicas, loss.dtype)

    def _track_loss(self: Any, share: Any) -> None:
        """Weigh the global loss by the global batch size, as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its share.
        """
        if share.shape.rank:  # reduction=None: unreduced losses, whose mean is what Keras tracks
            size = tf.cast(tf.size(share), tf.float32)
            share = tf.math.divide_no_nan(tf.reduce_sum(tf.cast(share, tf.float32)), sum_over_replicas([size])[0])
        self._loss_tracker.total.assign_add(tf.cast(share, tf.float32) * tf.cast(_BATCH.total, tf.float32))
        self._loss_tracker.count.assign_add(tf.cast(_BATCH.examples, tf.float32))


@contextlib.contextmanager
def _counted(x: Any) -> Iterator[None]:
    """Know the batch, and how many examples all replicas have of it, while its step runs."""
    with known_batch(examples=batch_size(x), has_any=_has_any(x)):
        (_BATCH.total,) = sum_over_replicas([_BATCH.examples])
        yield


@contextlib.contextmanager
def known_batch(*, examples: Any, has_any: Any, not_a_stand_in: Any = None) -> Iterator[None]:
    """Know the batch while its step runs, and nothing of it afterwards: the next step may be another graph's."""
    before = dict(vars(_BATCH))
    _BATCH.examples = examples if isinstance(examples, int) else tf.cast(examples, tf.float32)
    _BATCH.has_any, _BATCH.not_a_stand_in = has_any, not_a_stand_in
    try:
        yield
    finally:
        vars(_BATCH).clear()
        vars(_BATCH).update(before)


def _has_any(x: Any) -> Any:
    """Return whether this replica has any example; `None` where it is certain to have."""
    examples = batch_size(x)
    if num_replicas() == 1 or (isinstance(examples, int) and examples > 0):
        return None
    return tf.greater(examples, 0)


def _share_of_own_loss(loss: Any) -> Any:
    """Return the share of an `add_loss` term: a scalar is a mean over the batch, anything else is summed."""
    loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
    share = tf.reduce_sum(loss)
    if _BATCH.total is None:
        return share
    if _BATCH.has_any is not None:
        share = tf.where(_BATCH.has_any, share, tf.zeros_like(share))
    if not loss.shape.rank:
        share *= tf.cast(_BATCH.examples, share.dtype) / tf.cast(_BATCH.total, share.dtype)
    return share
