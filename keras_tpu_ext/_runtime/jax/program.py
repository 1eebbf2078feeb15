"""The exact step on Keras 3 and JAX, as pure functions of a state.

On JAX every step sees the whole batch, so a mean is the global mean, on any number of devices. What is left to do:
batches that cannot be split evenly over the devices, loss scaling, accumulation, and loops on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat.keras3_jax import HAS_MAYBE_SYMBOLIC_BUILD, keeping_state
from keras_tpu_ext._runtime.jax import batch as _batch
from keras_tpu_ext._runtime.jax import devices as _devices
from keras_tpu_ext._runtime.jax.data_adapter import GroupedDataAdapter, Method, first_execution, grouped_data
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.explained_errors import explained_errors
from keras_tpu_ext._runtime.jax.layouts import (
    choose_layout,
    lay_out_variables,
    move_to,
    variables_of,
    warn_of_layouts,
)
from keras_tpu_ext._runtime.jax.loop import CompiledLoop, make_function, make_predict_function, unshare
from keras_tpu_ext._runtime.jax.process_group import JaxProcessGroup, has_shards_elsewhere
from keras_tpu_ext._runtime.jax.saved_programs import offered_steps
from keras_tpu_ext._runtime.jax.scope import bind, distribution_of, use_distribution
from keras_tpu_ext._runtime.jax.separability import Separability
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, traced_devices
from keras_tpu_ext._runtime.jax.update import (
    GradientAccumulator,
    State,
    StatelessLossScaler,
    StatelessNotFiniteWatch,
    StatelessOverflowWatch,
    Values,
    Weights,
    accumulate_or_apply,
    compiled_flush,
    own_variables,
    run_stateless,
    state_variables,
)
from keras_tpu_ext._runtime.keras3.data_adapter import enumerate_executions
from keras_tpu_ext._runtime.keras3.models import reduced, track_all_variables
from keras_tpu_ext._runtime.keras3.program import Keras3Program
from keras_tpu_ext._runtime.training.denominator import recording
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.model import ExactModel, is_own_step, stock_of
from keras_tpu_ext.checks.arguments import argument_error
from keras_tpu_ext.errors import ArgumentError


class JaxProgram(Keras3Program):
    """The `ExactProgram` of Keras 3 on JAX."""

    facts = _batch
    devices = _devices
    can_shard = True
    process_group = staticmethod(JaxProcessGroup)
    loss_scaler = StatelessLossScaler
    accumulator = GradientAccumulator
    overflow_watch = StatelessOverflowWatch
    not_finite_watch = StatelessNotFiniteWatch
    layout_warned = False  # whether a warning about layouts has been given
    layout_chosen_by: keras.distribution.Distribution | None = None  # of `shard="auto"`, once it has chosen
    separability: Separability

    def __init__(self, model: Model, default_augment: Callable[..., Any] | None = None) -> None:
        super().__init__(model, default_augment)
        self.set_untracked(separability=Separability(model, self._forward))

    def traced(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which operations are exact on the model's devices, also as Keras computes on a TPU.

        A model that is called within another one is a part of it: the outermost block with a mesh counts.
        """
        outer = traced_devices()
        if outer is None or (outer.mesh is None and not outer.is_abstract):
            return exact_operations(TracedDevices.of(distribution_of(self.model)))
        if outer.exact_attention:
            return contextlib.nullcontext()
        return exact_operations(dataclasses.replace(outer, exact_attention=True))

    def make_schedule(self) -> ExecutionSchedule:
        """Return the schedule of "auto", which takes the steps of compiled programs, if there are any."""
        schedule, steps = ExecutionSchedule(), offered_steps()
        schedule.tuner.steps, schedule.tuner.settled = max(1, steps), steps > 0
        return schedule

    def train_step(self, state: State, data: Nest) -> tuple[dict[str, Any], State]:
        """Take one optimizer step; return the metrics by name, and the next state."""
        model, scaler = self.model, self.compiled_state().loss_scaler
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = _unpacked(data)
        x, y, augmented = self._augmented(x, y, non_trainable)
        options = {"training": True, "optimizer_variables": optimizer}

        def scaled_loss(trainable: Values) -> tuple[jax.Array, Any]:
            with recording() as losses:
                loss, aux = model.compute_loss_and_updates(
                    trainable, augmented, metrics, x, y, sample_weight, **options
                )
            weight = self.weight_in_window(_number_of_examples(x), losses, of_layers=_has_layer_losses(model))
            return scaler.scale_loss(jnp.sum(loss)), (aux, weight)

        gradients, (aux, weight) = jax.grad(scaled_loss, has_aux=True)(trainable)
        loss, y_pred, after, metrics = aux
        before = Weights(trainable, non_trainable, optimizer)
        watch = self.compiled_state().not_finite_watch
        if watch is not None:
            watch.note(loss, trainable, data, lambda: self._forward("fit", state, data))
        weights = accumulate_or_apply(model, gradients, before, after, weight)
        if watch is not None:
            watch.note_update(weights.trainable)
        logs, metrics = self._updated_metrics(metrics, loss, x, y, y_pred, sample_weight)
        return logs, (*weights, metrics)

    def test_step(self, state: State, data: Nest) -> tuple[dict[str, Any], State]:
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
        return make_function(self.model, self.compiled_loop("fit"), trains=True)

    def make_test_function(self) -> Callable[..., Any]:
        """Return the function that `evaluate` calls for one execution."""
        self.separability.forget()
        return make_function(self.model, self.compiled_loop("evaluate"), trains=False)

    def make_predict_function(self, stock: object) -> Callable[..., Any]:
        """Return the function that `predict` calls for one execution."""
        self.separability.forget()
        lay_out_variables(self.model)
        return make_predict_function(self.model, self.compiled_loop("predict"))

    def compiled_loop(self, method: Method) -> CompiledLoop:
        """Return what runs the steps of `fit`, `evaluate` or `predict`."""
        model = self.model
        if method == "predict":
            return CompiledLoop(model, predict_step_of(model), collects=True)
        if method == "fit":
            return CompiledLoop(model, self.train_step if is_own_step(model.train_step) else self._own_train_step)
        return CompiledLoop(model, self.test_step if is_own_step(model.test_step) else model.test_step)

    def leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether the model has a `train_step` of its own."""
        return not is_own_step(self.model.train_step)

    def _own_train_step(self, state: State, data: Nest) -> tuple[dict[str, Any], State]:
        """Take the user's own step; refuse one that does nothing of what `compile` was told."""
        variables = self.compiled_state().own_variables()
        before = [variable.value for variable in variables]
        results: tuple[dict[str, Any], State] = self.model.train_step(state, data)
        if variables and all(variable.value is value for variable, value in zip(variables, before, strict=True)):
            name = "loss_scale" if self.scales_loss else "gradient_accumulation_steps"
            example = "return super().train_step(state, data), or give it to the optimizer"
            needed = "left out with a train_step of your own on JAX that does not call super().train_step"
            raise argument_error("compile", name, needed, repr(self._given.get(name)), example)
        return results

    def _forward(self, method: Method, state: State, data: Nest) -> tuple[Nest, Nest, State]:
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
        # Only for the error of a metric that cannot tell padded rows; the others get weights. No mask outlives a
        # gradient.
        of_metrics = jax.tree.map(jnp.copy, y_pred) if method == "fit" else y_pred
        self._updated_metrics(metrics, jnp.zeros(()), x, y, of_metrics, sample_weight)
        return loss, y_pred, (trainable, non_trainable, *optimizer, metrics)

    def _augmented(self, x: Nest, y: Nest, values: Values) -> tuple[Nest, Nest, Values]:
        """Return the batch as the model should see it, and the next values of the non-trainable variables."""
        if not self.augments:
            return x, y, values
        (x, y), values = run_stateless(lambda: self.augment(x, y), self.model.non_trainable_variables, values)
        return x, y, values

    def _updated_metrics(
        self, values: Values, loss: jax.Array, x: Nest, y: Nest, y_pred: Nest, sample_weight: Nest
    ) -> tuple[dict[str, Any], Values]:
        """Return the logs and the next values of the metrics' variables."""

        def update() -> dict[str, Any]:
            # Keras tracks the mean of a loss that is not reduced.
            mean = loss if not loss.shape else jnp.mean(loss) / _batch.valid_fraction()
            self.model._loss_tracker.update_state(mean, sample_weight=_number_of_examples(x))
            return dict(self.model.compute_metrics(x, y, y_pred, sample_weight))

        return run_stateless(update, self.model.metrics_variables, values)

    def compile(self, *arguments: Any) -> None:
        """Configure the model; in the block of another scope it moves there first."""
        move_to(self.model, keras.distribution.distribution())
        self.separability.forget()
        super().compile(*arguments)

    def own_scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the model's distribution."""
        return use_distribution(distribution_of(self.model))

    def attach(self) -> None:
        """Bind the model to the open block; its variables are moved before they are used."""
        bind(self.model, keras.distribution.distribution())

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Return the context in which Keras's own loops run: batches are laid out by ours."""
        with (
            explained_errors(self.model),
            use_distribution(None),
            keeping_state(self.model),
            exact_operations(TracedDevices.of(distribution_of(self.model))),
        ):
            yield

    def prepare(self, call: FitCall) -> None:
        """Let `predict` read groups of batches; `fit` and `evaluate` get them when the model is built."""
        if call.method == "predict":
            if self.model.built:
                lay_out_variables(self.model)
            call.arguments["x"] = grouped_data(self.model, call.arguments)
            call.arguments.pop("batch_size", None)

    def saves_together(self) -> bool:
        """Return whether processes hold shards of what is saved."""
        return any(has_shards_elsewhere(variable) for variable in variables_of(self.model))

    def build_optimizer(self) -> None:
        """Make the optimizer's variables, all of them known to it."""
        super().build_optimizer()
        track_all_variables(self.model.optimizer)

    def build_accumulator(self) -> None:
        """Make the variables of the gradient accumulator, if there is one."""
        accumulator = self.compiled_state().accumulator(self.model.optimizer)
        if accumulator is not None:
            accumulator.build_for(self.model.trainable_variables)

    def make_flush(self, optimizer: Optimizer) -> Callable[[], None]:
        """Return a function that takes the step of an open window."""
        flushed, parts = compiled_flush(self.model, optimizer)

        def flush() -> None:
            for part, new in zip(parts, flushed(*[[v.value for v in part] for part in parts]), strict=True):
                for variable, value in zip(part, new, strict=True):
                    variable.assign(value)

        return flush

    def symbolic_build(self, stock: Callable[..., None], iterator: Any, data_batch: Any) -> None:
        """Build as Keras does, inside the model's own distribution, and prepare the batches of `iterator`."""
        model = self.model
        if model.built:
            lay_out_variables(self.model)  # an optimizer lays out its slots like the weights
        with self.own_scope():
            if iterator is None:
                stock(data_batch=data_batch)
            else:
                read: list[Nest] = []
                stock(iterator=first_execution(iterator.data_adapter, read))
                data_batch = read[0] if read else None
        if model.optimizer is not None:
            track_all_variables(model.optimizer)
        lay_out_variables(self.model)
        if data_batch is not None:
            choose_layout(model, data_batch)
        warn_of_layouts(model)
        if iterator is not None:
            enumerate_executions(model, iterator)
            adapted = GroupedDataAdapter(model, iterator.data_adapter, getattr(self.running, "method", "fit"))
            override(iterator, "_get_iterator", adapted.get_jax_iterator)

    def jax_state(self, stock: Callable[..., Any], which: dict[str, bool]) -> Any:
        """Return the state as Keras does, of arrays that nothing else holds: a step donates them."""
        model: Model = self.model
        has_none = getattr(model, "optimizer", _NO_OPTIMIZER) is None  # not set before `compile`
        with patched([(model, "a model's optimizer", lambda none: _NO_OPTIMIZER)] if has_none else []):
            names = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
            last = getattr(model, "_jax_state", None) or {}  # of the steps before, which a loop holds as well
            running = {id(array) for part in last.values() for array in part or ()}
            last = model._jax_state = None
            parts = zip(names, state_variables(model), strict=True)
            donated = [variable for name, part in parts if which.get(name) for variable in part]
            unshare([*donated, *own_variables(model)], running)
            return stock(**which)


def _clear_loss_ids(model: keras.Model) -> None:
    """Make all layers of `model` forget the losses of an earlier call, before a call without side effects.

    Each layer keeps the ids of its `add_loss` terms until it is called again, and then removes the losses with these
    ids from those of the call: a term of another layer that has reused the id of a deleted term would be lost
    (docs/upstream/lost_add_loss.md).
    """
    for layer in model._flatten_layers():
        layer._loss_ids.clear()


def _has_layer_losses(model: keras.Model) -> bool:
    """Return whether `add_loss` terms or activity regularizers have been collected since `_clear_loss_ids`."""
    return any(layer._loss_ids for layer in model._flatten_layers())


def predict_step_of(model: Model) -> Callable[[State, Nest], tuple[Nest, State]]:
    """Return the step of `predict`, which takes a state and a batch, and returns the outputs and the next state."""

    def predict_step(state: State, data: Nest) -> tuple[Nest, State]:
        outputs, non_trainable = model.predict_step(state, data)
        return outputs, (state[0], non_trainable)

    return predict_step


def _unpacked(data: Nest) -> tuple[Nest, Nest, Nest]:
    """Return inputs, targets and weights; the weights of padded rows are zero."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, jax.tree.map(_batch.zero_invalid_rows, sample_weight)


def _number_of_examples(x: Nest) -> jax.Array | int:
    rows = _batch.number_of_rows(x)
    return rows if _batch.BATCH.examples is None else _batch.BATCH.examples


_NO_OPTIMIZER = types.SimpleNamespace(variables=())


class TrainStep(ExactModel):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(JaxProgram)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bind(self, keras.distribution.distribution())
        super().__init__(*args, **kwargs)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle and copy through a saved model, as Keras does, since the class of `self` is known only here."""
        model: Any = super()
        return reduced(model.__reduce__())

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model as Keras does; its attention on a TPU matches that on a CPU."""
        model: Any = super()
        with self._kte.traced():
            return model.__call__(*args, **kwargs)

    def stateless_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model without side effects as Keras does, also on a TPU; no `add_loss` term is lost."""
        model: Any = super()
        _clear_loss_ids(self)
        with self._kte.traced():
            return model.stateless_call(*args, **kwargs)

    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as `keras.Model.train_on_batch` does."""
        stock = stock_of(self, super(), "train_on_batch")
        with self._kte.loop():
            return stock(*args, **kwargs)

    def test_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch as `keras.Model.test_on_batch` does."""
        stock = stock_of(self, super(), "test_on_batch")
        with self._kte.loop():
            return stock(*args, **kwargs)

    def predict_on_batch(self: Any, x: Nest) -> Any:
        """Predict one batch as `keras.Model.predict_on_batch` does."""
        stock = stock_of(self, super(), "predict_on_batch")
        with self._kte.loop():
            return stock(x)

    def get_weights(self: Any) -> list[Any]:
        """Return the weights as `keras.Model.get_weights` does; call it on every process if they are sharded."""
        model: Any = super()
        with self._kte.process_group().reading_shards():
            weights: list[Any] = model.get_weights()
        return weights

    if HAS_MAYBE_SYMBOLIC_BUILD:

        def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
            self._symbolic_build(iterator=iterator, data_batch=data_batch)  # which prepares the batches

    def _symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        model: Any = super()
        self._kte.symbolic_build(model._symbolic_build, iterator, data_batch)

    def _get_jax_state(self: Any, **which: bool) -> Any:
        model: Any = super()
        return self._kte.jax_state(model._get_jax_state, which)

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        model: Any = super()
        return self._kte.metrics_result_or_logs(model._get_metrics_result_or_logs, logs)
