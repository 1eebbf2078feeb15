"""The mathematics of a loss over all replicas: one numerator and one denominator for the whole batch.

Keras reduces the per-element losses `l`, with weights `w` and a mask `m`, over the batch it sees:

    sum                       S                       with S = sum(l * w * m)
    mean, sum_over_batch_size S / C                   with C = the number of elements
      with a mask             S / C * (T / V)         with T = the number of mask entries, V = those that are on
    mean_with_sample_weight   S / W                   with W = sum(w * m)

(`keras.losses`, `reduce_values` and `apply_mask`.) S, C, T, V and W are sums over examples, so each of them can
be summed over replicas; the quotients cannot. A replica's *share* of the loss is therefore its own S over the
denominator of all replicas: the shares add up to exactly the loss of one device with the whole batch, and so
do their gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from keras_tpu_ext._runtime.common.types import Tensor

MEAN_REDUCTIONS = frozenset({"mean", "sum_over_batch_size", "auto"})  # "auto" is Keras 2's name for the second


@dataclasses.dataclass(frozen=True)
class LocalSums:
    """One replica's sums for the denominator of one loss; each of them adds up over replicas.

    Attributes:
        count: Number of loss elements.
        weight: Sum of the weights, mask included; `None` if there is neither weight nor mask.
        mask_total: Number of mask entries; `None` if there is no mask.
        mask_valid: Number of mask entries that are on; `None` if there is no mask.
    """

    count: Tensor
    weight: Tensor | None = None
    mask_total: Tensor | None = None
    mask_valid: Tensor | None = None


def global_denominator(
    reduction: str | None,
    local: LocalSums,
    sum_over_replicas: Callable[[Sequence[Tensor]], list[Tensor]],
    divide_no_nan: Callable[[Tensor, Tensor], Tensor],
) -> Tensor | None:
    """Return the denominator of the weighted losses of all replicas; `None` for a plain sum.

    Args:
        reduction: A Keras reduction: `"sum_over_batch_size"`, `"mean"`, `"mean_with_sample_weight"`, `"sum"`,
            `"none"` or `None`.
        local: The sums of this replica.
        sum_over_replicas: Sums a list of values over all replicas.
        divide_no_nan: `a / b`, and 0 where `b` is 0.
    """
    if reduction in MEAN_REDUCTIONS and local.mask_total is not None:
        count, total, valid = sum_over_replicas([local.count, local.mask_total, local.mask_valid])
        return divide_no_nan(count * valid, total)
    if reduction == "mean_with_sample_weight" and local.weight is not None:
        return sum_over_replicas([local.weight])[0]
    if reduction in MEAN_REDUCTIONS or reduction == "mean_with_sample_weight":
        return sum_over_replicas([local.count])[0]
    return None
