"""Model FLOPs utilization (MFU): a step's FLOPs divided by the peak of the devices; and the rates of one device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from keras_tpu_ext import _runtime, hardware
from keras_tpu_ext._runtime.common.executions import CompileWatch, Execution, Interception
from keras_tpu_ext._runtime.common.flops import FlopsCount, UncountableError
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext.callbacks._rates import BATCHES_PER_SEC, SAMPLES_PER_SEC
from keras_tpu_ext.machine.gpu_table import gpu_peak

# More names in `logs`.
DEVICE_SAMPLES_PER_SEC = "throughput/device/samples_per_sec"
MFU = "throughput/device/mfu"
TOKENS_PER_SEC = "throughput/tokens_per_sec"

_DEFAULT_BATCH_SIZE = 8  # if unknown: FLOPs for one example hardly ever depend on it

_NO_FLOPS = (
    "Throughput shows no MFU: the FLOPs of a step cannot be counted, because {why}. Write: Throughput("
    "flops_per_sample=<FLOPs of the forward and the backward pass for one example>), or flops_per_sample=None to do "
    "without"
)
_NO_PEAK = (
    "Throughput shows no MFU: it does not know the peak of this TPU, which calls itself {name!r}. Write: "
    "Throughput(peak_flops=<bfloat16 FLOP/s of one device>), or flops_per_sample=None to do without"
)
_IMPOSSIBLE = (
    "Throughput refuses an MFU of {percent:.4g} %: a device would do more than the {peak:.4g} FLOP/s that it can do "
    "({source}), counting {flops:.4g} FLOPs for each sample. Likely {likely}"
)
_SUSPECTS = {
    "flops_per_sample": "flops_per_sample={value:.6g} is too large: it is for one example, forward and backward "
    'pass, two for each multiply-add. Write: Throughput(flops_per_sample="auto")',
    "batch_size": "batch_size={value} is too large: it is the number of examples per step over all replicas. Write: "
    "Throughput() to have them counted",
    "peak_flops": "peak_flops={value:.6g} is too small: it is in FLOP/s, and that of one framework device: a chip, "
    "on TPU v2, v3 and 7x a core. Write: Throughput() to take it from the table",
}
_NONE_GIVEN = (
    "this device is faster than the table says, or the steps were not over in the time that was measured. Write: "
    "Throughput(peak_flops=<FLOP/s of one device>), and give an epoch more steps"
)


class Peak(NamedTuple):
    """The highest rate of one framework device."""

    flops: float | None  # FLOP/s; `None` if it is not known
    source: str  # where the number comes from, in words


def device_peak(device_name: str) -> Peak:
    """Return the peak of a device, found by the framework's name for it, else that of this machine's TPU.

    The divisor for a GPU is its peak in bfloat16, or in float16 where it has no bfloat16 units, without sparsity.
    """
    gpu = gpu_peak(device_name)
    if gpu is not None:
        return Peak(gpu.flops, f"{gpu.dtype} peak of {device_name}")
    is_tpu = "tpu" in device_name.lower()
    generation = hardware.generation_of_device(device_name) if is_tpu else None
    if generation is None and device_name == "TPU":
        generation = hardware.detect().generation
    if generation is None:
        return Peak(None, device_name if is_tpu else "")
    per = "core" if generation.cores_per_chip > 1 else "chip"
    return Peak(generation.peak_bf16_flops_per_core, f"bfloat16 peak of a {per} of TPU {generation.name}")


class DeviceRates:
    """Computes the logs of one `fit` from its rates, with the MFU if FLOPs and peak are known."""

    def __init__(
        self,
        model: Any,
        *,
        batch_size: int | None,
        flops_per_sample: float | Literal["auto"] | None,
        peak_flops: float | None,
        tokens_per_sample: int | None,
    ) -> None:
        self.counted: FlopsCount | None = None  # the FLOPs that were counted, if any
        self.warnings: dict[str, str] = {}  # messages to warn with, by topic
        self.impossible_mfu: float | None = None  # the MFU of the last epoch that had one above 1; `None` if none had
        self.devices = 1 if model is None else _runtime.devices.num_devices(model)  # number of framework devices
        trusted = model is None or _runtime.progress.counts_examples(model)
        # Count per step up to which it may not be a count of examples, see `ExampleCounter`.
        self.untrusted_per_step = 0 if trusted else _runtime.devices.num_replicas(model)
        self._batch_size = batch_size
        self._tokens_per_sample = tokens_per_sample
        # FLOPs of a step for one example; `None` while they are not known.
        self.flops_per_sample = None if flops_per_sample == "auto" else flops_per_sample
        # What the user gave, and may be wrong.
        self._given = {
            "flops_per_sample": self.flops_per_sample,
            "batch_size": batch_size,
            "peak_flops": peak_flops,
        }
        self._peak = Peak(peak_flops, "as peak_flops says")
        if peak_flops is None:
            is_wanted = model is not None and flops_per_sample is not None
            self._peak = device_peak(_runtime.devices.device_name(model)) if is_wanted else Peak(None, "")
        # Whether there is an MFU, now or once the FLOPs are counted.
        self.has_mfu = flops_per_sample is not None and self._peak.flops is not None
        # Whether FLOPs are still to be counted.
        self.needs_flops = self.has_mfu and flops_per_sample == "auto" and model is not None
        self._model = model
        self._interception: Interception | None = None
        self._batches: list[Nest] | None = None  # of an execution, once one has run
        if self._peak.flops is None and self._peak.source:
            self.warnings["peak"] = _NO_PEAK.format(name=self._peak.source)

    def logs(self, batches: float, samples: float | None) -> dict[str, float]:
        """Return the rates that are known, by their names in `logs`; without an MFU above 1."""
        if samples is None:
            return {BATCHES_PER_SEC: batches}
        per_device = samples / self.devices
        logs = {BATCHES_PER_SEC: batches, SAMPLES_PER_SEC: samples, DEVICE_SAMPLES_PER_SEC: per_device}
        if self._tokens_per_sample is not None:
            logs[TOKENS_PER_SEC] = samples * self._tokens_per_sample
        mfu = self._mfu(samples)
        if mfu is not None and not mfu > 1:
            logs[MFU] = mfu
        return logs

    def epoch_logs(self, batches: float, samples: float | None) -> dict[str, float]:
        """Return the logs of an epoch, with NaN for an MFU above 1 or not known yet: columns stay complete."""
        logs = self.logs(batches, samples)
        if samples is not None and self.has_mfu and MFU not in logs:
            logs[MFU] = math.nan
            self.impossible_mfu = self._mfu(samples)
        if self.impossible_mfu is not None:
            self.warnings["mfu"] = self._mfu_warning(self.impossible_mfu)
        return logs

    def second_axis(self) -> tuple[str, float] | None:
        """Return the label of a plot's second axis, and its factor to samples per second; `None` for no axis."""
        per_sample = self._mfu(1.0)
        if per_sample is not None and self.impossible_mfu is None:
            return "MFU in %", 100 * per_sample
        return ("samples per second and device", 1 / self.devices) if self.devices > 1 else None

    def count_flops(self, steps: int, read_examples: Callable[[], float | None]) -> None:
        """Count the FLOPs of a step; until an execution has run, only intercept the next one, to see its batch."""
        if self._batches is None:
            if self._interception is None:
                self._interception = _runtime.probes.intercept_executions(self._model, self._intercept)
                self._interception.begin()
            return
        batch_size = self._batch_size
        examples = read_examples() if batch_size is None else None
        if examples and examples > steps * self.untrusted_per_step:
            batch_size = round(examples / steps)
        self.needs_flops = False
        try:
            self.counted = _count_flops(self._model, self._batches, batch_size)
        except UncountableError as error:
            self.has_mfu = False
            self.warnings["flops"] = _NO_FLOPS.format(why=error)
        else:
            self.flops_per_sample = self.counted.per_sample

    def _intercept(self, execution: Execution) -> Nest:
        self._undo()
        result, _ = execution.run_watched(CompileWatch())
        self._batches = execution.batches()
        return result

    def stop(self) -> None:
        """Stop waiting for an execution to count."""
        self.needs_flops = False
        self._undo()

    def _undo(self) -> None:
        if self._interception is not None:
            self._interception.undo()
            self._interception = None

    def _mfu(self, samples: float) -> float | None:
        """Return the MFU at this many samples per second, also if it is above 1; `None` if not known."""
        if self.flops_per_sample is None or self._peak.flops is None:
            return None
        return samples / self.devices * self.flops_per_sample / self._peak.flops

    def _mfu_warning(self, mfu: float) -> str:
        given = {name: value for name, value in self._given.items() if value is not None}
        suspects = [_SUSPECTS[name].format(value=value) for name, value in given.items()]
        return _IMPOSSIBLE.format(
            percent=100 * mfu,
            peak=self._peak.flops,
            source=self._peak.source,
            flops=self.flops_per_sample,
            likely="; or ".join(suspects or [_NONE_GIVEN]),
        )


def _count_flops(model: Model, batches: Sequence[Nest], batch_size: int | None) -> FlopsCount:
    """Count for a batch of that many examples over all replicas, if known, or raise an `UncountableError`."""
    if not batches:
        raise UncountableError("its data does not say what a batch is like")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the step is traced a second time, and has already warned
            found = _runtime.probes.count_flops(model, batches[0], batch_size or _DEFAULT_BATCH_SIZE)
    except UncountableError:
        raise
    except Exception as error:  # the user's code runs here, and can raise anything
        text = str(error).strip().partition("\n")[0]
        why = f"its step cannot be traced apart from fit ({type(error).__name__}: {text[:200]})"
        raise UncountableError(why) from error
    if not found.per_sample:
        raise UncountableError("no product and no convolution can be seen in it")
    return found
