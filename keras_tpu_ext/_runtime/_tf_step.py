"""The exact training and test step under `tf.distribute`, for any Keras on TensorFlow."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._tf_replicas import batch_size, sum_over_replicas


class ExactStep:
    """Train and test steps in which every replica works on its share of the global loss.

    The runtime's `TrainStep` inherits from this and provides `_unpack`, `_forward` and `_apply_reduced`, the
    three things that differ between Keras 2 and Keras 3.
    """

    def train_step(self: Any, data: Any) -> dict[str, Any]:
        """Take one optimizer step on one replica's part of the batch.

        Args:
            data: `x`, `(x, y)` or `(x, y, sample_weight)`; the leading dimension is this replica's share of
                the batch and may be 0.

        Returns:
            The metrics by name. Inside `fit`, `evaluate` and the `*_on_batch` methods they are then read
            once more over all replicas.
        """
        x, y, sample_weight = self._unpack(data)
        with tf.GradientTape() as tape:
            y_pred = self._forward(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            scaled_loss = loss if self.optimizer is None else self.optimizer.scale_loss(loss)
        self._track_loss(loss, x)
        if self.trainable_variables:
            gradients = tape.gradient(scaled_loss, self.trainable_variables)
            self._apply_reduced(sum_over_replicas(gradients), self.trainable_variables)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        """Evaluate one replica's part of the batch; takes and returns what `train_step` does."""
        x, y, sample_weight = self._unpack(data)
        y_pred = self._forward(x, training=False)
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
        self._track_loss(loss, x)
        return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _track_loss(self: Any, share: Any, x: Any) -> None:
        """Weigh the global loss by the global batch size, as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its share.
        """
        examples = batch_size(x)
        total = sum_over_replicas([examples if isinstance(examples, int) else tf.cast(examples, tf.float32)])[0]
        if share.shape.rank:  # reduction=None: unreduced losses, whose mean is what Keras tracks
            size = tf.cast(tf.size(share), tf.float32)
            share = tf.math.divide_no_nan(tf.reduce_sum(tf.cast(share, tf.float32)), sum_over_replicas([size])[0])
        self._loss_tracker.total.assign_add(tf.cast(share, tf.float32) * tf.cast(total, tf.float32))
        self._loss_tracker.count.assign_add(tf.cast(examples, tf.float32))
