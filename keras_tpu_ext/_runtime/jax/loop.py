"""How `fit`, `evaluate` and `predict` run steps on JAX: many steps per call, in one compiled loop, no recompilation.

Keras up to 3.15 unrolls `steps_per_execution` in Python, with one dispatch per step (keras#23527 is its own loop).
Here a loop runs on the device, and its number of steps is an argument, so a shorter last execution needs no other
program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat.keras3_jax import state_after_predict
from keras_tpu_ext._runtime.jax.batch import batch_context, exclude_padding
from keras_tpu_ext._runtime.jax.data_adapter import Group, batches_of, host_batch
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.scope import distribution_of, replicated
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext._runtime.jax.update import State, Values, own_variables
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule, StepsTuner

# Takes a state and a batch; returns the step's outputs and the next state.
Step = Callable[[State, Nest], tuple[Nest, State]]
# The outputs of a step, the next state and the next values of `own_variables`.
After = tuple[Nest, State, Values]
_Steps = Callable[..., After]
_MOST_BYTES = 2**28  # of all batches of an execution


class CompiledLoop:
    """Runs a step over groups of batches, as `run_eagerly` and `jit_compile` say.

    It returns the outputs of the last step or, if it `collects`, those of all steps.
    """

    def __init__(self, model: keras.Model, step: Step, *, collects: bool = False) -> None:
        self._model = model
        self._step = step
        self._collects = collects
        self._compiled: dict[object, tuple[_Steps, _Steps]] = {}  # by the variables there are: a watch has some
        self._seen: set[Any] = set()

    def call(self, state: State, group: Group) -> tuple[_Steps, tuple[Nest, ...]]:
        """Return what to call for the steps over a group, and its arguments, which are donated.

        It returns what `assign` takes. (It is not called here: its frames are in every traceback of a user's layer.)
        """
        own = [variable.value for variable in own_variables(self._model)]
        if self._model.run_eagerly or not self._model.jit_compile:
            return self._one_by_one, (state, own, group)
        return self.compiled(state, own, group)

    def compiled(self, state: State, own: Values, group: Group) -> tuple[Any, tuple[Nest, ...]]:
        """Return the compiled function for a group, and its arguments; all may be shapes, for `lowering.py`."""
        variables = jax.tree.structure((state, own))
        if variables not in self._compiled:
            self._compiled[variables] = self._compile(state, own)
        one, many = self._compiled[variables]
        arguments = (state, own, group.data, group.examples)
        return (one, arguments) if group.steps is None else (many, (*arguments, group.steps))

    def assign(self, outputs: Nest, state: State, own: Values) -> tuple[Nest, State]:
        """Assign the values of `own_variables`; return the outputs and the next state."""
        for variable, value in zip(own_variables(self._model), own, strict=True):
            variable.assign(value)
        return outputs, state

    def is_new(self, group: Group) -> bool:
        """Return whether a group has shapes that no group had before, so that running it compiles."""
        key = jax.tree.structure(group), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(group))
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _stateless(self) -> _Steps:
        # The devices that the model is on now, after its layout may have been chosen.
        devices = TracedDevices.of(distribution_of(self._model))
        return functools.partial(stateless, self._model, self._step, devices)

    def _compile(self, state: State, own: Values) -> tuple[_Steps, _Steps]:
        everywhere = replicated(distribution_of(self._model))
        one: dict[str, Any] = {"donate_argnums": (0, 1)}
        many = one
        if everywhere is not None:
            one["out_shardings"] = (everywhere, *jax.tree.map(lambda array: array.sharding, (state, own)))
            # Numbers too, for which JAX would choose one for devices that are there, and none for others.
            one["in_shardings"], many = (None, None, None, everywhere), {**one}
            many["in_shardings"] = (*one["in_shardings"], everywhere)
        # A separate function for each loop: JAX caches compiled programs by function.
        step = jax.jit(self._stateless())
        loop = functools.partial(_collected if self._collects else _last, step)
        return jax.jit(functools.partial(step), **one), jax.jit(loop, **many)

    def _one_by_one(self, state: State, own: Values, group: Group) -> After:
        step = self._stateless()
        if group.steps is None:
            return step(state, own, group.data, group.examples)
        every = []
        for i in range(int(group.steps)):
            data, examples = jax.tree.map(lambda leaf, i=i: leaf[i], (group.data, group.examples))
            outputs, state, own = step(state, own, data, examples)
            every.append(outputs)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *every) if self._collects else every[-1], state, own


def stateless(
    model: keras.Model,
    step: Step,
    devices: TracedDevices | None,
    state: State,
    own: Any,
    data: Nest,
    examples: jax.Array | None,
) -> After:
    """Return the outputs of one step, the next state and the next values of `own_variables`.

    It is traced for `devices`; with `None`, for those of a block around it.
    """
    variables = own_variables(model)
    with (
        contextlib.nullcontext() if devices is None else exact_operations(devices),
        keras.StatelessScope(state_mapping=list(zip(variables, own, strict=True))) as scope,
        batch_context(data, examples),
        exclude_padding(model._flatten_layers()),
        model._kte.operations(),
    ):
        outputs, state = step(state, data)
    return outputs, state, [scope.get_current_value(variable) for variable in variables]


def unshare(variables: Sequence[keras.Variable], running: Collection[int] = ()) -> None:
    """Give each variable an array of its own if anything else holds it too: a step donates it, which deletes it.

    After `fit` a variable and its moving average share one array, and after `target.assign(online)` two models do. In
    `running` are the ids of the arrays that Keras's running loop holds, too, and drops before the step.
    """
    alone = _references_of_one_variable()
    for variable in variables:
        array = variable.value
        if sys.getrefcount(array) > alone + (id(array) in running):
            variable.assign(array.copy())


@functools.cache
def _references_of_one_variable() -> int:
    array = keras.Variable("zeros", shape=(), trainable=False).value
    return sys.getrefcount(array) + 1  # that of the variable, which is gone


def _last(step: Any, state: State, own: Values, data: Nest, examples: jax.Array, steps: Any) -> After:
    """Run a step over the first `steps` batches of a stack; return what the last one returned."""

    def batch(i: Any) -> tuple[Nest, ...]:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), (data, examples))

    def once(i: jax.Array, carry: After) -> After:
        _, state, own = carry
        return _as_before(carry, step(state, own, *batch(i)))

    outputs, *_ = jax.eval_shape(step, state, own, *jax.eval_shape(batch, 0))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), outputs)
    return jax.lax.fori_loop(0, steps, once, (nothing, state, own))


def _collected(step: Any, state: State, own: Values, data: Nest, examples: jax.Array, steps: Any) -> After:
    """Run a step over a stack; return what all the steps returned, along a new first dimension.

    What comes after the first `steps` batches changes no state.
    """

    def once(carry: Any, numbered: tuple[jax.Array, tuple[Nest, ...]]) -> Any:
        i, batch = numbered
        outputs, *after = step(*carry, *batch)
        return jax.tree.map(functools.partial(jnp.where, i < steps), _as_before(carry, after), carry), outputs

    numbers = jnp.arange(jax.tree.leaves(data)[0].shape[0])
    (state, own), outputs = jax.lax.scan(once, (state, own), (numbers, (data, examples)))
    return outputs, state, own


def _as_before(before: Any, after: Any) -> Any:
    """Return `after` in the dtypes of `before`: a loop cannot change them."""
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), tuple(after), tuple(before))


def make_function(model: Model, loop: CompiledLoop, *, trains: bool) -> Callable[[Any, Any], tuple[Nest, State]]:
    """Return the function that Keras calls with a state and an iterator; it returns logs and the next state."""

    def function(state: State, iterator: Iterator[Nest]) -> tuple[Nest, State]:
        groups, schedule = _groups(model, next(iterator)), model._kte.schedule
        if schedule is not None:
            schedule.completed_steps = steps_of(groups)
        for group in groups:
            steps, arguments = loop.call(state, group)
            outputs, state = loop.assign(*steps(*arguments))
        return outputs, state

    def learning(state: State, iterator: Iterator[Nest]) -> tuple[Nest, State]:
        """Train, and learn from the time unless it included a compilation."""
        schedule: ExecutionSchedule = model._kte.schedule
        if schedule.held or schedule.tuner.settled:
            return function(state, iterator)
        results: list[tuple[Nest, State]] = []

        def timed() -> bool:
            groups = _groups(model, next(iterator))
            compiles = any([loop.is_new(group) for group in groups])
            results.append(jax.block_until_ready(function(state, iter([groups]))))
            size = sum(leaf.nbytes for group in groups for leaf in jax.tree.leaves(group.data))
            schedule.tuner.most_steps = most_steps(size / steps_of(groups))
            return compiles

        schedule.time(model, timed)
        return results[0]

    return learning if trains and model._kte.schedule is not None else function


def make_predict_function(model: Model, loop: CompiledLoop) -> Callable[[Any, Any], tuple[Nest, State]]:
    """Return the function that Keras calls with a state and an iterator; it returns outputs and the next state."""

    def function(state: State, iterator: Iterator[Nest]) -> tuple[Nest, State]:
        outputs: list[Any] = []
        before = state
        for group in _groups(model, next(iterator)):
            steps, arguments = loop.call(state, group)
            some, state = loop.assign(*steps(*arguments))
            outputs += _of_examples(some, group)
        together = jax.tree.map(lambda *parts: np.concatenate(parts) if len(parts) > 1 else parts[0], *outputs)
        return together, state_after_predict(model, before, state)

    return function


def _groups(model: Model, item: Nest) -> list[Group]:
    """Return the groups of an execution; `*_on_batch` and Keras's own adapters give a single batch."""
    if isinstance(item, list) and item and isinstance(item[0], Group):
        return item
    return batches_of(model, fills_up=False).groups([host_batch(item)])


def _of_examples(outputs: Nest, group: Group) -> list[Nest]:
    """Return the outputs of each batch of a group, without padded rows."""
    rows = jax.tree.leaves(group.data)[0].shape[0 if group.steps is None else 1]
    if group.steps is None:
        return [_first(outputs, group.examples, rows)]
    steps = range(int(group.steps))
    counts = [None] * len(steps) if group.examples is None else np.asarray(group.examples)
    return [_first(jax.tree.map(lambda leaf, i=i: leaf[i], outputs), counts[i], rows) for i in steps]


def _first(outputs: Nest, examples: Any, rows: int) -> Nest:
    """Return the output rows that belong to examples, one or several for each; leave any other output as it is."""

    def first(leaf: Any) -> jax.Array:
        return leaf[: int(examples) * (len(leaf) // rows)] if len(leaf) % rows == 0 else leaf

    return outputs if examples is None else jax.tree.map(first, outputs)


def steps_of(groups: Sequence[Group]) -> int:
    """Return the number of batches in groups."""
    return sum(1 if group.steps is None else int(group.steps) for group in groups)


def most_steps(batch_bytes: float) -> int:
    """Return how many batches of a size may be in an execution, which has all of them in device memory."""
    return max(1, min(StepsTuner.most_steps, int(_MOST_BYTES / max(1, batch_bytes))))
