"""How much of its devices' peak a `fit` uses, and what is wrong with the numbers that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext.callbacks import _throughput_warnings as texts
from keras_tpu_ext.callbacks._device_rate import DeviceRate, Peak, peak_of
from keras_tpu_ext.callbacks._model_flops import FlopsFinder


class Given(NamedTuple):
    """The numbers that the user gave to `Throughput`; see there."""

    batch_size: int | None
    flops_per_sample: float | Literal["auto"] | None
    peak_flops: float | None
    tokens_per_sample: int | None


class Utilisation:
    """What the rates of one `fit` mean for its devices.

    Args:
        given: The user's numbers.
        model: The model, which is in `fit`; `None` for no fit at all.

    Attributes:
        rate: Makes the logs.
        counted: The FLOPs that were counted, if any.
        is_looking: Whether they are still to be counted.
        complaints: What to warn of, by what it is about.
    """

    def __init__(self, given: Given, model: Any = None) -> None:
        self.counted: FlopsCount | None = None
        self.complaints: dict[str, str] = {}
        self._given = given
        self._replicas = 1 if model is None else _runtime.devices.num_replicas(model)
        peak = self._peak(model)
        self.rate = DeviceRate(replicas=self._replicas, tokens_per_sample=given.tokens_per_sample, peak=peak)
        self.rate.has_mfu = given.flops_per_sample is not None and peak.flops is not None
        if isinstance(given.flops_per_sample, float):
            self.rate.flops_per_sample = given.flops_per_sample
        self.is_looking = self.rate.has_mfu and given.flops_per_sample == "auto" and model is not None
        self._finder = FlopsFinder(model)
        if peak.flops is None and peak.source:
            self.complaints["peak"] = texts.no_peak(peak.source)

    def look(self, steps: int, read_examples: Callable[[], float | None]) -> None:
        """Count the FLOPs of a step, once an execution has shown what a batch is like.

        Args:
            steps: Number of steps that the epoch has had so far.
            read_examples: Returns how many examples these had, or `None`.
        """
        if not self._finder.is_ready():
            return
        batch_size = self._given.batch_size
        examples = read_examples() if batch_size is None else None
        if examples and examples > steps * self._replicas:  # else the model counts steps, see ExampleCounter
            batch_size = round(examples / steps)
        self._finder.count(batch_size)
        self.counted = self._finder.found
        if self.counted is None:
            self.rate.has_mfu = False
            self.complaints["flops"] = texts.no_flops(self._finder.why_not)
        else:
            self.rate.flops_per_sample = self.counted.per_sample
        self.is_looking = False

    def epoch_logs(self, batches: float, samples: float | None) -> dict[str, float]:
        """Return the logs of an epoch; an MFU above 1 is a complaint."""
        logs = self.rate.epoch_logs(batches, samples)
        if self.rate.refused is not None:
            flops = self._given.flops_per_sample
            given = {
                "flops_per_sample": flops if isinstance(flops, float) else None,
                "batch_size": self._given.batch_size,
                "peak_flops": self._given.peak_flops,
            }
            self.complaints["mfu"] = texts.refused(self.rate, given)
        return logs

    def undo(self) -> None:
        """Look at nothing any more."""
        self.is_looking = False
        self._finder.undo()

    def _peak(self, model: Any) -> Peak:
        if self._given.peak_flops is not None:
            return Peak(self._given.peak_flops, "as peak_flops says")
        if model is None or self._given.flops_per_sample is None:
            return Peak(None, "")
        return peak_of(_runtime.devices.device_name(model))
