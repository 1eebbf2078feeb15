"""From the gradients of one replica to updated weights: accumulate, sum, unscale, check, clip, apply.

The order matters. Sums over replicas come before anything nonlinear: the check for finiteness, whose result must be
the same on all replicas, and clipping, which the optimizer applies to the gradients that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Optimizer, Variable
from keras_tpu_ext._runtime.compat import COUNTS_SKIPPED_STEPS, new_variable, path_of
from keras_tpu_ext._runtime.tensorflow.replicas import (
    assign_replicated,
    assign_to_replicas,
    cross_replica_cond,
    sum_over_replicas,
    values_of_replicas,
    zeros_of_replicas,
)
from keras_tpu_ext._runtime.training.step_state import BaseGradientAccumulator, LossScaler
from keras_tpu_ext._runtime.training.watches import NotFiniteWatch, OverflowWatch

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
# Variables, each with its value before the step.
Snapshot: TypeAlias = "Sequence[tuple[Variable, tf.Tensor]]"


class ReplicatedLossScaler(LossScaler):
    """A `LossScaler` that replicas call, each with the same result."""

    def snapshot(self, variables: Sequence[Variable]) -> Snapshot:
        """Return the values of `variables` that a skipped step restores; nothing if no step is ever skipped."""
        return [(v, tf.identity(tf.convert_to_tensor(v))) for v in variables] if self else []

    def unscale(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Return the gradients of the unscaled loss, dense or in slices."""
        if not self:
            return gradients
        scale = tf.convert_to_tensor(self.scale)
        return [None if gradient is None else divide(gradient, scale) for gradient in gradients]

    def apply_or_skip(
        self,
        gradients: Sequence[Gradient],
        apply: Callable[[Sequence[Gradient]], None],
        count_skipped: Callable[[], None],
        restore: Snapshot,
    ) -> None:
        """Apply gradients that are summed over replicas and unscaled, if all are finite; else skip the step.

        That undoes the changes of the forward pass that are in `restore`.
        """
        if not self:
            apply(gradients)
            return
        finite = tf.reduce_all([_is_finite(g) for g in gradients if g is not None])

        def take(gradients: Sequence[Gradient], values: Sequence[tf.Tensor]) -> None:
            apply(gradients)

        def skip(gradients: Sequence[Gradient], values: Sequence[tf.Tensor]) -> None:
            count_skipped()
            for (variable, _), value in zip(restore, values, strict=True):
                assign_replicated(variable, value)

        cross_replica_cond(finite, take, skip, gradients, [value for _, value in restore])
        self._update(finite)

    def _assign(self, variable: Variable, value: tf.Tensor) -> None:
        assign_replicated(variable, value)


def accumulate_or_apply(
    model: Model,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    optimizer: Optimizer,
    weight: tf.Tensor,
    restore: Snapshot = (),
) -> None:
    """Take a step with one replica's gradients of the scaled loss, or add them to a window of batches.

    `weight` is that of the batch of all replicas in a window, and `restore` has what a skipped step undoes.
    """
    state = model._kte.state
    accumulator = state.accumulator(optimizer)
    model._kte.build_for(optimizer, variables)
    if state.overflow_watch is not None:
        state.overflow_watch.note(gradients, variables)
    if accumulator is None:
        _step(model, state.loss_scaler.unscale(sum_over_replicas(gradients)), variables, optimizer, restore)
        return
    accumulator.build_for(variables)
    # Unscaled at once: another optimizer's step may change the scale before this window is full.
    scaler = state.loss_scaler
    scale = tf.convert_to_tensor(scaler.scale) if scaler else 1.0
    accumulator.add(gradients, weight, tf.cast(weight, tf.float32) / scale)
    has_gradient = [gradient is not None for gradient in gradients]
    _flush_if(accumulator.is_full(), model, accumulator, has_gradient, optimizer)


def flush_window(model: Model, optimizer: Optimizer) -> None:
    """Take the step of a window left open at the end of an epoch; call it in a replica."""
    accumulator = model._kte.state.accumulator(optimizer)
    has_gradient = [True] * len(accumulator.targets)
    _flush_if(accumulator.has_batches(), model, accumulator, has_gradient, optimizer)


def _flush_if(
    condition: tf.Tensor,
    model: Model,
    accumulator: GradientAccumulator,
    has_gradient: list[bool],
    optimizer: Optimizer,
) -> None:
    def flush() -> None:
        sums, weight = accumulator.take()
        summed = sum_over_replicas([value if has else None for value, has in zip(sums, has_gradient, strict=True)])
        means = [
            None if value is None else tf.math.divide_no_nan(value, tf.cast(weight, value.dtype)) for value in summed
        ]
        _step(model, means, accumulator.targets, optimizer, ())

    cross_replica_cond(condition, flush, lambda: None)


def _step(
    model: Model,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    optimizer: Optimizer,
    restore: Snapshot,
) -> None:
    def apply(gradients: Sequence[Gradient]) -> None:
        model._kte.apply_gradients(optimizer, gradients, variables)

    def count_skipped() -> None:
        if COUNTS_SKIPPED_STEPS:
            assign_replicated(optimizer.iterations, tf.convert_to_tensor(optimizer.iterations) + 1)

    model._kte.state.loss_scaler.apply_or_skip(gradients, apply, count_skipped, restore)


def divide(gradient: tf.Tensor | tf.IndexedSlices, divisor: Any) -> tf.Tensor | tf.IndexedSlices:
    """Return a gradient, dense or in slices, divided by a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(divisor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(divisor, gradient.dtype)


def _is_finite(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))


class GradientAccumulator(BaseGradientAccumulator):
    """Sums of gradients over several batches on each replica, reduced over replicas once the window is full."""

    def _make_sums(self, variables: Sequence[Variable]) -> None:
        with tf.init_scope():
            self.position = new_variable(0, "int32", "position")
            self.weight = new_variable(0.0, "float32", "weight")
            self.sums = [
                new_variable(tf.zeros(variable.shape, variable.dtype), variable.dtype, f"sum_{i}", per_replica=True)
                for i, variable in enumerate(variables)
            ]

    def add(self, gradients: Sequence[tf.Tensor], weight: tf.Tensor, factor: tf.Tensor) -> None:
        """Add one batch with its `weight`; the `factor` of its gradients is also divided by the scale of the loss."""
        for total, gradient in zip(self.sums, gradients, strict=True):
            if gradient is not None:
                dense = tf.convert_to_tensor(gradient)
                total.assign_add(dense * tf.cast(factor, dense.dtype))
        assign_replicated(self.weight, tf.convert_to_tensor(self.weight) + tf.cast(weight, tf.float32))
        assign_replicated(self.position, tf.convert_to_tensor(self.position) + 1)

    def is_full(self) -> tf.Tensor:
        """Return whether the window has all its batches."""
        return tf.convert_to_tensor(self.position) >= self.steps

    def has_batches(self) -> tf.Tensor:
        """Return whether the window has any batch."""
        return tf.convert_to_tensor(self.position) > 0

    def take(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return this replica's sums and the weight of all its batches, and reset them."""
        sums = [tf.convert_to_tensor(total) for total in self.sums]
        weight = tf.convert_to_tensor(self.weight)
        for total in self.sums:
            total.assign(tf.zeros(total.shape, total.dtype))
        assign_replicated(self.weight, 0.0)
        assign_replicated(self.position, 0)
        return sums, weight

    def _of_replicas(self, total: Variable) -> np.ndarray:
        return values_of_replicas(total) if int(self.position.numpy()) else zeros_of_replicas(total)

    def _assign_to_replicas(self, total: Variable, sums: np.ndarray) -> None:
        assign_to_replicas(total, sums)  # on another number of replicas, the first one takes all


class ReplicatedNotFiniteWatch(NotFiniteWatch):
    """A `NotFiniteWatch` of each replica."""

    per_replica = True

    def make_for(self, variables: Sequence[Variable]) -> None:
        """Make the records, also while a step is traced."""
        with tf.init_scope():
            super().make_for(variables)

    def assign_if(
        self, condition: tf.Tensor, variables: Sequence[Variable], values: Callable[[], Sequence[tf.Tensor]]
    ) -> None:
        """Assign the values if the condition holds."""

        # Inlined, its operations would take their time in every step.
        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def assign() -> tf.Tensor:
            for variable, value in zip(variables, values(), strict=True):
                variable.assign(value)
            return tf.constant(0)

        tf.cond(condition, assign, lambda: tf.constant(0))

    def values(self, variable: Variable) -> Sequence[np.ndarray]:
        """Return the values of all replicas."""
        return list(values_of_replicas(variable))

    def trace(self) -> object:
        """Return the graph."""
        return tf.compat.v1.get_default_graph()


class ReplicatedOverflowWatch(OverflowWatch):
    """An `OverflowWatch` in which every replica records its own overflows."""

    def __init__(self, variables: Sequence[Variable], steps: int) -> None:
        super().__init__(variables, steps)
        self._groups: dict[tuple[int, ...], tuple[list[str], Variable]] = {}

    def note(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices | None], variables: Sequence[Variable]) -> None:
        """Record which of one replica's gradients are not finite; call it in a replica."""
        _, last = self._group(variables)
        number = tf.convert_to_tensor(self.num_updates) + 1
        bad = [
            tf.constant(False) if gradient is None else tf.logical_not(_is_finite(gradient)) for gradient in gradients
        ]
        last.assign(tf.where(tf.stack(bad), number, tf.convert_to_tensor(last)))
        assign_replicated(self.num_updates, number)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        groups = [(paths, values_of_replicas(last)) for paths, last in self._groups.values()]
        return [(paths, replica, list(updates)) for paths, every in groups for replica, updates in enumerate(every)]

    def _group(self, variables: Sequence[Variable]) -> tuple[list[str], Variable]:
        key = tuple(id(variable) for variable in variables)
        if key not in self._groups:
            with tf.init_scope():
                last = new_variable(tf.zeros([len(key)], tf.int32), "int32", "last_overflow", per_replica=True)
            self._groups[key] = ([path_of(variable) for variable in variables], last)
        return self._groups[key]
