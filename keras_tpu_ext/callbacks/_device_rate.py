"""What a rate means for one device: samples per second, and the part of its peak that a model uses (MFU)."""

from __future__ import annotations

import math
from typing import NamedTuple

from keras_tpu_ext import hardware
from keras_tpu_ext.callbacks._records import BATCHES_PER_SEC, SAMPLES_PER_SEC

# More names in `logs`.
DEVICE_SAMPLES_PER_SEC = "throughput/device/samples_per_sec"
MFU = "throughput/device/mfu"
TOKENS_PER_SEC = "throughput/tokens_per_sec"


class Peak(NamedTuple):
    """The highest rate of one framework device.

    Attributes:
        flops: FLOP/s; `None` where it is not known.
        source: Where that comes from, in words.
    """

    flops: float | None
    source: str


def peak_of(device_name: str) -> Peak:
    """Return the peak of a device by what the framework calls it, and else by what this machine says of its TPU."""
    is_tpu = "tpu" in device_name.lower()
    generation = hardware.generation_of_device(device_name) if is_tpu else None
    if generation is None and device_name == "TPU":
        generation = hardware.detect().generation
    if generation is None:
        return Peak(None, device_name if is_tpu else "")
    per = "core" if generation.cores_per_chip > 1 else "chip"
    return Peak(generation.peak_bf16_flops_per_core, f"bfloat16 peak of a {per} of TPU {generation.name}")


class DeviceRate:
    """Makes the logs of rates.

    Args:
        replicas: Number of replicas, which is the number of framework devices.
        tokens_per_sample: Tokens in an example, or `None`.
        peak: What one device can do.

    Attributes:
        replicas: The same.
        flops_per_sample: FLOPs of a step for one example; `None` while they are not known.
        has_mfu: Whether there is an MFU, now or once the FLOPs are known.
        refused: The MFU of the last epoch that had one above 1; `None` where none had.
    """

    def __init__(self, *, replicas: int, tokens_per_sample: int | None, peak: Peak) -> None:
        self.peak = peak
        self.flops_per_sample: float | None = None
        self.has_mfu = False
        self.refused: float | None = None
        self.replicas = replicas
        self._tokens = tokens_per_sample

    def logs(self, batches: float, samples: float | None) -> dict[str, float]:
        """Return what is known, by its name in `logs`; an MFU above 1 is not."""
        if samples is None:
            return {BATCHES_PER_SEC: batches}
        of_device = samples / self.replicas
        logs = {BATCHES_PER_SEC: batches, SAMPLES_PER_SEC: samples, DEVICE_SAMPLES_PER_SEC: of_device}
        if self._tokens is not None:
            logs[TOKENS_PER_SEC] = samples * self._tokens
        if self.flops_per_sample is not None:
            mfu = self.mfu(samples)
            if mfu is not None and not mfu > 1:
                logs[MFU] = mfu
        return logs

    def epoch_logs(self, batches: float, samples: float | None) -> dict[str, float]:
        """Return the same for an epoch, with NaN for an MFU that is refused or not known: columns stay complete."""
        logs = self.logs(batches, samples)
        if samples is not None and self.has_mfu and MFU not in logs:
            logs[MFU] = math.nan
            self.refused = self.mfu(samples)
        return logs

    def mfu(self, samples: float) -> float | None:
        """Return the part of the peak that so many samples per second use, also above 1; `None` if not known."""
        if self.flops_per_sample is None or self.peak.flops is None:
            return None
        return samples / self.replicas * self.flops_per_sample / self.peak.flops

    def second_axis(self) -> tuple[str, float] | None:
        """Return what to show beside samples per second, and the factor that makes it of these."""
        per_sample = self.mfu(1.0)
        if per_sample is not None and self.refused is None:
            return "MFU in %", 100 * per_sample
        return ("samples per second and device", 1 / self.replicas) if self.replicas > 1 else None
