"""The first loss that is not finite, and what made it so, which a step records while a callback asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.protocols import FirstCall, NotFinite
from keras_tpu_ext._runtime.common.types import Array, Layer, Model, Nest, Tensor, Variable
from keras_tpu_ext._runtime.compat import CALLED, dtype_of, keras, new_variable, ops, path_of, tree
from keras_tpu_ext._runtime.training.step_state import step_state_of

_NUMBERS = 6  # of a `_first_call`


class _Call(NamedTuple):
    """A call of a layer while a step is traced."""

    layer: Layer
    inputs: list[Tensor]
    outputs: list[Tensor]


class NotFiniteWatch(keras.layers.Layer):
    """The first step with a loss, or an update, that is not finite; then nothing is recorded any more.

    Every step checks its loss, its gradients and its updated weights. Only one whose loss is not finite computes
    which weights were not when it began and, by a second forward pass, which layer was the first with such an
    output. Each framework has a subclass.
    """

    per_replica = False  # whether each replica has its own records
    paths: list[str]  # of the trainable variables
    calls: list[tuple[str, str, str, str]] | None  # path, class, policy and dtype; `None` if no call is recorded

    def __init__(self) -> None:
        super().__init__(name="not_finite_watch", dtype="float32")
        self.built = True
        # Not tracked by Keras.
        self.__dict__.update(paths=[], calls=None)

    def make_for(self, variables: Sequence[Variable]) -> None:
        """Make the records for a model with these trainable variables, once."""
        if self.paths:
            return
        # The number of steps; the number of the first such step, 0 if there is none; and for each variable whether in
        # that step its value before the update, its gradient, and its value after the update were not finite.
        zeros = ops.zeros([2 + 3 * len(variables)], "int32")
        self.flags: Variable = new_variable(zeros, "int32", "flags", per_replica=self.per_replica)
        zeros = ops.zeros([_NUMBERS], "float32")
        self.first_call: Variable = new_variable(zeros, "float32", "first_call", per_replica=self.per_replica)
        self.__dict__["paths"] = [path_of(variable) for variable in variables]

    def note(
        self,
        loss: Tensor,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        batch: Nest,
        forward: Callable[[], object] | None,
    ) -> None:
        """Record a step before its update; `forward` makes a second forward pass, if that is possible."""
        flags, call = ops.convert_to_tensor(self.flags), ops.convert_to_tensor(self.first_call)
        step, first, (begin, bad, after) = flags[0] + 1, flags[1], self._parts(flags)
        self.__dict__["calls"] = None if forward is None else []

        def look() -> tuple[Tensor, Tensor]:
            return self._not_finite(weights), self._first_call(batch, forward)

        is_open = ops.equal(first, 0)
        is_first = ops.logical_and(is_open, ops.logical_not(self.all_finite(loss)))
        begin, call = ops.cond(is_first, look, lambda: (begin, call))
        bad = ops.where(is_open, self._not_finite(gradients), bad)
        head = ops.stack([step, ops.where(is_first, step, first)])
        self.flags.assign(ops.concatenate([head, begin, bad, after], 0))
        self.first_call.assign(call)

    def note_update(self, weights: Sequence[Tensor]) -> None:
        """Record a step after its update."""
        flags = ops.convert_to_tensor(self.flags)
        *parts, after = self._parts(flags)
        step, first = flags[0], flags[1]
        after = ops.where(ops.equal(first, 0), self._not_finite(weights), after)
        is_first = ops.logical_and(ops.equal(first, 0), ops.equal(ops.max(after), 1))
        head = ops.stack([step, ops.where(is_first, step, first)])
        self.flags.assign(ops.concatenate([head, *parts, after], 0))

    def read(self) -> NotFinite:
        """Return what is recorded; all processes must call it."""
        if not self.paths:
            return NotFinite(0)
        every = np.stack(self.values(self.flags))
        if not every[:, 1].any():
            return NotFinite(int(every[0, 0]))
        earliest = min(flags[1] for flags in every if flags[1])
        # Where one replica's loss was not finite, the others only saw what the update of all made of it.
        only_update = [self._parts(flags)[2].any() for flags in every]
        same = [i for i, flags in enumerate(every) if flags[1] == earliest]
        same = [i for i in same if not only_update[i]] or same
        weights, gradients, updated = map(self._named, self._parts(every[same].max(axis=0)))
        known = NotFinite(int(every[0, 0]), int(earliest) - 1, len(self.paths), weights, gradients, updated)
        if known.updated:
            return known
        calls = self.values(self.first_call)
        number, batch_finite, *numbers = min((calls[i] for i in same), key=lambda call: call[1])
        call = FirstCall(*self.calls[int(number) - 1], *map(float, numbers)) if self.calls and number else None
        return known._replace(looked=self.calls is not None, call=call, batch_finite=bool(batch_finite))

    def save_own_variables(self, store: dict[str, object]) -> None:
        """Save nothing: records are no state of the model."""

    def load_own_variables(self, store: dict[str, object]) -> None:
        """Load nothing."""

    def all_finite(self, value: Tensor) -> Tensor:
        """Return whether all numbers of a tensor are finite."""
        return ops.all(ops.isfinite(value))

    def values(self, variable: Variable) -> Sequence[Array]:
        """Return the values of a record that the replicas have."""
        raise NotImplementedError

    def trace(self) -> object:
        """Return what is being traced: tensors of an inner trace, of a loop for instance, do not leave it."""
        raise NotImplementedError

    def _named(self, bad: Array) -> tuple[str, ...]:
        return tuple(path for path, one in zip(self.paths, bad, strict=True) if one)

    def _parts(self, flags: Any) -> list[Any]:
        count = len(self.paths)
        return [flags[2 + i * count : 2 + (i + 1) * count] for i in range(3)]

    def _not_finite(self, values: Sequence[Tensor | None]) -> Tensor:
        finite = [ops.convert_to_tensor(True) if value is None else self.all_finite(value) for value in values]
        return ops.cast(ops.logical_not(ops.stack(finite)), "int32")

    def _first_call(self, batch: Nest, forward: Callable[[], object] | None) -> Tensor:
        """Return the number of the first call that is not finite, whether the batch is, and what `FirstCall` has."""
        calls: list[_Call] = []
        here = self.trace()

        def recording(call: Callable[..., Nest]) -> Callable[..., Nest]:
            @functools.wraps(call)
            def recorded(layer: Layer, *args: Nest, **kwargs: Nest) -> Nest:
                outputs = call(layer, *args, **kwargs)
                if self.trace() == here and _floats(outputs):
                    calls.append(_Call(layer, _floats((args, kwargs)), _floats(outputs)))
                return outputs

            return recorded

        if forward is not None:
            with patched([(*CALLED, recording)]):
                forward()
            self.__dict__["calls"] = [_described(call) for call in calls]
        batch_finite = self._are_finite(_floats(batch))
        found = ops.stack([0.0, batch_finite, 0.0, 0.0, 0.0, 0.0])
        for number, (_, inputs, outputs) in reversed(list(enumerate(calls, 1))):
            largest = [_largest(outputs, ops.equal), _largest(outputs), _largest(inputs)]
            numbers = ops.stack([float(number), batch_finite, *largest, self._are_finite(inputs)])
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


def watch_not_finite(model: Model) -> Callable[[], NotFinite] | None:
    """Let the step, which is traced again, record; return what reads the record, or `None` if it cannot."""
    if step_state_of(model) is None:
        return None
    with model._kte.own_scope():
        watch: NotFiniteWatch = model._kte.not_finite_watch()
        if model.trainable_variables:
            watch.make_for(model.trainable_variables)
    _set_watch(model, watch)
    return watch.read


def unwatch_not_finite(model: Model) -> None:
    """Stop recording."""
    state = step_state_of(model)
    if state is not None and state.not_finite_watch is not None:
        _set_watch(model, None)


def not_finite_weights(model: Model) -> list[str]:
    """Return the paths of the weights that have an inf or a NaN; waits for the device."""
    weights = [weight for weight in model.weights if "float" in dtype_of(weight)]
    finite: list[Any] = [ops.all(ops.isfinite(ops.convert_to_tensor(weight))) for weight in weights]
    return [
        path_of(weight)
        for weight, one in zip(weights, finite, strict=True)
        if not np.asarray(ops.convert_to_numpy(one))
    ]


def _set_watch(model: Model, watch: NotFiniteWatch | None) -> None:
    model._kte.state.__dict__["not_finite_watch"] = watch  # not tracked by Keras: it is not state to save
    model.make_train_function(force=True)
