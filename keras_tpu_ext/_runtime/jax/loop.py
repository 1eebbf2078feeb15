"""How `fit`, `evaluate` and `predict` run steps on JAX: many steps per call, in one compiled loop, no recompilation.

Keras up to 3.15 unrolls `steps_per_execution` in Python, with one dispatch per step (keras#23527 is its own loop).
Here a loop runs on the device, and its number of steps is an argument, so a shorter last execution needs no other
program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext._runtime.common.steps_tuner import StepsTuner
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat.keras3_jax import state_after_predict
from keras_tpu_ext._runtime.jax.batch import batch_context, exclude_padding
from keras_tpu_ext._runtime.jax.data_adapter import Group, batches_of, host_batch
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.scope import distribution_of
from keras_tpu_ext._runtime.jax.sharding import replicated
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext._runtime.jax.update import step_variables
from keras_tpu_ext._runtime.keras3.models import optimizers_of
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule
from keras_tpu_ext._runtime.training.step_state import step_state_of

# Takes a state and a batch; returns the step's outputs and the next state.
Step = Callable[[Any, Any], tuple[Any, Any]]


class CompiledLoop:
    """Runs a step over groups of batches; Keras's train, test and predict functions are built from it.

    Args:
        model: The model; its `run_eagerly` and `jit_compile` are honoured.
        step: The step.
        collects: Whether to return the outputs of all steps rather than those of the last one.
        is_lowered: Whether it is only lowered, for other devices than those that the model is on.
    """

    def __init__(self, model: keras.Model, step: Step, *, collects: bool = False, is_lowered: bool = False) -> None:
        self._model = model
        self._step = step
        self._collects = collects
        self._is_lowered = is_lowered
        self._compiled: tuple[Any, Any] | None = None
        self._seen: set[Any] = set()

    def call(self, state: Any, group: Group) -> tuple[Callable[..., tuple[Any, Any, Any]], tuple[Any, ...]]:
        """Return what to call for the steps over a group, and its arguments, which are donated.

        It returns the outputs, the next state and the next values of `own_variables`, which `keep` keeps. (It is not
        called here, as its frames are in every traceback of a user's layer.)
        """
        own = [variable.value for variable in own_variables(self._model)]
        if self._model.run_eagerly or not self._model.jit_compile:
            return self._one_by_one, (state, own, group)
        if self._compiled is None:
            self._compiled = self._compile(state, own)
        one, many = self._compiled
        arguments = (state, own, group.data, group.examples)
        return (one, arguments) if group.steps is None else (many, (*arguments, group.steps))

    def keep(self, outputs: Any, state: Any, own: Any) -> tuple[Any, Any]:
        """Assign the values of `own_variables`; return the outputs and the next state."""
        for variable, value in zip(own_variables(self._model), own, strict=True):
            variable.assign(value)
        return outputs, state

    def is_new(self, group: Group) -> bool:
        """Return whether a group has shapes that no group had before, so that running it compiles."""
        key = jax.tree.structure(group), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(group))
        return not (key in self._seen or self._seen.add(key))  # type: ignore[func-returns-value]

    def stateless(self, state: Any, own: Any, data: Nest, examples: jax.Array) -> tuple[Any, Any, Any]:
        """Return the outputs of one step, the next state and the next values of `own_variables`."""
        model = self._model
        variables = own_variables(model)
        # The devices that the model is on now, after its layout may have been chosen.
        devices = None if self._is_lowered else TracedDevices.of(distribution_of(model))
        with (
            contextlib.nullcontext() if devices is None else exact_operations(devices, replaces=True),
            keras.StatelessScope(state_mapping=list(zip(variables, own, strict=True))) as scope,
            batch_context(data, examples),
            exclude_padding(model._flatten_layers()),
        ):
            outputs, state = self._step(state, data)
        return outputs, state, [scope.get_current_value(variable) for variable in variables]

    def _compile(self, state: Any, own: Any) -> tuple[Any, Any]:
        everywhere = replicated(distribution_of(self._model))
        shardings = None
        if everywhere is not None:
            shardings = (everywhere, *jax.tree.map(lambda array: array.sharding, (state, own)))
        # A separate function for each loop: JAX caches compiled programs by function.
        step = jax.jit(functools.partial(self.stateless))
        options = {"donate_argnums": (0, 1), "out_shardings": shardings}
        many = _collected if self._collects else _last
        return jax.jit(functools.partial(step), **options), jax.jit(functools.partial(many, step), **options)

    def _one_by_one(self, state: Any, own: Any, group: Group) -> tuple[Any, Any, Any]:
        if group.steps is None:
            return self.stateless(state, own, group.data, group.examples)
        every = []
        for i in range(int(group.steps)):
            data, examples = jax.tree.map(lambda leaf, i=i: leaf[i], (group.data, group.examples))
            outputs, state, own = self.stateless(state, own, data, examples)
            every.append(outputs)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *every) if self._collects else every[-1], state, own


def own_variables(model: keras.Model) -> list[jax.Array]:
    """Return the variables that a step carries in addition to those in Keras's state.

    They are those of a `TPUModel`'s `StepState`, and those of every optimizer that is an attribute of the model and
    not the one it was compiled with.
    """
    state, compiled = step_state_of(model), getattr(model, "optimizer", None)
    optimizers = [optimizer for optimizer in optimizers_of(model) if optimizer is not compiled]
    others = [variable for optimizer in optimizers for variable in optimizer.variables]
    return [*([] if state is None else step_variables(state)), *others]


def _last(step: Any, state: Any, own: Any, data: Nest, examples: jax.Array, steps: Any) -> tuple[Any, Any, Any]:
    """Run a step over the first `steps` batches of a stack; return what the last one returned."""

    def batch(i: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), (data, examples))

    def go_on(carry: Any) -> Any:
        return carry[0] < steps

    def once(carry: Any) -> Any:
        i, _, state, own = carry
        return i + 1, *_as_before((outputs, state, own), step(state, own, *batch(i)))

    outputs, *_ = jax.eval_shape(step, state, own, *jax.eval_shape(batch, 0))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), outputs)
    _, *results = jax.lax.while_loop(go_on, once, (jnp.int32(0), nothing, state, own))
    outputs, state, own = results
    return outputs, state, own


def _collected(step: Any, state: Any, own: Any, data: Nest, examples: jax.Array, steps: Any) -> tuple[Any, Any, Any]:
    """Run a step over a stack; return what all the steps returned, along a new first dimension."""

    def once(carry: Any, batch: tuple[Nest, ...]) -> Any:
        outputs, *after = step(*carry, *batch)
        return tuple(_as_before(carry, after)), outputs

    (state, own), outputs = jax.lax.scan(once, (state, own), (data, examples))
    return outputs, state, own


def _as_before(before: Any, after: Any) -> Any:
    """Return `after` in the dtypes of `before`: a loop cannot change them."""
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), tuple(after), tuple(before))


def make_function(model: Model, step: Step, *, trains: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function that Keras calls with a state and an iterator; it returns logs and the next state."""
    loop = CompiledLoop(model, step)

    def function(state: Any, iterator: Any) -> tuple[Any, Any]:
        groups, schedule = _groups(model, next(iterator)), model._kte.schedule
        if schedule is not None:
            schedule.completed_steps = steps_of(groups)
        for group in groups:
            steps, arguments = loop.call(state, group)
            outputs, state = loop.keep(*steps(*arguments))
        return outputs, state

    def learning(state: Any, iterator: Any) -> tuple[Any, Any]:
        schedule = model._kte.schedule
        return schedule.run_train(
            model, lambda: _groups(model, next(iterator)), lambda groups: function(state, iter([groups])), loop.is_new
        )

    return learning if trains and model._kte.schedule is not None else function


def make_predict_function(model: Model) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function that Keras calls with a state and an iterator; it returns outputs and the next state."""

    def step(state: Any, data: Nest) -> tuple[Any, Any]:
        outputs, non_trainable = model.predict_step(state, data)
        return outputs, (state[0], non_trainable)

    loop = CompiledLoop(model, step, collects=True)

    def function(state: Any, iterator: Any) -> tuple[Any, Any]:
        outputs: list[Any] = []
        before = state
        for group in _groups(model, next(iterator)):
            steps, arguments = loop.call(state, group)
            some, state = loop.keep(*steps(*arguments))
            outputs += _of_examples(some, group)
        together = jax.tree.map(lambda *parts: np.concatenate(parts) if len(parts) > 1 else parts[0], *outputs)
        return together, state_after_predict(model, before, state)

    return function


def _groups(model: Model, item: Any) -> list[Group]:
    """Return the groups of an execution; `*_on_batch` and Keras's own adapters give a single batch."""
    if isinstance(item, list) and item and isinstance(item[0], Group):
        return item
    return batches_of(model, fills_up=False).groups([host_batch(item)])


def _of_examples(outputs: jax.Array, group: Group) -> list[jax.Array]:
    """Return the outputs of each batch of a group, without padded rows."""
    if group.steps is None:
        return [_first(outputs, group, group.examples)]
    steps = range(int(group.steps))
    if group.examples is None:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], outputs) for i in steps]
    counts = np.asarray(group.examples)
    return [
        _first(jax.tree.map(lambda leaf, i=i: leaf[i], outputs), group, counts[i], rows_of=lambda leaf: leaf.shape[1])
        for i in steps
    ]


def _first(outputs: jax.Array, group: Group, examples: jax.Array, rows_of: Any = len) -> Any:
    """Return the output rows that belong to examples, one or several for each; leave any other output as it is."""
    if examples is None:
        return outputs
    rows = rows_of(jax.tree.leaves(group.data)[0])

    def first(leaf: Any) -> Any:
        return leaf[: int(examples) * (len(leaf) // rows)] if len(leaf) % rows == 0 else leaf

    return jax.tree.map(first, outputs)


# Bytes; all batches of an execution are in device memory together.
MOST_BYTES = 2**28


class GroupExecutionSchedule(ExecutionSchedule):
    """An `ExecutionSchedule` for functions that take groups of batches."""

    def run_train(self, model: Model, next_groups: Callable[[], Any], run: Callable[[Any], Any], is_new: Any) -> Any:
        """Run an execution of training, and learn from its time unless it included a compilation."""
        results: list[Any] = []

        def timed() -> bool:
            groups = next_groups()
            self.completed_steps = steps_of(groups)
            compiles = any([is_new(group) for group in groups])
            results.append(jax.block_until_ready(run(groups)))
            self.tuner.most_steps = _that_fit(groups)
            return compiles

        if self.held or self.tuner.settled:
            groups = next_groups()
            self.completed_steps = steps_of(groups)
            return run(groups)
        self.time(model, timed)
        return results[0]


def steps_of(groups: Any) -> int:
    """Return the number of batches in groups."""
    return sum(1 if group.steps is None else int(group.steps) for group in groups)


def _that_fit(groups: Any) -> int:
    size = sum(leaf.nbytes for group in groups for leaf in jax.tree.leaves(group.data))
    return max(1, min(StepsTuner.most_steps, MOST_BYTES * steps_of(groups) // max(1, size)))
