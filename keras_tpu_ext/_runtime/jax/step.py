"""The exact step on Keras 3 and JAX, as pure functions of a state.

On JAX every step sees the whole batch, so a mean is the global mean, on any number of devices. What is left to do:
batches that cannot be split evenly over the devices, loss scaling, accumulation, and loops on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.missing_names import override, private
from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat.keras3_jax import BuildsFromIterator, keeping_state
from keras_tpu_ext._runtime.jax import batch as _batch
from keras_tpu_ext._runtime.jax.data_adapter import GroupedDataAdapter, PeekIterator, grouped_data
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.gather import has_shards_elsewhere
from keras_tpu_ext._runtime.jax.layouts import warn_of_layouts
from keras_tpu_ext._runtime.jax.loop import (
    GroupExecutionSchedule,
    make_function,
    make_predict_function,
    own_variables,
)
from keras_tpu_ext._runtime.jax.overflow import StatelessOverflowWatch
from keras_tpu_ext._runtime.jax.process_group import JaxProcessGroup
from keras_tpu_ext._runtime.jax.relayout import choose_layout, lay_out_what_has_no_layout, move_to
from keras_tpu_ext._runtime.jax.scope import current_distribution, distribution_of, keep, use_distribution
from keras_tpu_ext._runtime.jax.sharding import copy_aliased_buffers
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext._runtime.jax.update import (
    Weights,
    accumulate_or_apply,
    flush_window,
    make_step_state,
    run_stateless,
)
from keras_tpu_ext._runtime.keras3.adapter import ExactKeras3Model, Keras3Adapter
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_executions
from keras_tpu_ext._runtime.keras3.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras3.models import clear_loss_ids
from keras_tpu_ext._runtime.keras3.optimizer_view import track_all_variables
from keras_tpu_ext._runtime.training.augment import Augments
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.step_state import StepState

_is_jax_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:is_jax_sparse")


class JaxAdapter(Keras3Adapter):
    """The `KerasAdapter` of Keras 3 on JAX."""

    def build_optimizer(self, model: keras.Model) -> None:
        """Make the optimizer's variables, all of them known to it."""
        super().build_optimizer(model)
        track_all_variables(model.optimizer)


class TrainStep(Augments, BuildsFromIterator, ExactKeras3Model, FunctionalByShape):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte_adapter = JaxAdapter()
    _batch_facts = _batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep(self, current_distribution())
        super().__init__(*args, **kwargs)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model as Keras does; its attention on a TPU matches that on a CPU."""
        model: Model = super()
        with exact_operations(TracedDevices.of(distribution_of(self))):
            return model.__call__(*args, **kwargs)

    def stateless_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model without side effects as Keras does; its attention on a TPU matches that on a CPU.

        No `add_loss` term and no activity regularizer is lost.
        """
        model: Model = super()
        clear_loss_ids(self)
        with exact_operations(TracedDevices.of(distribution_of(self))):
            return model.stateless_call(*args, **kwargs)

    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as `keras.Model.train_on_batch` does."""
        model: Model = super()
        with self._kte_loop():
            return model.train_on_batch(*args, **kwargs)

    def test_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch as `keras.Model.test_on_batch` does."""
        model: Model = super()
        with self._kte_loop():
            return model.test_on_batch(*args, **kwargs)

    def predict_on_batch(self: Any, x: Nest) -> Any:
        """Predict one batch as `keras.Model.predict_on_batch` does."""
        model: Model = super()
        with self._kte_loop():
            return model.predict_on_batch(x)

    def train_step(self: Any, state: Any, data: Nest) -> tuple[dict[str, Any], Any]:
        """Take one optimizer step.

        Args:
            state: Values of the trainable, non-trainable, optimizer and metrics variables, as Keras passes them.
            data: `x`, `(x, y)` or `(x, y, sample_weight)`: the batch of all replicas.

        Returns:
            The metrics by name, and the next state.
        """
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = _unpacked(data)
        x, y, augmented = self._augmented(x, y, non_trainable)
        options = {"training": True, "optimizer_variables": optimizer}

        def scaled_loss(trainable: Any) -> tuple[jax.Array, Any]:
            loss, aux = self.compute_loss_and_updates(trainable, augmented, metrics, x, y, sample_weight, **options)
            return self._step_state.loss_scaler.scale_loss(jnp.sum(loss)), aux

        gradients, (loss, y_pred, after, metrics) = jax.grad(scaled_loss, has_aux=True)(trainable)
        before = Weights(trainable, non_trainable, optimizer)
        weights = accumulate_or_apply(self, gradients, before, after, self._number_of_examples(x))
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (*weights, metrics)

    def test_step(self: Any, state: Any, data: Nest) -> tuple[dict[str, Any], Any]:
        """Evaluate one batch; `state` and the returned state do not include the optimizer's variables."""
        trainable, non_trainable, metrics = state
        x, y, sample_weight = _unpacked(data)
        _, (loss, y_pred, non_trainable, metrics) = self.compute_loss_and_updates(
            trainable, non_trainable, metrics, x, y, sample_weight, training=False
        )
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, non_trainable, metrics)

    def global_mean(self: Any, per_example: jax.Array, sample_weight: Any = None) -> Any:
        """Return the mean over the whole batch, which on JAX every step holds.

        Args:
            per_example: Array whose first dimension is the batch.
            sample_weight: Weights to multiply it by, with the same leading dimensions. As in Keras, the denominator
                is the number of elements, not the sum of the weights.
        """
        values = jnp.asarray(per_example)
        if sample_weight is not None:
            weight = jnp.asarray(sample_weight, values.dtype)
            values *= jnp.reshape(weight, (*weight.shape, *[1] * (values.ndim - weight.ndim)))
        return jnp.mean(values)

    def make_train_function(self: Any, force: bool = False) -> None:
        """Build the function that `fit` calls for one execution."""
        if self.train_function is None or force:
            if self.built:
                with self._own_scope():
                    self._build_accumulator()
            self._reset_flushes()
            self.train_function = make_function(self, lambda state, data: self.train_step(state, data), trains=True)

    def make_test_function(self: Any, force: bool = False) -> None:
        """Build the function that `evaluate` calls for one execution."""
        if self.test_function is None or force:
            self.test_function = make_function(self, lambda state, data: self.test_step(state, data), trains=False)

    def make_predict_function(self: Any, force: bool = False) -> None:
        """Build the function that `predict` calls for one execution."""
        if self.predict_function is None or force:
            self._adopt_variables()
            self.predict_function = make_predict_function(self)

    def _augmented(self: Any, x: Nest, y: Nest, values: jax.Array) -> tuple[Nest, Nest, Any]:
        """Return the batch as the model should see it, and the next values of the non-trainable variables."""
        if not self._augments():
            return x, y, values
        changed: list[Any] = []
        values = run_stateless(lambda: changed.extend(self._pair(x, y)), self.non_trainable_variables, values)
        return changed[0], changed[1], values

    def _number_of_examples(self, x: Nest) -> jax.Array | int:
        rows: int = jax.tree.leaves(x, is_leaf=_is_jax_sparse)[0].shape[0]
        return rows if _batch.BATCH.examples is None else _batch.BATCH.examples

    def _updated_metrics(
        self: Any, values: jax.Array, loss: jax.Array, x: Nest, y: Nest, y_pred: Nest, sample_weight: Nest
    ) -> tuple[dict[str, Any], Any]:
        """Return the logs and the next values of the metrics' variables."""
        logs: list[dict[str, Any]] = []

        def update() -> None:
            # Keras tracks the mean of a loss that is not reduced.
            mean = loss if not loss.shape else jnp.mean(loss) / _batch.valid_fraction()
            self._loss_tracker.update_state(mean, sample_weight=self._number_of_examples(x))
            logs.append(dict(self.compute_metrics(x, y, y_pred, sample_weight)))

        values = run_stateless(update, self.metrics_variables, values)
        return logs[0], values

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        """Configure the model as `ExactModel.compile` does; in the block of another scope it moves there first."""
        move_to(self, current_distribution())
        model: Model = super()
        model.compile(*args, **kwargs)

    def _own_scope(self) -> contextlib.AbstractContextManager[None]:
        return use_distribution(distribution_of(self))

    def _kte_adopt(self) -> None:
        keep(self, current_distribution())  # its variables are moved before they are used

    @contextlib.contextmanager
    def _kte_loop(self) -> Iterator[None]:
        with (
            use_distribution(None),
            keeping_state(self),
            exact_operations(TracedDevices.of(distribution_of(self)), replaces=True),
        ):
            yield

    def _kte_prepare(self: Any, call: FitCall) -> None:
        if call.method == "predict":
            if self.built:
                self._adopt_variables()
            call.arguments["x"] = grouped_data(self, call.arguments)
            call.arguments.pop("batch_size", None)

    def get_weights(self: Any) -> list[Any]:
        """Return the weights as `keras.Model.get_weights` does; call it on every process if they are sharded."""
        model: Model = super()
        with self._kte_process_group().reading_shards():
            weights: list[Any] = model.get_weights()
        return weights

    def _saves_together(self: Any) -> bool:
        optimizer = [] if getattr(self, "optimizer", None) is None else self.optimizer.variables
        return any(has_shards_elsewhere(variable) for variable in (*self.variables, *optimizer, *own_variables(self)))

    def _kte_process_group(self) -> JaxProcessGroup:
        return JaxProcessGroup()

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> StepState:
        return make_step_state(loss_scale, accumulation_steps)

    def _make_schedule(self) -> GroupExecutionSchedule:
        return GroupExecutionSchedule()

    def _make_overflow_watch(self: Any, steps: int) -> StatelessOverflowWatch:
        return StatelessOverflowWatch(self.trainable_variables, steps)

    def _build_accumulator(self: Any) -> None:
        accumulator = self._step_state.accumulator(self.optimizer)
        if accumulator is not None:
            accumulator.build_for(self.trainable_variables)

    def _make_flush(self: Any, optimizer: Optimizer) -> Callable[[], None]:
        parts = (self.trainable_variables, self.non_trainable_variables, optimizer.variables)
        own = own_variables(self)

        @jax.jit
        def flushed(weights: jax.Array, values: jax.Array) -> Any:
            after: list[Weights] = []
            values = run_stateless(lambda: after.append(flush_window(self, Weights(*weights))), own, values)
            return after[0], values

        def flush() -> None:
            weights, values = flushed([[v.value for v in part] for part in parts], [v.value for v in own])
            for part, new in zip([*parts, own], [*weights, values], strict=True):
                for variable, value in zip(part, new, strict=True):
                    variable.assign(value)

        return flush

    def _symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Build as Keras does, inside the model's own distribution, and prepare the batches of `iterator`."""
        model: Model = super()
        if self.built:
            self._adopt_variables()  # an optimizer lays out its slots like the weights
        with self._own_scope():
            if iterator is None:
                model._symbolic_build(data_batch=data_batch)
            else:
                peeked = PeekIterator(iterator.data_adapter)
                model._symbolic_build(iterator=peeked)
                data_batch = peeked.batch
        if self.optimizer is not None:
            track_all_variables(self.optimizer)
        self._adopt_variables()
        if data_batch is not None:
            choose_layout(self, data_batch)
        warn_of_layouts(self)
        if iterator is not None:
            enumerate_executions(self, iterator)
            adapted = GroupedDataAdapter(self, iterator.data_adapter, trains_or_tests=True)
            override(iterator, "_get_iterator", adapted.get_jax_iterator)

    def _adopt_variables(self: Any) -> None:
        """Move variables that were created elsewhere, such as an optimizer's learning rate, to where the model is."""
        lay_out_what_has_no_layout(self)

    def _get_jax_state(self: Any, **which: bool) -> Any:
        """Return the state as Keras does, even if the model has optimizers for its own step and no other.

        After an epoch a variable and its moving average may share one array, and JAX cannot donate an array twice.
        """
        model: Model = super()
        if getattr(self, "optimizer", _NO_OPTIMIZER) is not None:  # not set before `compile`
            return copy_aliased_buffers(model._get_jax_state(**which))
        self.optimizer = _NO_OPTIMIZER
        try:
            return copy_aliased_buffers(model._get_jax_state(**which))
        finally:
            self.optimizer = None


def _unpacked(data: Nest) -> tuple[Nest, Nest, Nest]:
    """Return inputs, targets and weights; the weights of padded rows are zero."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, jax.tree.map(_batch.zero_invalid_rows, sample_weight)


class _NoOptimizer:
    """Stands in for an optimizer and has no variables."""

    variables: tuple[Any, ...] = ()


_NO_OPTIMIZER = _NoOptimizer()
