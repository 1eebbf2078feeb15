"""The exact step on Keras 3 and JAX, as pure functions of a state.

JAX shows every step the whole batch, so a mean is the mean, on any number of devices. What is left to do: batches
that the devices cannot share evenly, loss scaling, accumulation, and loops on the device.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
of `Trainer`: `_get_jax_state`, `_loss_tracker` and `_symbolic_build`; of `JAXEpochIterator`: `_get_iterator`,
`data_adapter`; of layers: `_flatten_layers`; of variables: `_layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src.trainers.data_adapters import get_data_adapter

from keras_tpu_ext._runtime.jax import batch as _jax_batch
from keras_tpu_ext._runtime.jax.batch import BATCH
from keras_tpu_ext._runtime.jax.batches import Batches
from keras_tpu_ext._runtime.jax.data_adapter import GroupedDataAdapter, PeekIterator
from keras_tpu_ext._runtime.jax.devices import is_chief, num_workers
from keras_tpu_ext._runtime.jax.execution_schedule import GroupExecutionSchedule
from keras_tpu_ext._runtime.jax.functions import make_function, make_predict_function
from keras_tpu_ext._runtime.jax.loop import own_variables
from keras_tpu_ext._runtime.jax.process_group import all_gather_int, explain_peer_failure
from keras_tpu_ext._runtime.jax.scope import current_distribution, distribution_of, keep, num_replicas, within
from keras_tpu_ext._runtime.jax.sharding import copy_aliased_buffers
from keras_tpu_ext._runtime.jax.state import StatelessStepState, stateless
from keras_tpu_ext._runtime.jax.update import Weights, accumulate_or_apply, flush
from keras_tpu_ext._runtime.keras3.chief import Keras3ChiefOnly
from keras_tpu_ext._runtime.keras3.compile import ExactKeras3Compile
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_by_schedule
from keras_tpu_ext._runtime.keras3.functional import FunctionalByShape
from keras_tpu_ext._runtime.keras3.optimizer_view import track_all_variables
from keras_tpu_ext._runtime.training.augment import Augments
from keras_tpu_ext._runtime.training.auto_steps import AutoSteps


class TrainStep(Augments, ExactKeras3Compile, Keras3ChiefOnly, AutoSteps, FunctionalByShape):
    """What turns a `keras.Model` into one whose step is exact at any number of replicas."""

    _batch_facts = _jax_batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep(self, current_distribution())
        super().__init__(*args, **kwargs)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does."""
        model: Any = super()
        with self._running():
            return model.evaluate(*args, **kwargs)

    def predict(
        self: Any, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None, callbacks: Any = None
    ) -> Any:
        """Predict as `keras.Model.predict` does."""
        model: Any = super()
        with self._running():
            adapter = get_data_adapter(x, batch_size=batch_size, steps_per_epoch=steps)
            self._build_on(adapter)
            return model.predict(GroupedDataAdapter(self, adapter), None, verbose, steps, callbacks)

    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as `keras.Model.train_on_batch` does."""
        model: Any = super()
        with self._running():
            return model.train_on_batch(*args, **kwargs)

    def test_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch as `keras.Model.test_on_batch` does."""
        model: Any = super()
        with self._running():
            return model.test_on_batch(*args, **kwargs)

    def predict_on_batch(self: Any, x: Any) -> Any:
        """Predict one batch as `keras.Model.predict_on_batch` does."""
        model: Any = super()
        with self._running():
            return model.predict_on_batch(x)

    def train_step(self: Any, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        """Take one optimizer step.

        Args:
            state: Values of the trainable, non-trainable, optimizer and metrics variables, as Keras passes them.
            data: `x`, `(x, y)` or `(x, y, sample_weight)`: the batch of all replicas.

        Returns:
            The metrics by name, and the next state.
        """
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = _unpacked(data)
        x, y, begun = self._augmented(x, y, non_trainable)

        def scaled_loss(trainable: Any) -> tuple[Any, Any]:
            loss, aux = self.compute_loss_and_updates(
                trainable,
                begun,
                metrics,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=optimizer,
            )
            scale = self._step_state.scale.value.astype(loss.dtype) if self._step_state.loss_scale else 1
            return jnp.sum(loss) * scale, aux

        gradients, (loss, y_pred, after, metrics) = jax.grad(scaled_loss, has_aux=True)(trainable)
        weights = Weights(trainable, non_trainable, optimizer)
        weights = accumulate_or_apply(self, gradients, weights, after, self._number_of_examples(x))
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (weights.trainable, weights.non_trainable, weights.optimizer, metrics)

    def test_step(self: Any, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        """Evaluate one batch; `state` and what is returned are without the optimizer's variables."""
        trainable, non_trainable, metrics = state
        x, y, sample_weight = _unpacked(data)
        _, (loss, y_pred, non_trainable, metrics) = self.compute_loss_and_updates(
            trainable, non_trainable, metrics, x, y, sample_weight, training=False
        )
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, non_trainable, metrics)

    def global_mean(self: Any, per_example: Any, sample_weight: Any = None) -> Any:
        """Return the mean over the whole batch, which on JAX is what a step holds.

        Args:
            per_example: Array whose first dimension is the batch.
            sample_weight: Weights to multiply it with, of the same leading dimensions. As in Keras, the denominator
                is the number of elements and not the sum of the weights.
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
                    self._build_window()
            self._forget_flushes()
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

    def _augmented(self: Any, x: Any, y: Any, values: Any) -> tuple[Any, Any, Any]:
        """Return the batch as the model is to see it, and the next values of what is not trained."""
        if not self._augments():
            return x, y, values
        changed: list[Any] = []
        values = stateless(lambda: changed.extend(self._pair(x, y)), self.non_trainable_variables, values)
        return changed[0], changed[1], values

    def _number_of_examples(self, x: Any) -> Any:
        rows = next(leaf for leaf in jax.tree.leaves(x)).shape[0]
        return rows if BATCH.examples is None else BATCH.examples

    def _updated_metrics(
        self: Any, values: Any, loss: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any
    ) -> tuple[dict[str, Any], Any]:
        """Return the logs and the next values of the metrics' variables."""
        logs: list[dict[str, Any]] = []

        def update() -> None:
            # Of a loss that is not reduced Keras tracks the mean.
            mean = loss if not loss.shape else jnp.mean(loss) / _jax_batch.valid_fraction()
            self._loss_tracker.update_state(mean, sample_weight=self._number_of_examples(x))
            logs.append(dict(self.compute_metrics(x, y, y_pred, sample_weight)))

        values = stateless(update, self.metrics_variables, values)
        return logs[0], values

    def _batches(self: Any, *, fills_up: bool, most_steps: int | None = None) -> Batches:
        return Batches(distribution_of(self), num_replicas(self), fills_up=fills_up, most_steps=most_steps)

    def _steps_wanted(self: Any) -> tuple[int, int]:
        """Return how many steps the next execution has, and how many an execution may have."""
        pace, most = self._schedule, int(self.steps_per_execution)
        return (most, most) if pace is None or pace.held else (int(pace.asked), most)

    def _own_scope(self) -> Any:
        return within(distribution_of(self))

    def _running(self) -> Any:
        return within(None)

    def _build_optimizer(self: Any) -> None:
        self.optimizer.build(self.trainable_variables)
        track_all_variables(self.optimizer)

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> StatelessStepState:
        return StatelessStepState(loss_scale, accumulation_steps)

    def _make_schedule(self) -> GroupExecutionSchedule:
        return GroupExecutionSchedule()

    def _is_one_of_several_processes(self) -> bool:
        return num_workers() > 1

    def _is_chief(self) -> bool:
        return is_chief()

    def _all_gather_int(self, number: int) -> list[int]:
        return all_gather_int(number)

    def _explain_peer_failure(self) -> Any:
        return explain_peer_failure()

    def _symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Build as Keras does, inside the model's own distribution, and prepare the batches of `iterator`."""
        model: Any = super()
        with self._own_scope():
            if iterator is None:
                model._symbolic_build(data_batch=data_batch)
            else:
                model._symbolic_build(iterator=PeekIterator(iterator.data_adapter))
        if self.optimizer is not None:
            track_all_variables(self.optimizer)
        self._adopt_variables()
        if iterator is not None:
            enumerate_by_schedule(self, iterator)
            adapted = GroupedDataAdapter(self, iterator.data_adapter, trains_or_tests=True)
            iterator._get_iterator = adapted.get_jax_iterator

    def _build_on(self: Any, adapter: Any) -> None:
        """Build on one batch what is not built: Keras, in `predict`, would take an execution's groups for a batch."""
        if all(layer.built for layer in self._flatten_layers()):
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(next(iter(adapter.get_numpy_iterator())))
        with within(distribution_of(self)), keras.StatelessScope():
            self(x)

    def _adopt_variables(self: Any) -> None:
        """Put variables that were made elsewhere, as an optimizer's learning rate may be, where the model is."""
        distribution = distribution_of(self)
        if distribution is None:
            return
        optimizer = [] if getattr(self, "optimizer", None) is None else self.optimizer.variables
        for variable in [*self.variables, *optimizer, *self.metrics_variables, *own_variables(self)]:
            if variable._layout is None:
                variable._layout = distribution.get_variable_layout(variable)
                variable.assign(variable.value)

    def _get_jax_state(self: Any, **which: bool) -> Any:
        """Return the state as Keras does; a model with optimizers for a step of its own may have no other.

        After an epoch a variable and its moving average may be one array, and JAX takes none as a gift twice.
        """
        model: Any = super()
        if getattr(self, "optimizer", _NO_OPTIMIZER) is not None:  # without compile the name is not there
            return copy_aliased_buffers(model._get_jax_state(**which))
        self.optimizer = _NO_OPTIMIZER
        try:
            return copy_aliased_buffers(model._get_jax_state(**which))
        finally:
            self.optimizer = None

    def _build_window(self: Any) -> None:
        window = self._step_state.window(self.optimizer)
        if window is not None:
            window.build_for(self.trainable_variables)

    def _make_flush(self: Any, optimizer: Any) -> Callable[[], None]:
        parts = (self.trainable_variables, self.non_trainable_variables, optimizer.variables)
        own = own_variables(self)

        @jax.jit
        def flushed(weights: Any, values: Any) -> Any:
            after: list[Any] = []
            values = stateless(lambda: after.append(flush(self, Weights(*weights))), own, values)
            return after[0], values

        def run() -> None:
            weights, values = flushed([[v.value for v in part] for part in parts], [v.value for v in own])
            for part, new in zip([*parts, own], [*weights, values], strict=True):
                for variable, value in zip(part, new, strict=True):
                    variable.assign(value)

        return run


def _unpacked(data: Any) -> tuple[Any, Any, Any]:
    """Return inputs, targets and weights; a row that only fills the batch up weighs nothing."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, jax.tree.map(_jax_batch.zero_invalid_rows, sample_weight)


class _NoOptimizer:
    """Has no variables."""

    variables: tuple[Any, ...] = ()


_NO_OPTIMIZER = _NoOptimizer()
