"""Let a step record losses and gradients that are not finite, while a callback asks for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Array, Layer, Model, Nest, Tensor, Variable
from keras_tpu_ext._runtime.common.values import FirstCall, NotFinite, Overflow
from keras_tpu_ext._runtime.compat import CALLED, dtype_of, new_variable, ops, path_of, tree
from keras_tpu_ext._runtime.training.progress import train_steps
from keras_tpu_ext._runtime.training.step_state import Unsaved, step_state_of


def watch_overflow(model: Model) -> Callable[[], list[Overflow]] | None:
    """Let the step record non-finite gradients; return a function that reads them, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: OverflowWatch = model._kte.overflow_watch(model.trainable_variables, train_steps(model) or 0)
    _set(model, overflow_watch=watch)
    return watch.read


def watch_not_finite(model: Model) -> Callable[[], NotFinite] | None:
    """Let the step record the first loss that is not finite; return what reads it, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: NotFiniteWatch = model._kte.not_finite_watch()
        if model.trainable_variables:
            watch.make_for(model.trainable_variables)
    _set(model, not_finite_watch=watch)
    return lambda: watch.read()._replace(rate_finite=_has_finite_rate(model))


def unwatch(model: Model) -> None:
    """Stop recording gradients and losses."""
    state = step_state_of(model)
    if state is not None and (state.overflow_watch is not None or state.not_finite_watch is not None):
        _set(model, overflow_watch=None, not_finite_watch=None)


def not_finite_weights(model: Model) -> list[str]:
    """Return the paths of the weights of `model` that have an inf or a NaN; waits for the device."""
    weights = [weight for weight in model.weights if "float" in dtype_of(weight)]
    finite: list[Any] = [ops.all(ops.isfinite(ops.convert_to_tensor(weight))) for weight in weights]
    return [
        path_of(weight)
        for weight, one in zip(weights, finite, strict=True)
        if not np.asarray(ops.convert_to_numpy(one))
    ]


def _has_finite_rate(model: Model) -> bool:
    rate = getattr(model.optimizer, "learning_rate", 0.0)
    return callable(rate) or bool(np.isfinite(ops.convert_to_numpy(rate)))


def _set(model: Model, **watches: object) -> None:
    model._kte.state.__dict__.update(watches)  # not tracked by Keras: they are not state to save
    model.make_train_function(force=True)  # the step is traced again


class OverflowWatch(Unsaved):
    """For every variable, and every replica if known, the last update whose gradient was not finite.

    Args:
        variables: The trainable variables of the model.
        steps: The number of steps that its optimizer has taken.
    """

    def __init__(self, variables: Sequence[Variable], steps: int) -> None:
        super().__init__(name="overflow_watch", dtype="float32")
        self.built = True
        # Number of updates since then, including those of skipped steps.
        self.num_updates: Variable = new_variable(0, "int32", "num_updates")
        self._seen = 0
        self._steps_before = steps

    def skipped(self, steps: int) -> int:
        """Return the number of skipped updates, given the number of steps that the optimizer has taken."""
        return int(ops.convert_to_numpy(self.num_updates)) - (steps - self._steps_before)

    def read(self) -> list[Overflow]:
        """Return the last overflow of each variable and replica since the last call; all processes must call it."""
        found = []
        for paths, replica, updates in self._notes():
            for update in sorted({int(number) for number in updates if number > self._seen}):
                those = tuple(path for path, number in zip(paths, updates, strict=True) if number == update)
                found.append(Overflow(update, replica, those, len(paths)))
        self._seen = int(ops.convert_to_numpy(self.num_updates))
        return sorted(found)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        """Return variables' paths, a replica or `None`, and for each path the number of its last overflow."""
        raise NotImplementedError


_NUMBERS = 5  # of a `_first_call`
_SMALL = 4096  # numbers of a variable that costs nearly nothing to add up


class _Call(NamedTuple):
    """A call of a layer while a step is traced."""

    layer: Layer
    inputs: list[Tensor]
    outputs: list[Tensor]


class NotFiniteWatch(Unsaved):
    """The first step whose loss was not finite; each framework has a subclass.

    Only that step computes which weights were not finite when it began and, by a second forward pass, which layer was
    the first with such an output: nothing of it is done in any other. Every step keeps the sums of the small
    variables after its update, to tell whether that left them finite: where a gradient is not, those of the biases
    mostly are not.
    """

    per_replica = False  # whether each replica has its own records
    paths: list[str]  # of the trainable variables
    small: list[int]  # a few small ones of them
    calls: list[tuple[str, str, str, str]] | None  # path, class, policy and dtype; `None` if no call is recorded

    def __init__(self) -> None:
        super().__init__(name="not_finite_watch", dtype="float32")
        self.built = True
        self.__dict__.update(paths=[], small=[], calls=None)  # not tracked by Keras

    def make_for(self, variables: Sequence[Variable]) -> None:
        """Make the records for a model with these trainable variables, once."""
        if self.paths:
            return
        paths, small = [], []
        for i, variable in enumerate(variables):
            paths.append(path_of(variable))
            small += [i] if math.prod(variable.shape) <= _SMALL else []
        # What is not finite in a backward pass reaches the first layers.
        self.__dict__.update(paths=paths, small=[*small[:2], *small[2:][-2:]])
        self.num_steps = self._new("num_steps", [1], "int32")
        self.sums = self._new("sums", [max(1, len(self.small))])  # of the small variables after the last step
        # The number of the first such step, 0 if there is none, and for each variable whether it was not finite.
        self.weights_then = self._new("weights_then", [1 + len(paths)], "int32")
        self.sums_then = self._new("sums_then", [max(1, len(self.small))])  # of the step before
        self.first_call = self._new("first_call", [_NUMBERS])

    def note(
        self,
        loss: Tensor,
        weights: Sequence[Tensor],
        batch: Nest,
        forward: Callable[[], object] | None,
    ) -> None:
        """Record a step before its update; `forward` makes a second forward pass, if that is possible."""
        self.__dict__["calls"] = None if forward is None else []
        self.num_steps.assign_add(ops.ones([1], "int32"))
        records = [self.weights_then, self.sums_then, self.first_call]
        number, sums = ops.convert_to_tensor(self.num_steps), ops.convert_to_tensor(self.sums)

        def first() -> list[Tensor]:
            bad = ops.concatenate([number, self._not_finite(weights)], 0)
            return [bad, sums, self._first_call(batch, forward)]

        def values() -> list[Tensor]:
            before = [ops.convert_to_tensor(record) for record in records]
            return list(ops.cond(ops.equal(before[0][0], 0), first, lambda: before))

        self.assign_if(ops.logical_not(self.all_finite(loss)), records, values)

    def note_update(self, weights: Sequence[Tensor]) -> None:
        """Record the weights after an update."""
        if self.small:
            self.sums.assign(ops.stack([ops.sum(ops.cast(weights[i], "float32")) for i in self.small]))

    def read(self) -> NotFinite:
        """Return what is recorded; all processes must call it."""
        if not self.paths:
            return NotFinite(0)
        steps, then = int(self.values(self.num_steps)[0][0]), np.stack(self.values(self.weights_then))
        if not then[:, 0].any():
            return NotFinite(steps)
        first = min(flags[0] for flags in then if flags[0])
        replicas = [i for i, flags in enumerate(then) if flags[0] == first]
        bad_sums = ~np.isfinite(np.stack(self.values(self.sums_then))[replicas]).all(axis=0)
        weights = tuple(path for path, bad in zip(self.paths, then[replicas].max(axis=0)[1:], strict=True) if bad)
        updated = tuple(self.paths[i] for i, bad in zip(self.small, bad_sums, strict=False) if bad)
        calls = self.values(self.first_call)
        number, batch_finite, *numbers = min((calls[i] for i in replicas), key=lambda call: call[1])
        call = FirstCall(*self.calls[int(number) - 1], *map(float, numbers)) if self.calls and number else None
        return NotFinite(
            steps,
            int(first) - 1,
            len(self.paths),
            weights,
            updated,
            self.calls is not None,
            call,
            bool(batch_finite),
        )

    def all_finite(self, value: Tensor) -> Tensor:
        """Return whether all numbers of a tensor are finite."""
        return ops.all(ops.isfinite(value))

    def values(self, variable: Variable) -> Sequence[Array]:
        """Return the values of a record that the replicas have."""
        raise NotImplementedError

    def assign_if(
        self, condition: Tensor, variables: Sequence[Variable], values: Callable[[], Sequence[Tensor]]
    ) -> None:
        """Assign the values to the variables if the condition holds, in a step."""
        raise NotImplementedError

    def trace(self) -> object:
        """Return what is being traced: tensors of an inner trace, of a loop for instance, do not leave it."""
        raise NotImplementedError

    def _new(self, name: str, shape: list[int], dtype: str = "float32") -> Variable:
        return new_variable(ops.zeros(shape, dtype), dtype, name, per_replica=self.per_replica)

    def _not_finite(self, values: Sequence[Tensor]) -> Tensor:
        finite = [self.all_finite(value) for value in values]
        return ops.cast(ops.logical_not(ops.stack(finite)), "int32")

    def _first_call(self, batch: Nest, forward: Callable[[], object] | None) -> Tensor:
        """Return the number of the first call that is not finite, whether the batch is, and what `FirstCall` has."""
        calls: list[_Call] = []
        here = self.trace()

        # The `__call__` of operations, to which that of layers leads.
        def recording(call: Callable[..., Nest]) -> Callable[..., Nest]:
            @functools.wraps(call)
            def recorded(layer: Layer, *args: Nest, **kwargs: Nest) -> Nest:
                outputs = call(layer, *args, **kwargs)
                if self.trace() == here and _floats(outputs):
                    calls.append(_Call(layer, _floats((args, kwargs)), _floats(outputs)))
                return outputs

            return recorded

        if forward is not None:
            with patched([(*CALLED, recording)]):  # `__call__` of each layer
                forward()
            self.__dict__["calls"] = [_described(call) for call in calls]
        batch_finite = self._are_finite(_floats(batch))
        found = ops.stack([0.0, batch_finite, 0.0, 0.0, 0.0])
        for number, (_, inputs, outputs) in reversed(list(enumerate(calls, 1))):
            largest = [_largest(outputs, ops.equal), _largest(outputs), _largest(inputs)]
            numbers = ops.stack([float(number), batch_finite, *largest])
            found = ops.where(ops.equal(self._are_finite(outputs), 1.0), found, numbers)
        return found

    def _are_finite(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return 1.0 if all numbers are finite, else 0.0."""
        finite = [self.all_finite(tensor) for tensor in tensors] or [ops.convert_to_tensor(True)]
        return ops.cast(ops.all(ops.stack(finite)), "float32")


def _floats(values: Nest) -> list[Tensor]:
    """Return the tensors of floating-point numbers among values."""
    leaves = [leaf for leaf in tree.flatten(values) if hasattr(leaf, "dtype") and hasattr(leaf, "shape")]
    return [leaf for leaf in leaves if "float" in str(leaf.dtype) and 0 not in tuple(leaf.shape)]


def _largest(tensors: Sequence[Tensor], counts: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """Return the largest magnitude among the finite numbers; with `ops.equal`, among all but NaNs."""
    found = [ops.convert_to_tensor(0.0)]
    for tensor in tensors:
        size = ops.abs(ops.cast(tensor, "float32"))
        counted = ops.isfinite(size) if counts is None else counts(size, size)
        found.append(ops.max(ops.where(counted, size, ops.zeros_like(size))))
    return ops.max(ops.stack(found))


def _described(call: _Call) -> tuple[str, str, str, str]:
    layer = call.layer
    policy = getattr(getattr(layer, "dtype_policy", None), "name", "")
    return str(getattr(layer, "path", None) or layer.name), type(layer).__name__, policy, dtype_of(call.outputs[0])
