"""The exact step on Keras 3 and JAX, as pure functions of a state.

On JAX every step sees the whole batch, so a mean is the global mean, on any number of devices. What is left to do:
batches that cannot be split evenly over the devices, loss scaling, accumulation, and loops on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.missing_names import override, private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat.keras3_jax import keeping_state
from keras_tpu_ext._runtime.jax import batch as _batch
from keras_tpu_ext._runtime.jax.data_adapter import GroupedDataAdapter, PeekIterator, grouped_data
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.explained_errors import explained_errors
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
from keras_tpu_ext._runtime.jax.separability import Method, Separability
from keras_tpu_ext._runtime.jax.sharding import unshare
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext._runtime.jax.update import (
    Weights,
    accumulate_or_apply,
    flush_window,
    make_step_state,
    run_stateless,
)
from keras_tpu_ext._runtime.keras3.adapter import Keras3Adapter
from keras_tpu_ext._runtime.keras3.execution_schedule import enumerate_executions
from keras_tpu_ext._runtime.keras3.models import has_layer_losses, track_all_variables
from keras_tpu_ext._runtime.training.denominator import recording
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.model import is_own_step
from keras_tpu_ext._runtime.training.program import ExactProgram
from keras_tpu_ext._runtime.training.step_state import StepState
from keras_tpu_ext.errors import ArgumentError

_is_jax_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:is_jax_sparse")


class JaxAdapter(Keras3Adapter):
    """The `KerasAdapter` of Keras 3 on JAX."""

    def build_optimizer(self, model: keras.Model) -> None:
        """Make the optimizer's variables, all of them known to it."""
        super().build_optimizer(model)
        track_all_variables(model.optimizer)


class JaxProgram(ExactProgram):
    """The `ExactProgram` of Keras 3 on JAX."""

    adapter = JaxAdapter()
    facts = _batch
    layout_is_told = False  # whether a warning about layouts has been given
    layout_asked: Any = None  # the distribution of `shard="auto"` that has chosen the layout
    separability: Separability

    def __init__(self, model: Model, default_augment: Callable[..., Any] | None = None) -> None:
        super().__init__(model, default_augment)
        self.set_untracked(separability=Separability(model, self._forward))

    def traced(self, *, replaces: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context in which operations are exact on the model's devices, also as Keras computes on a TPU."""
        return exact_operations(TracedDevices.of(distribution_of(self.model)), replaces=replaces)

    def train_step(self, state: Any, data: Nest) -> tuple[dict[str, Any], Any]:
        """Take one optimizer step.

        Returns:
            The metrics by name, and the next state.
        """
        model, scaler = self.model, self.compiled_state().loss_scaler
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = _unpacked(data)
        x, y, augmented = self._augmented(x, y, non_trainable)
        options = {"training": True, "optimizer_variables": optimizer}

        def scaled_loss(trainable: Any) -> tuple[jax.Array, Any]:
            with recording() as losses:
                loss, aux = model.compute_loss_and_updates(
                    trainable, augmented, metrics, x, y, sample_weight, **options
                )
            weight = self.weight_in_window(_number_of_examples(x), losses, of_layers=has_layer_losses(model))
            return scaler.scale_loss(jnp.sum(loss)), (aux, weight)

        gradients, (aux, weight) = jax.grad(scaled_loss, has_aux=True)(trainable)
        loss, y_pred, after, metrics = aux
        before = Weights(trainable, non_trainable, optimizer)
        weights = accumulate_or_apply(model, gradients, before, after, weight)
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (*weights, metrics)

    def test_step(self, state: Any, data: Nest) -> tuple[dict[str, Any], Any]:
        """Evaluate one batch; `state` and the returned state do not include the optimizer's variables."""
        trainable, non_trainable, metrics = state
        x, y, sample_weight = _unpacked(data)
        _, (loss, y_pred, non_trainable, metrics) = self.model.compute_loss_and_updates(
            trainable, non_trainable, metrics, x, y, sample_weight, training=False
        )
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, non_trainable, metrics)

    def global_mean(self, per_example: jax.Array, sample_weight: Any = None) -> jax.Array:
        """Return the mean over the whole batch, which on JAX every step holds; see `ExactModel.global_mean`."""
        values = jnp.asarray(per_example)
        if sample_weight is not None:
            weight = jnp.asarray(sample_weight, values.dtype)
            values *= jnp.reshape(weight, (*weight.shape, *[1] * (values.ndim - weight.ndim)))
        return jnp.mean(values)

    def minimize(self, *arguments: object) -> NoReturn:
        """Refuse: a step on JAX is a pure function."""
        raise ArgumentError(
            "minimize is for a train_step on TensorFlow; one on JAX returns its next state. Write: gradients = "
            "jax.grad(loss)(trainable_variables), and then trainable_variables, optimizer_variables = "
            "optimizer.stateless_apply(optimizer_variables, gradients, trainable_variables)."
        )

    def make_train_function(self) -> Callable[..., Any]:
        """Return the function that `fit` calls for one execution."""
        self.separability.forget()
        if self.model.built:
            with self.own_scope():
                self.build_accumulator()
        self.reset_flushes()
        step = self.model.train_step
        return make_function(self.model, self.train_step if is_own_step(step) else step, trains=True)

    def make_test_function(self) -> Callable[..., Any]:
        """Return the function that `evaluate` calls for one execution."""
        self.separability.forget()
        step = self.model.test_step
        return make_function(self.model, self.test_step if is_own_step(step) else step, trains=False)

    def make_predict_function(self, stock: object) -> Callable[..., Any]:
        """Return the function that `predict` calls for one execution."""
        self.separability.forget()
        self.adopt_variables()
        return make_predict_function(self.model)

    def may_pad(self, method: Method, data: Nest) -> bool:
        """Return whether a batch may be padded: whether nothing that is kept or returned changes with padded rows."""
        return self.separability.answer(method, data).may_pad

    def _forward(self, method: Method, state: Any, data: Nest) -> tuple[Nest, Nest, Nest]:
        """Return the loss, the outputs and the next state, but for what follows from gradients."""
        if method == "predict":
            outputs, non_trainable = self.model.predict_step(state, data)
            return None, outputs, (state[0], non_trainable)
        trainable, non_trainable, *optimizer, metrics = state
        x, y, sample_weight = _unpacked(data)
        options: dict[str, Any] = {"training": method == "fit"}
        if method == "fit":
            x, y, non_trainable = self._augmented(x, y, non_trainable)
            options["optimizer_variables"] = optimizer[0]
        _, (loss, y_pred, non_trainable, metrics) = self.model.compute_loss_and_updates(
            trainable, non_trainable, metrics, x, y, sample_weight, **options
        )
        # Only for the error of a metric that cannot tell padded rows; the others get weights.
        self._updated_metrics(metrics, jnp.zeros(()), x, y, y_pred, sample_weight)
        return loss, y_pred, (trainable, non_trainable, *optimizer, metrics)

    def _augmented(self, x: Nest, y: Nest, values: Any) -> tuple[Nest, Nest, Any]:
        """Return the batch as the model should see it, and the next values of the non-trainable variables."""
        if not self.augments:
            return x, y, values
        changed: list[Any] = []
        values = run_stateless(lambda: changed.extend(self.augment(x, y)), self.model.non_trainable_variables, values)
        return changed[0], changed[1], values

    def _updated_metrics(
        self, values: Any, loss: jax.Array, x: Nest, y: Nest, y_pred: Nest, sample_weight: Nest
    ) -> tuple[dict[str, Any], Any]:
        """Return the logs and the next values of the metrics' variables."""
        logs: list[dict[str, Any]] = []

        def update() -> None:
            # Keras tracks the mean of a loss that is not reduced.
            mean = loss if not loss.shape else jnp.mean(loss) / _batch.valid_fraction()
            self.model._loss_tracker.update_state(mean, sample_weight=_number_of_examples(x))
            logs.append(dict(self.model.compute_metrics(x, y, y_pred, sample_weight)))

        values = run_stateless(update, self.model.metrics_variables, values)
        return logs[0], values

    def compile(self, *arguments: Any) -> None:
        """Configure the model; in the block of another scope it moves there first."""
        move_to(self.model, current_distribution())
        self.separability.forget()
        super().compile(*arguments)

    def own_scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the model's distribution."""
        return use_distribution(distribution_of(self.model))

    def adopt(self) -> None:
        """Bind the model to the open block; its variables are moved before they are used."""
        keep(self.model, current_distribution())

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Return the context in which Keras's own loops run: batches are laid out by ours."""
        with (
            explained_errors(self.model),
            use_distribution(None),
            keeping_state(self.model),
            self.traced(replaces=True),
        ):
            yield

    def prepare(self, call: FitCall) -> None:
        """Let `predict` read groups of batches; `fit` and `evaluate` get them when the model is built."""
        if call.method == "predict":
            if self.model.built:
                self.adopt_variables()
            call.arguments["x"] = grouped_data(self.model, call.arguments)
            call.arguments.pop("batch_size", None)

    def saves_together(self) -> bool:
        """Return whether processes hold shards of what is saved."""
        model = self.model
        optimizer = [] if getattr(model, "optimizer", None) is None else model.optimizer.variables
        saved = (*model.variables, *optimizer, *own_variables(model))
        return any(has_shards_elsewhere(variable) for variable in saved)

    def process_group(self) -> JaxProcessGroup:
        """Return JAX's processes."""
        return JaxProcessGroup()

    def make_step_state(self, loss_scale: Any, accumulation_steps: int) -> StepState:
        """Return a `StepState` for pure functions."""
        return make_step_state(loss_scale, accumulation_steps)

    def make_schedule(self) -> GroupExecutionSchedule:
        """Return an `ExecutionSchedule` of groups."""
        return GroupExecutionSchedule()

    def make_overflow_watch(self, steps: int) -> StatelessOverflowWatch:
        """Return an `OverflowWatch` for pure functions."""
        return StatelessOverflowWatch(self.model.trainable_variables, steps)

    def build_accumulator(self) -> None:
        """Make the variables of the gradient accumulator, if there is one."""
        accumulator = self.compiled_state().accumulator(self.model.optimizer)
        if accumulator is not None:
            accumulator.build_for(self.model.trainable_variables)

    def make_flush(self, optimizer: Optimizer) -> Callable[[], None]:
        """Return a function that takes the step of an open window."""
        model = self.model
        parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        own = own_variables(model)

        @jax.jit
        def flushed(weights: jax.Array, values: jax.Array) -> Any:
            after: list[Weights] = []
            values = run_stateless(lambda: after.append(flush_window(model, Weights(*weights))), own, values)
            return after[0], values

        def flush() -> None:
            weights, values = flushed([[v.value for v in part] for part in parts], [v.value for v in own])
            for part, new in zip([*parts, own], [*weights, values], strict=True):
                for variable, value in zip(part, new, strict=True):
                    variable.assign(value)

        return flush

    def symbolic_build(self, stock: Callable[..., None], iterator: Any, data_batch: Any) -> None:
        """Build as Keras does, inside the model's own distribution, and prepare the batches of `iterator`."""
        model = self.model
        if model.built:
            self.adopt_variables()  # an optimizer lays out its slots like the weights
        with self.own_scope():
            if iterator is None:
                stock(data_batch=data_batch)
            else:
                peeked = PeekIterator(iterator.data_adapter)
                stock(iterator=peeked)
                data_batch = peeked.batch
        if model.optimizer is not None:
            track_all_variables(model.optimizer)
        self.adopt_variables()
        if data_batch is not None:
            choose_layout(model, data_batch)
        warn_of_layouts(model)
        if iterator is not None:
            enumerate_executions(model, iterator)
            adapted = GroupedDataAdapter(model, iterator.data_adapter, trains_or_tests=True)
            override(iterator, "_get_iterator", adapted.get_jax_iterator)

    def adopt_variables(self) -> None:
        """Move variables that were created elsewhere, such as an optimizer's learning rate, to where the model is."""
        lay_out_what_has_no_layout(self.model)

    def jax_state(self, stock: Callable[..., Any], which: dict[str, bool]) -> Any:
        """Return the state as Keras does, of arrays that nothing else holds: a step donates them.

        The model may have optimizers for its own step and no other.
        """
        model: Model = self.model
        has_none = getattr(model, "optimizer", _NO_OPTIMIZER) is None  # not set before `compile`
        with patched([(model, "a model's optimizer", lambda none: _NO_OPTIMIZER)] if has_none else []):
            parts = {
                "trainable_variables": model.trainable_variables,
                "non_trainable_variables": model.non_trainable_variables,
                "optimizer_variables": getattr(model, "optimizer", _NO_OPTIMIZER).variables,
                "metrics_variables": model.metrics_variables,
            }
            last = getattr(model, "_jax_state", None) or {}  # of the steps before, which a loop holds as well
            running = {id(array) for part in last.values() for array in part or ()}
            last = model._jax_state = None
            donated = [variable for name, part in parts.items() if which.get(name) for variable in part]
            unshare([*donated, *own_variables(model)], running)
            return stock(**which)


def _unpacked(data: Nest) -> tuple[Nest, Nest, Nest]:
    """Return inputs, targets and weights; the weights of padded rows are zero."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, jax.tree.map(_batch.zero_invalid_rows, sample_weight)


def _number_of_examples(x: Nest) -> jax.Array | int:
    rows: int = jax.tree.leaves(x, is_leaf=_is_jax_sparse)[0].shape[0]
    return rows if _batch.BATCH.examples is None else _batch.BATCH.examples


class _NoOptimizer:
    """Stands in for an optimizer and has no variables."""

    variables: tuple[Any, ...] = ()


_NO_OPTIMIZER = _NoOptimizer()
