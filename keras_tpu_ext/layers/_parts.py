"""Over which examples a batch normalisation takes its mean and variance, and how their sums come together.

A normalisation asks for sums twice: of its inputs, and of gradients on the way back. Each kind of part answers both
with the same three methods, so that the mathematics of the layer stands once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from keras_tpu_ext import _runtime

ops = _runtime.ops


class Moments(NamedTuple):
    """What a normalisation knows of each part of the batch; tensors broadcast to the inputs.

    Attributes:
        mean: The mean.
        variance: The variance, without Bessel's correction.
        count: Over how many values, on all replicas together.
        local_count: How many of them this replica has.
        weights: One for what counts and zero for what does not; `None` where all counts.
    """

    mean: Any
    variance: Any
    count: Any
    local_count: Any
    weights: Any


def parts_of(inputs: Any, axis: int, ghost_batch_size: int | None) -> WholeBatch:
    """Return the parts of the batch that are normalised by themselves.

    Args:
        inputs: Tensor whose first dimension is the batch, on TensorFlow this replica's share of it.
        axis: The axis of the channels, not negative.
        ghost_batch_size: Consecutive examples of the whole batch in a part, or `None` for one part.
    """
    if ghost_batch_size is None:
        return WholeBatch(inputs, axis)
    rows = ops.shape(inputs)[0]
    first, total = _runtime.batch.place_in_batch(rows)
    if isinstance(rows, int) and isinstance(total, int) and rows % ghost_batch_size == 0:
        return EqualParts(inputs, axis, ghost_batch_size)
    return UnevenParts(inputs, axis, ghost_batch_size, (first, rows, total))


class WholeBatch:
    """All examples of the batch, on however many replicas they are.

    Args:
        inputs: Tensor whose first dimension is the batch.
        axis: The axis of the channels.
    """

    def __init__(self, inputs: Any, axis: int) -> None:
        self._axis, self._rank = axis, len(inputs.shape)
        self._axes = tuple(i for i in range(self._rank) if i != axis)

    def of_channels(self, values: Any) -> Any:
        """Return one value for each channel in a shape that broadcasts to that of `view`."""
        return ops.reshape(values, [-1 if i == self._axis else 1 for i in range(self._rank)])

    def view_weights(self, weights: Any) -> Any:
        """Return weights in a shape that broadcasts to that of `view`; `None` where all are one."""
        return None if weights is None else self.view(weights)

    def local_count(self, values: Any) -> Any:
        """Return over how many values of `view` each of `local_sums` goes, where all count."""
        sizes = ops.shape(values)
        count = math.prod(sizes[i] for i in self._axes)
        return float(count) if isinstance(count, int) else ops.cast(count, values.dtype)

    def view(self, values: Any) -> Any:
        """Return `values`, in the shape in which this does its sums."""
        return values

    def back(self, values: Any) -> Any:
        """Return what `view` has made of values in their own shape."""
        return values

    def local_sums(self, values: Any) -> Any:
        """Return sums over what this replica has of each part; their shape broadcasts to that of `view`."""
        return ops.sum(values, axis=self._axes, keepdims=True)

    def totals(self, sums: list[Any]) -> list[Any]:
        """Return what all replicas together have of each part, in shapes that broadcast to that of `view`."""
        return _runtime.batch.sum_over_replicas(sums)

    def over_parts(self, sums: Any) -> Any:
        """Return `local_sums` added up over all parts: one number for each channel."""
        return ops.reshape(sums, (-1,))

    def averages(self, moments: Moments) -> list[Any]:
        """Return mean and variance as parts have them on average, each by its size, and the size of all.

        They are one number for each channel, and the size may be one for all of them.
        """
        count = moments.count
        count = count if isinstance(count, float) else ops.reshape(count, (-1,))
        return [ops.reshape(moments.mean, (-1,)), ops.reshape(moments.variance, (-1,)), count]


class SeveralParts(WholeBatch):
    """What parts have in common when there are several."""

    def over_parts(self, sums: Any) -> Any:
        """Return the sum over the parts of this replica."""
        return ops.reshape(ops.sum(sums, axis=0), (-1,))

    def averages(self, moments: Moments) -> list[Any]:
        """Return averages over the parts of all replicas."""
        values = (moments.mean, moments.variance, ops.ones_like(moments.mean))
        weighted = [moments.local_count * value for value in values]
        *sums, count = _runtime.batch.sum_over_replicas([self.over_parts(value) for value in weighted])
        return [*(ops.divide_no_nan(value, count) for value in sums), count]


class EqualParts(SeveralParts):
    """Parts of one size, each of which is on one replica: they are a dimension of their own."""

    def __init__(self, inputs: Any, axis: int, size: int) -> None:
        super().__init__(inputs, axis)
        self._shape = (-1, *ops.shape(inputs)[1:])
        self._size = size
        self._axis, self._rank = axis + 1, self._rank + 1
        self._axes = tuple(i for i in range(1, self._rank) if i != self._axis)

    def view(self, values: Any) -> Any:
        """Return `values` with the parts as the first dimension and their examples as the second."""
        if values.shape[0] == 1:  # the same weights for every row
            return ops.expand_dims(values, 0)
        return ops.reshape(values, (-1, self._size, *ops.shape(values)[1:]))

    def back(self, values: Any) -> Any:
        """Return values in the shape of the batch."""
        return ops.reshape(values, self._shape)

    def totals(self, sums: list[Any]) -> list[Any]:
        """Return the sums: no other replica has any of these parts."""
        return sums


class UnevenParts(SeveralParts):
    """Parts that replicas share, or of which the last one is smaller: each row knows the number of its part."""

    def __init__(self, inputs: Any, axis: int, size: int, place: tuple[Any, Any, Any]) -> None:
        first, self._rows, total = place
        super().__init__(inputs, axis)
        self._axes = tuple(i for i in range(1, self._rank) if i != axis)
        self._part_of_row = (first + ops.arange(self._rows, dtype="int32")) // size
        self._parts = math.ceil(total / size) if isinstance(total, int) else (total + size - 1) // size

    def view_weights(self, weights: Any) -> Any:
        """Return weights for each row, ones where all count."""
        ones = ops.ones([self._rows, *[1] * (self._rank - 1)], "float32")
        return ones if weights is None else weights * ones

    def totals(self, sums: list[Any]) -> list[Any]:
        """Return for each row the sum over the rows of its part."""
        of_parts = [ops.segment_sum(values, self._part_of_row, self._parts) for values in sums]
        return [ops.take(values, self._part_of_row, axis=0) for values in _runtime.batch.sum_over_replicas(of_parts)]
