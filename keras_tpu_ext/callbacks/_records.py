"""What `Throughput` keeps of a `fit`."""

from __future__ import annotations

import math
from typing import NamedTuple

# The names of the rates in `logs`.
BATCHES_PER_SEC = "throughput/batches_per_sec"
SAMPLES_PER_SEC = "throughput/samples_per_sec"


class ThroughputRecord(NamedTuple):
    """The rolling rate after one execution.

    Attributes:
        epoch: Number of the epoch, from 0.
        batch: Index in the epoch of the execution's first batch.
        seconds: Seconds from the start of `fit` to the end of the execution.
        batches_per_sec: Batches per second over the window.
        samples_per_sec: Samples per second over the window, or `None` where they are not known.
    """

    epoch: int
    batch: int
    seconds: float
    batches_per_sec: float
    samples_per_sec: float | None


class EpochThroughput(NamedTuple):
    """The rate of one epoch.

    Attributes:
        epoch: Number of the epoch, from 0.
        began: Seconds from the start of `fit` to the begin of the first batch.
        ended: Seconds from the start of `fit` to the end of the last batch, before any validation.
        batches_per_sec: Batches per second; NaN where nothing in the epoch was measured.
        samples_per_sec: Samples per second, NaN likewise, or `None` where they are not known.
        step_seconds_p50: Median of the seconds of a step; NaN where nothing in the epoch was measured.
        step_seconds_p90: Their 90th percentile.
        step_seconds_p99: Their 99th percentile.
    """

    epoch: int
    began: float
    ended: float
    batches_per_sec: float
    samples_per_sec: float | None
    step_seconds_p50: float = math.nan
    step_seconds_p90: float = math.nan
    step_seconds_p99: float = math.nan
