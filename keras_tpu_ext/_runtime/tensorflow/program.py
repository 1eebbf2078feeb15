"""The exact training and test step under `tf.distribute`, for any Keras on TensorFlow."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import PaddedBatch, PaddedOutputs, without_own_weights
from keras_tpu_ext._runtime.common.types import Layer, Metric, Nest, Optimizer, Variable
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.tensorflow import devices as _devices
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    KERAS_PATCHES,
    batch_context,
    gather_examples,
    has_any,
    local_layer_loss,
    mask_metrics,
    needs_gather,
    note_shared,
    prediction_context,
    valid_fraction,
    valid_rows,
    whole_batch_view,
    whole_state,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.cluster import TensorFlowProcessGroup
from keras_tpu_ext._runtime.tensorflow.custom_step import (
    mark_slices,
    predict_on_whole_batch,
    takes_whole_batch,
)
from keras_tpu_ext._runtime.tensorflow.empty_replicas import finite_if_empty, no_row_if_empty, one_row_if_empty
from keras_tpu_ext._runtime.tensorflow.replicas import (
    as_global,
    local_as_whole,
    num_replicas,
    numbers_of_rows,
    sum_over_replicas,
    with_none,
)
from keras_tpu_ext._runtime.tensorflow.scope import check_optimizer_belongs, check_variables_belong
from keras_tpu_ext._runtime.tensorflow.separability import Separability
from keras_tpu_ext._runtime.tensorflow.update import (
    Gradient,
    GradientAccumulator,
    ReplicatedLossScaler,
    ReplicatedNotFiniteWatch,
    ReplicatedOverflowWatch,
    accumulate_or_apply,
    flush_window,
)
from keras_tpu_ext._runtime.training.compile_utils import is_overridden
from keras_tpu_ext._runtime.training.denominator import loss_sum, no_tokens, recording
from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext._runtime.training.program import ExactProgram
from keras_tpu_ext._runtime.training.watches import NotFiniteWatch


class TensorFlowProgram(ExactProgram):
    """An `ExactProgram` in which every replica works on its part of the global loss."""

    devices = _devices
    block_patches = KERAS_PATCHES
    loss_scaler = ReplicatedLossScaler
    accumulator = GradientAccumulator
    overflow_watch = ReplicatedOverflowWatch
    not_finite_watch = ReplicatedNotFiniteWatch
    separability: dict[str, Separability]  # by the name of a step, as far as it is known

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_untracked(separability={})

    def predict_step(self, data: Nest) -> Nest:
        """Predict one replica's part of the batch, which may be empty; for a padded one say which rows count."""
        if takes_whole_batch(self.model, self.model.predict_step) and num_replicas() > 1:
            return predict_on_whole_batch(self.model.predict_step, data)
        x, _, _ = keras.utils.unpack_x_y_sample_weight(with_none(data))
        has_rows = has_any(x)
        with prediction_context(data, has_rows), self.operations():
            outputs = self.forward(one_row_if_empty(x, has_rows), training=False)
        outputs = no_row_if_empty(outputs, has_rows)
        return PaddedOutputs(outputs, valid_rows(data)) if isinstance(data, PaddedBatch) else outputs

    def train_step(self, data: Nest) -> dict[str, Any]:
        """Take one optimizer step on one replica's part of the batch, which may be empty, and return its metrics.

        Inside `fit`, `evaluate` and the `*_on_batch` methods these are then read again over all replicas.
        """
        with self._batch(data) as (x, y, sample_weight), recording() as losses:
            scaler: Any = self.compiled_state().loss_scaler
            restore = scaler.snapshot(self.model.non_trainable_variables)
            tape, loss, x, y, y_pred, tracked = self._loss_of(x, y, sample_weight)
            self._track_loss(tracked)
            variables = self.model.trainable_variables  # an unbuilt model has them since the forward pass
            if variables:
                gradients = self._gradients(loss, variables, self.model.optimizer, tape)
                weight = self.weight_in_window(BATCH.total, losses, of_layers=bool(BATCH.layer_losses))
                watch = self.compiled_state().not_finite_watch
                if watch is not None:
                    self._note(watch, loss, variables, data)
                accumulate_or_apply(self.model, gradients, variables, self.model.optimizer, weight, restore)
                if watch is not None:
                    watch.note_update(variables)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def _note(self, watch: NotFiniteWatch, loss: tf.Tensor, variables: Any, data: Nest) -> None:
        """Record what is not finite before the update; replicas cannot repeat the forward pass in a condition.

        It is repeated in inference mode: that changes no variable, and draws no random numbers.
        """
        watch.make_for(variables)
        x, _, _ = keras.utils.unpack_x_y_sample_weight(without_own_weights(data))
        layer_losses = BATCH.layer_losses

        def forward() -> None:
            with self.exclude_padding(), self.record_layer_losses():
                self.forward(x, training=False)
            BATCH.layer_losses = layer_losses

        watch.note(loss, variables, without_own_weights(data), forward if num_replicas() == 1 else None)

    def gradients_of_batch(self, data: Nest) -> Sequence[tf.Tensor]:
        """Return the gradients that `train_step` computes for `data`, without changing anything."""
        with self._batch(data) as (x, y, sample_weight):
            tape, loss, *_ = self._loss_of(x, y, sample_weight)
            return self._gradients(loss, self.model.trainable_variables, self.model.optimizer, tape)

    def test_step(self, data: Nest) -> dict[str, Any]:
        """Evaluate one replica's part of the batch; the argument and the result are like those of `train_step`."""
        with self._batch(data) as (x, y, sample_weight):
            y_pred = self._predictions(x, training=False)
            _, tracked = self._local_loss(x, y, y_pred, sample_weight, training=False)
            self._track_loss(tracked)
            return self._updated_metrics(x, y, y_pred, sample_weight)

    def compute_loss(self, x: Nest, y: Nest, y_pred: Nest, sample_weight: Nest, training: bool) -> tf.Tensor | None:
        """Return this replica's part of the loss, regularisers and `add_loss` terms of the whole batch."""
        note_shared()
        layer_losses = self.layer_losses()  # before another replica sets its own
        losses = []
        if self.model._compile_loss is not None:
            rows = no_row_if_empty((y, y_pred, sample_weight), BATCH.has_examples)
            loss = self.model._compile_loss(*rows)
            losses += [] if loss is None else [loss]
        losses += layer_losses
        losses += [loss / tf.cast(num_replicas(), loss.dtype) for loss in self.weight_losses()]
        if not losses:
            raise ValueError("No loss to compute. Provide a `loss` argument in `compile()`.")
        total = losses[0] if len(losses) == 1 else sum(tf.cast(loss, losses[0].dtype) for loss in losses)
        in_own_step = BATCH.role != "exact" and not total.shape.rank
        return as_global(total) if in_own_step else total

    def global_mean(self, per_example: tf.Tensor, sample_weight: Any = None) -> tf.Tensor:
        """Return the mean over the whole batch, the same on all replicas; see `ExactModel.global_mean`."""
        note_shared()
        BATCH.asks_mean = True
        values = tf.convert_to_tensor(per_example)
        if sample_weight is not None:
            weight = tf.cast(sample_weight, values.dtype)
            trailing = [1] * (values.shape.rank - weight.shape.rank)
            values *= tf.reshape(weight, tf.concat([tf.shape(weight), tf.constant(trailing, tf.int32)], 0))
        values = zero_invalid_rows(values) if values.shape.rank else values
        size = tf.cast(tf.size(values), values.dtype) * tf.cast(valid_fraction(), values.dtype)
        total = tf.reduce_sum(values)
        if BATCH.has_examples is not None:
            size, total = (tf.where(BATCH.has_examples, number, tf.zeros_like(number)) for number in (size, total))
        return as_global(tf.math.divide_no_nan(total, sum_over_replicas([size])[0]))

    def minimize(self, loss: tf.Tensor, variables: Any, optimizer: Optimizer, tape: tf.GradientTape) -> None:
        """Take one step of `optimizer`; see `ExactModel.minimize`."""
        check_optimizer_belongs(optimizer, self.model.distribute_strategy)
        if self.weights_by_tokens:
            raise no_tokens("with a train_step that calls minimize")
        variables = list(variables)
        weight: Any = 1
        if self.compiled_state().accumulation_steps > 1 and BATCH.examples is not None:
            (weight,) = sum_over_replicas([BATCH.examples])
        gradients = self._gradients(loss, variables, optimizer, tape)
        accumulate_or_apply(self.model, gradients, variables, optimizer, weight)

    def own_scope(self) -> contextlib.AbstractContextManager[object]:
        """Return the scope of the model's strategy."""
        return self.model.distribute_strategy.scope()

    def process_group(self) -> TensorFlowProcessGroup:
        """Return the processes of the model's strategy."""
        return TensorFlowProcessGroup(self.model.distribute_strategy)

    def saves_together(self) -> bool:
        """Return whether each process has sums of its own in what is saved."""
        state = self.state
        has_open_window = state is not None and any(one.is_open() for one in state.accumulators())
        return has_open_window or self.has_partial_variables()

    def check_compiled(self) -> None:
        """Reject an optimizer or a layer of another scope."""
        for optimizer in tf.nest.flatten(self.model.optimizer):
            check_optimizer_belongs(optimizer, self.model.distribute_strategy)
        check_variables_belong(self.model, self.model.distribute_strategy)

    def build_accumulator(self) -> None:
        """Make the variables of the gradient accumulator, if there is one."""
        # With several optimizers, each learns its variables when it is called.
        single = None if tf.nest.is_nested(self.model.optimizer) else self.model.optimizer
        accumulator = self.compiled_state().accumulator(single)
        if accumulator is not None:
            with self.model.distribute_strategy.scope():
                accumulator.build_for(self.model.trainable_variables)

    def make_flush(self, optimizer: Optimizer) -> Callable[[], None]:
        """Return a function that takes the step of an open window."""

        @tf.function(autograph=False)
        def flush() -> None:
            self.model.distribute_strategy.run(flush_window, args=(self.model, optimizer))

        return flush

    @contextlib.contextmanager
    def _batch(self, data: Nest) -> Iterator[tuple[Nest, Nest, Nest]]:
        """Within the block `data`, of which `x`, `y` and `sample_weight` are returned, is the batch."""
        note_shared()
        data = no_row_if_empty(data, BATCH.has_examples)
        with batch_context(data), self.operations():
            yield keras.utils.unpack_x_y_sample_weight(without_own_weights(data))

    def _augmented(self, x: Nest, y: Nest) -> tuple[Any, Any]:
        """Return the batch as the model should see it."""
        if not self.augments:
            return x, y
        x, y = one_row_if_empty((x, y), BATCH.has_any)
        return no_row_if_empty(self.augment(_as_declared(x, getattr(self.model, "inputs", None)), y), BATCH.has_any)

    def _predictions(self, x: Nest, *, training: bool) -> Any:
        """Return the predictions, and keep the `add_loss` terms as parts."""
        with (
            self.exclude_padding(),
            self.record_layer_losses(),
            mask_metrics(self.custom_metrics()),
        ):
            y_pred = self.forward(one_row_if_empty(x, BATCH.has_any), training=training)
        found = self.separability.get("train_step" if training else "test_step", Separability())
        others = found.mean_of.items() if BATCH.valid is None else ()
        rows = {term: numbers_of_rows(x)[index] for term, index in others if index}
        BATCH.layer_losses = [
            (layer, local_layer_loss(loss, rows.get(term))) for term, (layer, loss) in enumerate(BATCH.layer_losses)
        ]
        return no_row_if_empty(y_pred, BATCH.has_any)

    def _loss_of(self, x: Nest, y: Nest, sample_weight: tf.Tensor) -> tuple[Any, ...]:
        """Return a tape, this replica's part of the loss, augmented `x` and `y`, predictions, and what to track."""
        x, y = self._augmented(x, y)
        with tf.GradientTape() as tape:
            y_pred = self._predictions(x, training=True)
            loss, tracked = self._local_loss(x, y, y_pred, sample_weight, training=True)
        return tape, loss, x, y, y_pred, tracked

    def _gradients(
        self, loss: tf.Tensor, variables: Any, optimizer: Optimizer, tape: tf.GradientTape
    ) -> Sequence[tf.Tensor]:
        """Return the gradients of the scaled loss; the seed is scaled in place of the loss."""
        scaler, seed = self.compiled_state().loss_scaler, tf.ones_like(loss)
        seed = scaler.scale_loss(seed) if scaler else self.scale_loss(optimizer, seed)
        gradients = tape.gradient(loss, variables, output_gradients=seed)
        if BATCH.is_trial:
            # A walk has no rules for what computes gradients; they are right for the batch if the loss is.
            pairs = zip(gradients, variables, strict=True)
            gradients = [g if g is None else tf.zeros(v.shape, g.dtype) + tf.cast(loss, g.dtype) for g, v in pairs]
        mark_slices(self.model, gradients, variables)
        gradients = finite_if_empty(gradients, BATCH.has_any)
        return self.unscale_gradients(optimizer, gradients)

    def _local_loss(
        self, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor, *, training: bool
    ) -> tuple[Any, Any]:
        """Return this replica's part of the minimised loss, and of the number that is tracked.

        They differ if a loss is not reduced: its gradient is that of the sum, and Keras tracks the mean.
        """
        layer_losses = BATCH.layer_losses
        arguments = {"sample_weight": sample_weight, "training": training}
        self.set_layer_losses(layer_losses)
        if not needs_gather() or not is_overridden(type(self.model), "compute_loss"):
            local = self.loss_of_model(x=x, y=y, y_pred=y_pred, **arguments)
            if local is None or not local.shape.rank:
                return local, local
            return local, loss_sum("mean", local, None, None, self.facts).local()
        # The user's own function may do anything: it gets the whole batch, on every replica.
        replicas = num_replicas()
        x, y, y_pred, arguments["sample_weight"] = gather_examples((x, y, y_pred, sample_weight))
        whole = [(layer, local_as_whole(local)) for layer, local in layer_losses]
        with whole_batch_view():
            self.set_layer_losses(whole)
            loss = self.loss_of_model(x=x, y=y, y_pred=y_pred, **arguments)
        if loss is None:
            return None, None
        local = loss / tf.cast(replicas, loss.dtype)
        return local, tf.reduce_mean(local)

    def has_custom_compute_metrics(self) -> bool:
        """Return whether `compute_metrics` is the user's."""
        return type(self.model).compute_metrics is not keras.Model.compute_metrics

    def _updated_metrics(self, x: Nest, y: Nest, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> dict[str, Any]:
        if not needs_gather() or not self.has_custom_compute_metrics():
            return dict(self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
        # The user's own function may do anything: it gets the whole batch, on every replica.
        x, y, y_pred, sample_weight = gather_examples((x, y, y_pred, sample_weight))
        with whole_state(lambda: self.model.metrics), whole_batch_view():
            return dict(self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _track_loss(self, local: tf.Tensor) -> None:
        """Weight the global loss by the global batch size, as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its part.
        """
        self.model._loss_tracker.total.assign_add(tf.cast(local, tf.float32) * tf.cast(BATCH.total, tf.float32))
        self.model._loss_tracker.count.assign_add(tf.cast(BATCH.examples, tf.float32))

    # What differs between Keras 2 and Keras 3; each replica calls these for itself.

    def own_layers(self) -> list[str]:
        """Return the names of layers and operations that are not known to process each example independently."""
        raise NotImplementedError

    def forward(self, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of the model."""
        raise NotImplementedError

    def loss_of_model(self, *, y: Nest, training: bool, **batch: Nest) -> tf.Tensor | None:
        """Call `compute_loss` of the model, which may be the user's."""
        raise NotImplementedError

    def custom_metrics(self) -> list[Metric]:
        """Return the metrics that the user's code may update."""
        raise NotImplementedError

    def exclude_padding(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which layers learn statistics only from the examples of the batch."""
        raise NotImplementedError

    def layer_losses(self) -> list[tf.Tensor]:
        """Return the current `add_loss` terms of layers."""
        raise NotImplementedError

    def record_layer_losses(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward pass, after which `BATCH.layer_losses` has its `add_loss` terms."""
        raise NotImplementedError

    def set_layer_losses(self, losses: Sequence[tuple[Layer, tf.Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""
        raise NotImplementedError

    def weight_losses(self) -> list[tf.Tensor]:
        """Return the losses that are functions of weights, such as regularizers."""
        raise NotImplementedError

    def scale_loss(self, optimizer: Optimizer, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the scale of an optimizer that scales it; else `loss`."""
        raise NotImplementedError

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Undo `scale_loss`, unless the optimizer does."""
        return gradients

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Create the variables of `optimizer` for `variables`, outside the graph, once."""
        raise NotImplementedError

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> None:
        """Let `optimizer` clip and apply gradients that are already summed over replicas."""
        raise NotImplementedError

    def has_partial_variables(self) -> bool:
        """Return whether any saved variable is summed over replicas when it is read."""
        raise NotImplementedError


class ReplicatedModel(ExactModel):
    """The methods that Keras calls by name on each replica."""

    def predict_step(self: Any, data: Nest) -> Nest:
        """Predict one replica's part of the batch, which may be empty."""
        return self._kte.predict_step(data)

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute anything from its arguments: it is then called with the joined
        batches of all replicas, and this method returns the whole loss. In a user's own `train_step`, its value is
        that of the whole loss, and its gradient that of the share.
        """
        return self._kte.compute_loss(x, y, y_pred, sample_weight, training)


def _as_declared(x: Nest, inputs: tf.Tensor) -> Nest:
    """Return `x` with sizes of the model's only input where the data have none, as those of a generator."""
    if not isinstance(x, tf.Tensor) or not inputs or len(inputs) != 1 or x.shape.rank != len(inputs[0].shape):
        return x
    return tf.ensure_shape(x, (None, *inputs[0].shape[1:])) if None in tuple(x.shape)[1:] else x
