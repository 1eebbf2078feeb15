"""One-pass mean and variance of a batch or of ghost batches, and the normalization, whose gradient takes two passes.

A normalization needs sums twice: of its inputs, and of gradients in the backward pass. Each kind of batch computes
both with the same methods, `local_sums`, `reduce_sums` and `channel_sums`, so the mathematics is written once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError

ops = _runtime.ops


class Moments(NamedTuple):
    """The moments of each ghost batch; tensors broadcast to the inputs."""

    mean: Any
    variance: Any  # the variance, without Bessel's correction
    count: Any  # number of values on all replicas together
    local_count: Any  # number of values on this replica
    weights: Any  # 1 for values that count and 0 for others; `None` if all count


def split_batch(inputs: Any, axis: int, ghost_batch_size: int | None) -> WholeBatch:
    """Return the whole batch, or the ghost batches that it is made of; `axis`, not negative, is that of channels."""
    if ghost_batch_size is None:
        return WholeBatch(inputs, axis)
    rows = ops.shape(inputs)[0]
    first, total = _runtime.batch.position_in_batch(rows)
    if isinstance(rows, int) and isinstance(total, int) and rows % ghost_batch_size == 0:
        return LocalGhostBatches(inputs, axis, ghost_batch_size)
    return GhostSegments(inputs, axis, ghost_batch_size, first, total)


def compute_moments(batch: WholeBatch, values: Any, weights: Any, shift: Any) -> Moments:
    """Return the moments of values of `view`, through which no gradient flows; `None` for weights that are all 1."""
    shift = ops.stop_gradient(shift)
    centered = ops.stop_gradient(ops.cast(values, shift.dtype)) - shift
    squares = ops.square(centered)
    if weights is None:
        local_count = batch.local_count(centered)
    else:
        weights = ops.cast(batch.view(weights), shift.dtype)
        centered, squares = weights * centered, weights * squares
        local_count = batch.local_sums(weights * ops.ones_like(centered))
    sums = [batch.local_sums(centered), batch.local_sums(squares), local_count]
    total, total_of_squares, count = batch.reduce_sums(sums)
    mean = _divide(total, count)
    variance = ops.maximum(_divide(total_of_squares, count) - ops.square(mean), 0.0)
    return Moments(mean + shift, variance, count, local_count, weights)


def normalize(batch: WholeBatch, values: Any, moments: Moments, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Return `values` normalized, scaled and shifted, in their dtype; the gradient includes that of the moments."""
    mean, inverse = moments.mean, ops.rsqrt(moments.variance + epsilon)

    @ops.custom_gradient
    def normalized(values: Any, gamma: Any, beta: Any, mean: Any, inverse: Any) -> Any:
        centered = ops.cast(values, mean.dtype) - mean
        outputs = ops.cast(centered * (inverse * gamma) + beta, values.dtype)

        def gradients(*args: Any, upstream: Any = None) -> tuple[Any, ...]:
            upstream = ops.cast(args[0] if upstream is None else upstream, mean.dtype)
            unscaled = (ops.cast(values, mean.dtype) - mean) * inverse
            sums = [batch.local_sums(upstream), batch.local_sums(upstream * unscaled)]
            of_beta, of_gamma = batch.reduce_sums(sums)
            through_moments = _divide(of_beta, moments.count) + unscaled * _divide(of_gamma, moments.count)
            if moments.weights is not None:
                through_moments = moments.weights * through_moments
            of_values = ops.cast(gamma * inverse * (upstream - through_moments), values.dtype)
            local_beta, local_gamma = (batch.broadcast_channels(batch.channel_sums(value)) for value in sums)
            of_values, local_gamma, local_beta = _differentiable_once(of_values, local_gamma, local_beta)
            return of_values, local_gamma, local_beta, ops.zeros_like(mean), ops.zeros_like(inverse)

        return outputs, gradients

    return normalized(values, gamma, beta, mean, inverse)


@ops.custom_gradient
def _differentiable_once(*gradients: Any) -> tuple[Any, Any]:
    """Return gradients that cannot be differentiated: the moments in them would be treated as constants."""

    def refuse(*args: Any, upstream: Any = None) -> Any:
        raise ArgumentError(
            "The gradient of kte.layers.BatchNormalization in training cannot be differentiated again, as a gradient "
            "penalty asks for. Write: keras.layers.BatchNormalization() in that model, or call it with training=False"
        )

    return gradients, refuse


def _divide(values: Any, count: Any) -> Any:
    """Return `values / count`, or 0 where `count` is 0."""
    return values / count if isinstance(count, float) else ops.divide_no_nan(values, count)


class WholeBatch:
    """All examples of the batch, on any number of replicas."""

    def __init__(self, inputs: Any, axis: int) -> None:
        self._axis, self._rank = axis, len(inputs.shape)
        self._axes = tuple(i for i in range(self._rank) if i != axis)

    def broadcast_channels(self, values: Any) -> Any:
        """Return one value for each channel in a shape that broadcasts to that of `view`."""
        return ops.reshape(values, [-1 if i == self._axis else 1 for i in range(self._rank)])

    def local_count(self, values: Any) -> Any:
        """Return the number of values in each of `local_sums`, where all count."""
        sizes = ops.shape(values)
        count = math.prod(sizes[i] for i in self._axes)
        return float(count) if isinstance(count, int) else ops.cast(count, values.dtype)

    def view(self, values: Any) -> Any:
        """Return `values` in the shape of the sums."""
        return values

    def unview(self, values: Any) -> Any:
        """Return values of `view` in the shape of the batch."""
        return values

    def local_sums(self, values: Any) -> Any:
        """Return the sum over this replica's values of each ghost batch, in a shape that broadcasts to `view`."""
        return ops.sum(values, axis=self._axes, keepdims=True)

    def reduce_sums(self, sums: list[Any]) -> list[Any]:
        """Return `local_sums` summed over all replicas, in shapes that broadcast to `view`."""
        return _runtime.batch.sum_over_replicas(sums)

    def channel_sums(self, sums: Any) -> Any:
        """Return `local_sums` summed over the ghost batches: one number for each channel."""
        return ops.reshape(ops.sum(sums, axis=0), (-1,))

    def average_moments(self, moments: Moments) -> list[Any]:
        """Return mean, variance and count (one, or of each channel), averaged over ghost batches by their counts."""
        values = moments.mean, moments.variance, moments.count
        return [value if isinstance(value, float) else ops.reshape(value, (-1,)) for value in values]


class _GhostBatches(WholeBatch):
    def average_moments(self, moments: Moments) -> list[Any]:
        values = (moments.mean, moments.variance, ops.ones_like(moments.mean))
        weighted = [moments.local_count * value for value in values]
        *sums, count = _runtime.batch.sum_over_replicas([self.channel_sums(value) for value in weighted])
        return [*(ops.divide_no_nan(value, count) for value in sums), count]


class LocalGhostBatches(_GhostBatches):
    """Ghost batches of one size, each on one replica: they are the first dimension, and their rows the second."""

    def __init__(self, inputs: Any, axis: int, size: int) -> None:
        super().__init__(inputs, axis)
        self._shape = (-1, *ops.shape(inputs)[1:])
        self._size = size
        self._axis, self._rank = axis + 1, self._rank + 1
        self._axes = tuple(i for i in range(1, self._rank) if i != self._axis)

    def view(self, values: Any) -> Any:
        if values.shape[0] == 1:  # the same weights for every row
            return ops.expand_dims(values, 0)
        return ops.reshape(values, (-1, self._size, *ops.shape(values)[1:]))

    def unview(self, values: Any) -> Any:
        return ops.reshape(values, self._shape)

    def reduce_sums(self, sums: list[Any]) -> list[Any]:
        return sums  # no other replica has a part of these ghost batches


class GhostSegments(_GhostBatches):
    """Ghost batches that lie on several replicas, or whose last one is smaller: each row has a segment id."""

    def __init__(self, inputs: Any, axis: int, size: int, first: Any, total: Any) -> None:
        super().__init__(inputs, axis)
        self._rows = ops.shape(inputs)[0]
        self._axes = tuple(i for i in range(1, self._rank) if i != axis)
        self._segment_ids = (first + ops.arange(self._rows, dtype="int32")) // size
        self._num_segments = math.ceil(total / size) if isinstance(total, int) else (total + size - 1) // size

    def local_count(self, values: Any) -> Any:
        return super().local_count(values) * ops.ones([self._rows, *[1] * (self._rank - 1)], values.dtype)

    def reduce_sums(self, sums: list[Any]) -> list[Any]:
        # For each row, the sum over the rows of its ghost batch.
        segments = [ops.segment_sum(values, self._segment_ids, self._num_segments) for values in sums]
        totals = _runtime.batch.sum_over_replicas(segments)
        return [ops.take(values, self._segment_ids, axis=0) for values in totals]
