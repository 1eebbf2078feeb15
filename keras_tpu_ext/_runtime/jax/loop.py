"""How `fit`, `evaluate` and `predict` run steps on JAX: many steps a call, in one compiled loop, nothing recompiled.

Keras unrolls `steps_per_execution` in Python, one dispatch a step (up to 3.15; keras#23527 is its own loop). Here a
loop runs on the device, and its number of steps is an argument, so that a shorter last execution is no other program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.jax.batch import batch_context
from keras_tpu_ext._runtime.jax.batch_statistics import exclude_padding
from keras_tpu_ext._runtime.jax.batches import Group
from keras_tpu_ext._runtime.jax.scope import distribution_of
from keras_tpu_ext._runtime.jax.sharding import replicated

# From a state and a batch to what the step returns and the next state.
Step = Callable[[Any, Any], tuple[Any, Any]]


class Execution:
    """Runs a step over groups of batches; what Keras calls a train, test or predict function is made of it.

    Args:
        model: The model; its `run_eagerly` and `jit_compile` are honoured.
        step: The step.
        collects: Whether what all the steps return is wanted, and not what the last one does.
    """

    def __init__(self, model: Any, step: Step, *, collects: bool = False) -> None:
        self._model = model
        self._step = step
        self._collects = collects
        self._compiled: tuple[Any, Any] | None = None
        self._seen: set[Any] = set()

    def run(self, state: Any, group: Group) -> tuple[Any, Any]:
        """Return what the steps over a group return, and the next state; the old one is used up."""
        variables = own_variables(self._model)
        own = [variable.value for variable in variables]
        if self._model.run_eagerly or not self._model.jit_compile:
            outputs, state, own = self._one_by_one(state, own, group)
        else:
            if self._compiled is None:
                self._compiled = self._compile(state, own)
            one, many = self._compiled
            arguments = (state, own, group.data, group.examples)
            outputs, state, own = one(*arguments) if group.steps is None else many(*arguments, group.steps)
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)
        return outputs, state

    def is_new(self, group: Group) -> bool:
        """Return whether a group has shapes that no group had before, and so is compiled when it is run."""
        key = jax.tree.structure(group), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(group))
        return not (key in self._seen or self._seen.add(key))  # type: ignore[func-returns-value]

    def stateless(self, state: Any, own: Any, data: Any, examples: Any) -> tuple[Any, Any, Any]:
        """Return the outputs of one step, the next state and the next values of what the step remembers."""
        variables = own_variables(self._model)
        mapping = list(zip(variables, own, strict=True))
        layers = self._model._flatten_layers()
        with (
            keras.StatelessScope(state_mapping=mapping) as scope,
            batch_context(data, examples),
            exclude_padding(layers),
        ):
            outputs, state = self._step(state, data)
        return outputs, state, [scope.get_current_value(variable) for variable in variables]

    def _compile(self, state: Any, own: Any) -> tuple[Any, Any]:
        everywhere = replicated(distribution_of(self._model))
        shardings = None
        if everywhere is not None:
            shardings = (everywhere, *jax.tree.map(lambda array: array.sharding, (state, own)))
        # A function of its own for each model: JAX keeps what it compiled by function.
        step = jax.jit(lambda *arguments: self.stateless(*arguments))
        options = {"donate_argnums": (0, 1), "out_shardings": shardings}
        one = jax.jit(lambda *arguments: step(*arguments), **options)
        many = _collected if self._collects else _last
        return one, jax.jit(lambda *arguments: many(step, *arguments), **options)

    def _one_by_one(self, state: Any, own: Any, group: Group) -> tuple[Any, Any, Any]:
        if group.steps is None:
            return self.stateless(state, own, group.data, group.examples)
        every = []
        for i in range(int(group.steps)):
            data, examples = jax.tree.map(lambda leaf, i=i: leaf[i], (group.data, group.examples))
            outputs, state, own = self.stateless(state, own, data, examples)
            every.append(outputs)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *every) if self._collects else every[-1], state, own


def own_variables(model: Any) -> list[Any]:
    """Return the variables that a step carries beside those in Keras's state.

    They are what a `TPUModel` remembers of its steps, and the variables of every optimizer that is an attribute of
    the model and not the one it was compiled with.
    """
    attributes = vars(model)
    state, compiled = attributes.get("_step_state"), getattr(model, "optimizer", None)
    optimizers = [value for value in attributes.values() if isinstance(value, keras.optimizers.Optimizer)]
    others = [variable for optimizer in optimizers if optimizer is not compiled for variable in optimizer.variables]
    return [*([] if state is None else state.all_variables()), *others]


def _last(step: Any, state: Any, own: Any, data: Any, examples: Any, steps: Any) -> tuple[Any, Any, Any]:
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


def _collected(step: Any, state: Any, own: Any, data: Any, examples: Any, steps: Any) -> tuple[Any, Any, Any]:
    """Run a step over a stack; return what all the steps returned, along a new first dimension."""

    def once(carry: Any, batch: Any) -> Any:
        outputs, *after = step(*carry, *batch)
        return tuple(_as_before(carry, after)), outputs

    (state, own), outputs = jax.lax.scan(once, (state, own), (data, examples))
    return outputs, state, own


def _as_before(before: Any, after: Any) -> Any:
    """Return `after` in the dtypes of `before`: a loop does not change them."""
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), tuple(after), tuple(before))
