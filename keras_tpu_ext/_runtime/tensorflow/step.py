"""The exact training and test step under `tf.distribute`, for any Keras on TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import PaddedBatch, PaddedOutputs, without_own_weights
from keras_tpu_ext._runtime.common.types import Nest, Optimizer
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    batch_context,
    gather_examples,
    has_any,
    needs_gather,
    note_shared,
    valid_fraction,
    valid_rows,
    whole_batch_view,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.batch_statistics import mask_metrics
from keras_tpu_ext._runtime.tensorflow.empty_replicas import finite_if_empty, no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.lookups import mark_lookups_once_a_batch
from keras_tpu_ext._runtime.tensorflow.loop import GraphExecutionSchedule
from keras_tpu_ext._runtime.tensorflow.mixing import mixes
from keras_tpu_ext._runtime.tensorflow.overflow import ReplicatedOverflowWatch
from keras_tpu_ext._runtime.tensorflow.process_group import TensorFlowProcessGroup
from keras_tpu_ext._runtime.tensorflow.replicas import (
    as_global,
    num_replicas,
    share_as_whole,
    sum_over_replicas,
    with_none,
)
from keras_tpu_ext._runtime.tensorflow.scope_checks import check_optimizer_belongs, check_variables_belong
from keras_tpu_ext._runtime.tensorflow.update import accumulate_or_apply, flush_window, make_step_state
from keras_tpu_ext._runtime.tensorflow.whole_batch import install, predict_on_whole_batch
from keras_tpu_ext._runtime.training.adapter import TensorFlowAdapter
from keras_tpu_ext._runtime.training.augment import Augments
from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext._runtime.training.step_state import StepState


class ExactStep(Augments, ExactModel):
    """Train and test steps in which every replica works on its share of the global loss.

    The model's adapter handles what differs between Keras 2 and Keras 3.
    """

    _kte_adapter: TensorFlowAdapter
    _is_for_one_device = False  # whether a user's own step, and each batch normalization, has the whole batch

    def predict_step(self: Any, data: Nest) -> Any:
        """Predict one replica's part of the batch, which may be empty; for a padded one say which rows count."""
        if mixes(self) and num_replicas() > 1:
            return predict_on_whole_batch(self.predict_step, data)
        x, _, _ = self._kte_adapter.unpack(with_none(data))
        there = has_any(x)
        outputs = no_row_if_empty(self._kte_adapter.forward(self, one_row_if_empty(x, there), training=False), there)
        return PaddedOutputs(outputs, valid_rows(data)) if isinstance(data, PaddedBatch) else outputs

    def train_step(self: Any, data: Nest) -> dict[str, Any]:
        """Take one optimizer step on one replica's part of the batch.

        Args:
            data: `x`, `(x, y)` or `(x, y, sample_weight)`; the leading dimension is this replica's share of
                the batch and may be 0.

        Returns:
            The metrics by name. Inside `fit`, `evaluate` and the `*_on_batch` methods they are then read
            again over all replicas.
        """
        note_shared()
        data = no_row_if_empty(data, BATCH.has_examples)
        x, y, sample_weight = self._kte_adapter.unpack(without_own_weights(data))
        with batch_context(data) as batch:
            (batch.total,) = sum_over_replicas([batch.examples])
            restore = self._step_state.loss_scaler.snapshot(self.non_trainable_variables)
            tape, loss, x, y, y_pred, tracked = self._kte_loss_of(x, y, sample_weight)
            self._track_loss(tracked)
            variables = self.trainable_variables  # an unbuilt model has them since the forward pass
            if variables:
                gradients = self._gradients(loss, variables, self.optimizer, tape, x)
                accumulate_or_apply(self, gradients, variables, self.optimizer, batch.total, restore)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def _gradients_of_batch(self: Any, data: Nest) -> Any:
        """Return the gradients that `train_step` computes for `data`, without changing anything."""
        x, y, sample_weight = self._kte_adapter.unpack(without_own_weights(data))
        with batch_context(data) as batch:
            (batch.total,) = sum_over_replicas([batch.examples])
            tape, loss, x, *_ = self._kte_loss_of(x, y, sample_weight)
            return self._gradients(loss, self.trainable_variables, self.optimizer, tape, x)

    def test_step(self: Any, data: Nest) -> dict[str, Any]:
        """Evaluate one replica's part of the batch; the argument and the result are like those of `train_step`."""
        note_shared()
        data = no_row_if_empty(data, BATCH.has_examples)
        x, y, sample_weight = self._kte_adapter.unpack(without_own_weights(data))
        with batch_context(data) as batch:
            (batch.total,) = sum_over_replicas([batch.examples])
            y_pred = self._predictions(x, training=False)
            _, tracked = self._share_of_loss(x, y, y_pred, sample_weight, training=False)
            self._track_loss(tracked)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute anything from its arguments: it is then called with the joined
        batches of all replicas, and this method returns the whole loss. In a user's own `train_step`, its value is
        that of the whole loss, and its gradient that of the share.
        """
        note_shared()
        layer_losses = self._kte_adapter.layer_losses(self)  # before another replica sets its own
        losses = []
        if self._compile_loss is not None:
            rows = no_row_if_empty((y, y_pred, sample_weight), BATCH.has_examples)
            loss = self._compile_loss(*rows)
            losses += [] if loss is None else [loss]
        losses += layer_losses
        losses += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self._kte_adapter.weight_losses(self)]
        if not losses:
            raise ValueError("No loss to compute. Provide a `loss` argument in `compile()`.")
        total = losses[0] if len(losses) == 1 else sum(tf.cast(loss, losses[0].dtype) for loss in losses)
        in_own_step = BATCH.total is None and not total.shape.rank
        return as_global(total) if in_own_step else total

    def global_mean(self: Any, per_example: tf.Tensor, sample_weight: Any = None) -> Any:
        """Return the mean over the whole batch, on all replicas, of values of which this replica has a part.

        For a `train_step` of your own, inside its `GradientTape`; then call `minimize`. The value is the same
        on every replica, so it can be returned as a log; any function of it may be minimised.

        Args:
            per_example: Tensor whose first dimension is this replica's part of the batch, which may be empty.
            sample_weight: Weights to multiply it by, with the same leading dimensions. As in Keras, the
                denominator is the number of elements, not the sum of the weights.

        Returns:
            A scalar tensor.
        """
        note_shared()
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

    def minimize(self: Any, loss: tf.Tensor, variables: Any, optimizer: Optimizer, tape: tf.GradientTape) -> None:
        """Take one step of `optimizer` on a loss computed from `global_mean`.

        In the order of `train_step`: scale, gradient, sum over replicas, unscale, check, clip, apply.

        Args:
            loss: Scalar tensor, computed inside `tape` from values of `global_mean`, including regularisers:
                `self.global_mean(sum(network.losses))`.
            variables: The variables to update.
            optimizer: A Keras optimizer, made inside the model's `strategy_scope()`. There may be several.
            tape: The `tf.GradientTape` that watched.

        Under `loss_scale` every call is checked separately: an inf in one network's gradients skips only that
        network's update. All optimizers share one scale, for which every call counts as a step: with two
        optimizers, `LossScale(growth_steps=4000)` grows as often as the default does with one optimizer.

        Under `gradient_accumulation_steps` each optimizer has its own window, which counts its calls.

        Raises:
            ScopeError: If `optimizer` was made outside the model's `strategy_scope()`.
        """
        check_optimizer_belongs(optimizer, self.distribute_strategy)
        variables = list(variables)
        weight: Any = 1
        if self._step_state.accumulation_steps > 1 and BATCH.examples is not None:
            (weight,) = sum_over_replicas([BATCH.examples])
        accumulate_or_apply(self, self._gradients(loss, variables, optimizer, tape), variables, optimizer, weight)

    def _own_scope(self: Any) -> Any:
        return self.distribute_strategy.scope()

    def _kte_process_group(self: Any) -> TensorFlowProcessGroup:
        return TensorFlowProcessGroup(self.distribute_strategy)

    def _saves_together(self: Any) -> bool:
        state = self.__dict__.get("_step_state")
        has_open_window = state is not None and any(one.is_open() for one in state.accumulators())
        return has_open_window or self._kte_adapter.has_partial_variables(self)

    @classmethod
    def _kte_patch_keras(cls: Any) -> None:
        install(cls._kte_adapter.whole_batch_patches)

    def _check_compiled(self: Any) -> None:
        self._kte_patch_keras()
        for optimizer in tf.nest.flatten(self.optimizer):
            check_optimizer_belongs(optimizer, self.distribute_strategy)
        check_variables_belong(self, self.distribute_strategy)

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> StepState:
        return make_step_state(loss_scale, accumulation_steps)

    def _make_schedule(self) -> GraphExecutionSchedule:
        return GraphExecutionSchedule()

    def _build_accumulator(self: Any) -> None:
        # With several optimizers, each learns its variables when it is called.
        single = None if tf.nest.is_nested(self.optimizer) else self.optimizer
        accumulator = self._step_state.accumulator(single)
        if accumulator is not None:
            with self.distribute_strategy.scope():
                accumulator.build_for(self.trainable_variables)

    def _make_overflow_watch(self, steps: int) -> ReplicatedOverflowWatch:
        return ReplicatedOverflowWatch(steps)

    def _make_flush(self: Any, optimizer: Optimizer) -> Callable[[], None]:
        @tf.function(autograph=False)
        def flush() -> None:
            self.distribute_strategy.run(flush_window, args=(self, optimizer))

        return flush

    def _augmented(self: Any, x: Nest, y: Nest) -> tuple[Any, Any]:
        """Return the batch as the model should see it."""
        if not self._augments():
            return x, y
        there = BATCH.has_any
        x, y = one_row_if_empty((x, y), there)
        return no_row_if_empty(self._pair(_as_declared(x, getattr(self, "inputs", None)), y), there)

    def _predictions(self: Any, x: Nest, *, training: bool) -> Any:
        """Return the predictions, and keep the `add_loss` terms as shares."""
        adapter, there = self._kte_adapter, BATCH.has_any
        with (
            adapter.exclude_padding(self),
            adapter.record_layer_losses(self),
            mask_metrics(adapter.custom_metrics(self)),
        ):
            y_pred = adapter.forward(self, one_row_if_empty(x, there), training=training)
        BATCH.layer_losses = [(layer, _share_of_layer_loss(loss)) for layer, loss in BATCH.layer_losses]
        return no_row_if_empty(y_pred, there)

    def _kte_loss_of(self: Any, x: Nest, y: Nest, sample_weight: tf.Tensor) -> tuple[Any, ...]:
        """Return a tape, this replica's share of the loss, augmented `x` and `y`, predictions, and what to track."""
        x, y = self._augmented(x, y)
        with tf.GradientTape() as tape:
            y_pred = self._predictions(x, training=True)
            loss, tracked = self._share_of_loss(x, y, y_pred, sample_weight, training=True)
        return tape, loss, x, y, y_pred, tracked

    def _gradients(
        self: Any, loss: tf.Tensor, variables: Any, optimizer: Optimizer, tape: tf.GradientTape, x: Nest = None
    ) -> Any:
        """Return the gradients of the scaled loss; the seed is scaled in place of the loss."""
        scaler, seed = self._step_state.loss_scaler, tf.ones_like(loss)
        seed = scaler.scale_loss(seed) if scaler else self._kte_adapter.scale_loss(optimizer, seed)
        gradients = tape.gradient(loss, variables, output_gradients=seed)
        mark_lookups_once_a_batch(self, x, gradients, variables)
        gradients = finite_if_empty(gradients, BATCH.has_any)
        return self._kte_adapter.unscale_gradients(optimizer, gradients)

    def _share_of_loss(
        self: Any, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor, *, training: bool
    ) -> tuple[Any, Any]:
        """Return this replica's share of the minimised loss, and of the number that is tracked.

        They differ if a loss is not reduced: its gradient is that of the sum, and Keras tracks the mean.
        """
        adapter, layer_losses = self._kte_adapter, BATCH.layer_losses
        arguments = {"sample_weight": sample_weight, "training": training}
        adapter.set_layer_losses(self, layer_losses)
        if not needs_gather() or not adapter.has_custom_compute_loss(self):
            share = adapter.compute_loss(self, x=x, y=y, y_pred=y_pred, **arguments)
            if share is None or not share.shape.rank:
                return share, share
            (size,) = sum_over_replicas([_number_of_elements(share)])
            return share, tf.math.divide_no_nan(tf.reduce_sum(share), size)
        # The user's own function may do anything: it gets the whole batch, on every replica.
        replicas = num_replicas()
        x, y, y_pred, arguments["sample_weight"] = gather_examples((x, y, y_pred, sample_weight))
        whole = [(layer, share_as_whole(share)) for layer, share in layer_losses]
        with whole_batch_view():
            adapter.set_layer_losses(self, whole)
            loss = adapter.compute_loss(self, x=x, y=y, y_pred=y_pred, **arguments)
        if loss is None:
            return None, None
        share = loss / tf.cast(replicas, loss.dtype)
        return share, tf.reduce_mean(share)

    def _updated_metrics(self: Any, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> dict[str, Any]:
        # Only a user's function updates metrics other than those of `compile`, which know about padded rows.
        is_padded = BATCH.valid is not None and self._kte_adapter.has_custom_compute_metrics(self)
        with mask_metrics(self._kte_adapter.custom_metrics(self) if is_padded else ()):
            return dict(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _track_loss(self: Any, share: tf.Tensor) -> None:
        """Weight the global loss by the global batch size, as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its share.
        """
        self._loss_tracker.total.assign_add(tf.cast(share, tf.float32) * tf.cast(BATCH.total, tf.float32))
        self._loss_tracker.count.assign_add(tf.cast(BATCH.examples, tf.float32))


def _number_of_elements(values: tf.Tensor) -> Any:
    """Return the number of elements of `values` that belong to examples."""
    return tf.cast(tf.size(values), values.dtype) * tf.cast(valid_fraction(), values.dtype)


def _share_of_layer_loss(loss: tf.Tensor) -> Any:
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


def _as_declared(x: Nest, inputs: tf.Tensor) -> Any:
    """Return `x` with sizes of the model's only input where the data have none, as those of a generator."""
    if not isinstance(x, tf.Tensor) or not inputs or len(inputs) != 1 or x.shape.rank != len(inputs[0].shape):
        return x
    return tf.ensure_shape(x, (None, *inputs[0].shape[1:])) if None in tuple(x.shape)[1:] else x
