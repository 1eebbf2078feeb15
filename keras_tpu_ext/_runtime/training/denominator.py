"""What a loss is divided by, over all replicas and over a window of accumulated batches.

Keras reduces the per-element losses `l`, with weights `w` and a mask `m`, over the batch it sees:

    sum                       S                       with S = sum(l * w * m)
    mean, sum_over_batch_size S / C                   with C = the number of elements
      with a mask             S / C * (T / V)         with T = the number of mask entries, V = those that are on
    mean_with_sample_weight   S / W                   with W = sum(w * m)

(`keras.losses`, `reduce_values` and `apply_mask`.) S, C, T, V and W are sums over examples, so each of them can
be summed over replicas; the quotients cannot. A replica's *local* loss is therefore its own S over the
denominator of all replicas: the local losses add up to exactly the loss of one device with the whole batch, and so
do their gradients. A window of batches is a whole batch in the same way: the gradient of each batch, times its
denominator, over the sum of the denominators.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from keras_tpu_ext._runtime.common.types import Tensor
from keras_tpu_ext._runtime.compat import ops
from keras_tpu_ext._runtime.training.protocols import BatchOfStep
from keras_tpu_ext.checks.arguments import argument_error
from keras_tpu_ext.errors import ArgumentError

_MEANS = frozenset({"mean", "sum_over_batch_size", "auto"})  # "auto" is Keras 2's name for the second


class LossSum(NamedTuple):
    """A loss before it is divided.

    Attributes:
        total: The sum of this replica's weighted losses.
        denominator: What the total of all replicas is divided by; `None` if by nothing.
        counted: What the denominator counts: the sizes of an example, the mask and the weights.
    """

    total: Tensor
    denominator: Tensor | None = None
    counted: tuple[tuple[object, ...], Tensor | None, Tensor | None] = ((), None, None)

    def local(self) -> Tensor:
        """Return this replica's part of the loss."""
        if self.denominator is None:
            return self.total
        divisor = ops.cast(self.denominator, self.total.dtype)
        return self.total / ops.where(ops.equal(divisor, 0), ops.ones_like(divisor), divisor)

    def is_divided_like(self, other: LossSum) -> bool:
        """Return whether the denominator is that of `other`, another loss of the same batch, whatever the batch."""
        pairs = zip(self.counted[1:], other.counted[1:], strict=True)
        return self.counted[0] == other.counted[0] and all(one is another for one, another in pairs)


def loss_sum(
    reduction: str | None, values: Tensor, mask: Tensor | None, sample_weight: Tensor | None, batch: BatchOfStep
) -> LossSum:
    """Return the sum of a replica's weighted and masked `values`, zero in padded rows, with Keras's denominator."""
    total = batch.respects_padding(ops.sum)(values)
    of_weights = reduction == "mean_with_sample_weight" and not (mask is None and sample_weight is None)
    if reduction not in _MEANS and reduction != "mean_with_sample_weight":
        return LossSum(total)

    def counted(values: Tensor, mask: Tensor | None, sample_weight: Tensor | None) -> Tensor:
        return (_sum_of_weights if of_weights else _count)(values, mask, sample_weight, batch)

    denominator = batch.respects_padding(counted)(values, mask, sample_weight)
    if of_weights:
        # Zero where nothing counts, even if a loss is infinite: Keras's other means are NaN then.
        total = ops.where(ops.equal(denominator, 0), ops.zeros_like(total), total)
        return LossSum(total, denominator, ((), mask, sample_weight))
    sizes = tuple(values.shape[1:])
    # Where a size is not known, other losses need not have the same.
    return LossSum(total, denominator, ((object(),) if None in sizes else sizes, mask, None))


def _count(values: Tensor, mask: Tensor | None, sample_weight: object, batch: BatchOfStep) -> Tensor:
    """Return the number of elements over all replicas, as Keras corrects it for a mask."""
    if mask is None:
        return batch.sum_over_replicas([number_of_elements(values, batch)])[0]
    valid = ops.sum(ops.cast(batch.zero_invalid_rows(mask), "float32"))
    sums = [number_of_elements(values, batch), number_of_elements(mask, batch), valid]
    count, entries, valid = batch.sum_over_replicas(sums)
    return ops.divide_no_nan(count * valid, entries)


def _sum_of_weights(values: Tensor, mask: Tensor | None, sample_weight: Tensor | None, batch: BatchOfStep) -> Tensor:
    """Return the sum of the weights that the mask leaves; as in Keras, a last axis of size 1 is none."""
    mask = None if mask is None else batch.zero_invalid_rows(mask)
    parts = [ops.cast(part, values.dtype) for part in (mask, sample_weight) if part is not None]
    rank = min(len(part.shape) for part in parts)
    parts = [part[..., 0] if len(part.shape) > rank and part.shape[-1] == 1 else part for part in parts]
    return batch.sum_over_replicas([ops.sum(functools.reduce(operator.mul, parts))])[0]


def number_of_elements(values: Tensor, batch: BatchOfStep) -> float | Tensor:
    """Return the number of elements of examples: a Python float where that is static, else a tensor."""
    return number(functools.reduce(operator.mul, ops.shape(values), 1)) * batch.valid_fraction()


def number(size: int | Tensor) -> float | Tensor:
    """Return a size as a Python float where it is static, else as a float32 tensor."""
    return float(size) if isinstance(size, int) else ops.cast(size, "float32")


_RECORD: ContextVar[list[LossSum] | None] = ContextVar("_RECORD", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[LossSum]]:
    """Within the block, the losses of all outputs are added to the list that it yields."""
    losses: list[LossSum] = []
    token = _RECORD.set(losses)
    try:
        yield losses
    finally:
        _RECORD.reset(token)


def recorded(loss: LossSum) -> LossSum:
    """Return a loss, for whose denominator the step may ask."""
    losses = _RECORD.get()
    if losses is not None:
        losses.append(loss)
    return loss


def common_denominator(losses: Sequence[LossSum], *, of_layers: bool) -> Tensor:
    """Return the denominator of all outputs' losses, the weight of a batch's gradient in a window, in tokens.

    With this weight the gradient of a regulariser, which is the same in every batch, counts once per window.
    """
    if of_layers:
        raise no_tokens("whose layers add losses of the batch (add_loss, activity_regularizer)")
    if not losses or any(loss.denominator is None for loss in losses):
        raise no_tokens("with a loss that Keras does not divide by a number of elements or a sum of weights")
    if not all(loss.is_divided_like(losses[0]) for loss in losses):
        raise no_tokens("whose outputs have losses that are divided by different numbers")
    denominator = ops.cast(losses[0].denominator, "float32")
    # A batch without tokens has the gradient of the regularisers, which a window of such batches must keep; in any
    # other window, this weight is lost in rounding.
    return ops.where(ops.equal(denominator, 0), ops.ones_like(denominator) * 2.0**-64, denominator)


def no_tokens(of_models: str) -> ArgumentError:
    """Return the error for a model in which tokens cannot weight the batches of a window."""
    name, words = "gradient_accumulation_weight", f'"examples" for a model {of_models}'
    return argument_error("compile", name, words, "'tokens'", f'{name}="examples"')
