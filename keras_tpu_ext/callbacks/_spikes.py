"""Spikes of a loss, found while it is trained on."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np

_FEWEST = 20  # losses before the first verdict
_OFTEN = 20  # losses between two computations of the limit
_AS_SIGMA = 1.4826  # of a normal distribution, by its median absolute deviation
_LEAST = 0.02  # of the median: a loss that hardly varies has no spikes of a thousandth


@dataclasses.dataclass(frozen=True)
class Spike:
    """The start of a spike.

    Attributes:
        epoch: Number of the epoch, from 0.
        batch: Number of the first batch of the execution in it, from 0.
        loss: The mean loss of the execution's batches.
        median: The median of the losses before it.
        limit: The loss above which there is a spike.
    """

    epoch: int
    batch: int
    loss: float
    median: float
    limit: float

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch + 1}, batch {self.batch}: the loss jumped to {self.loss:.4g}, from a median of "
            f"{self.median:.4g}; the limit was {self.limit:.4g}"
        )


class SpikeFinder:
    """Compares each loss with the median of those before it.

    A spike is a loss whose distance from the median is more than `threshold` standard deviations, estimated by the
    median absolute deviation of the last `window` losses: the identifier of Hampel (1974), on logarithms while all
    losses are positive. OLMo 2 (2024, https://arxiv.org/abs/2501.00656) counts what is seven deviations from a mean.
    """

    def __init__(self, *, window: int, threshold: float, is_mean: bool) -> None:
        self._threshold, self._is_mean = threshold, is_mean
        self._losses: collections.deque[float] = collections.deque(maxlen=window)
        self._median, self._limit, self._end = 0.0, math.inf, math.inf
        self._since_limit = 0
        self._in_spike = 0  # number of executions since a spike began; 0 outside of one
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Note that the running mean of the loss begins anew."""
        self._batches, self._sum = 0, 0.0

    def add(self, epoch: int, batches: int, value: float) -> Spike | None:
        """Add the loss that `logs` show after this many batches of an epoch; return a spike that begins with it."""
        first, count = self._batches, batches - self._batches
        if count <= 0 or not math.isfinite(value):
            return None
        before, self._batches, self._sum = self._sum, batches, value * batches
        loss = (self._sum - before) / count if self._is_mean else value
        if loss > (self._end if self._in_spike else self._limit) and self._in_spike < (self._losses.maxlen or 0):
            self._in_spike += 1
            is_new = self._in_spike == 1
            return Spike(epoch, first, loss, self._median, self._limit) if is_new else None
        if self._in_spike == self._losses.maxlen:  # it is the level of the loss now
            self._losses.clear()
            self._limit = math.inf
        self._in_spike = 0
        self._losses.append(loss)
        self._since_limit += 1
        if len(self._losses) >= _FEWEST and (self._since_limit >= _OFTEN or self._limit == math.inf):
            self._set_limits()
        return None

    def _set_limits(self) -> None:
        self._since_limit = 0
        losses = np.sort(self._losses)
        is_positive = losses[0] > 0
        scaled = np.log(losses) if is_positive else losses
        median = scaled[len(scaled) // 2]
        deviation = _AS_SIGMA * np.sort(abs(scaled - median))[len(scaled) // 2]
        distance = self._threshold * max(deviation, _LEAST if is_positive else _LEAST * abs(median))
        limits = np.array([median, median + distance, median + distance / 2])
        self._median, self._limit, self._end = (np.exp(limits) if is_positive else limits).tolist()
