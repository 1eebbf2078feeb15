"""The throughput of `model.fit`."""

from __future__ import annotations

import time
from collections.abc import Callable
from os import PathLike
from typing import Any, Literal

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext.callbacks._fit_meter import FitMeter
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, warn
from keras_tpu_ext.callbacks._mfu import DEVICE_SAMPLES_PER_SEC, MFU, TOKENS_PER_SEC, DeviceRates
from keras_tpu_ext.callbacks._plots import AFTER_WARMUP, Plotted, plot_throughput
from keras_tpu_ext.callbacks._rates import (
    BATCHES_PER_SEC,
    SAMPLES_PER_SEC,
    EpochThroughput,
    ScalarWriter,
    StepTimePercentiles,
    ThroughputRecord,
)
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.display import rounded

_KEYS = (BATCHES_PER_SEC, SAMPLES_PER_SEC, DEVICE_SAMPLES_PER_SEC, MFU, TOKENS_PER_SEC)
_SHORT = {SAMPLES_PER_SEC: "samples/s", MFU: "mfu"}
_TWICE = (
    "Throughput: the same object is in `callbacks` twice, so that it would count every step twice. Write it once: "
    "fit(..., callbacks=[throughput])"
)
_UNCOUNTED = (
    "Throughput shows no samples per second: this model's train_step does not add its batch size to Keras's "
    "loss tracker (or has one example per step and replica, which looks the same), so examples cannot be "
    "counted. Write: Throughput(batch_size=<examples per step over all replicas>)"
)
_MISMATCH = (
    "Throughput(batch_size={batch_size}) does not fit: the model counted {examples:.0f} examples in an epoch of "
    "{steps} steps, {per_step:.6g} per step. The rates shown use {batch_size}. batch_size is the number of examples "
    "per step over all replicas. Write: Throughput() to have them counted, and put it before any callback that "
    "evaluates the model"
)


class Throughput(FitObserver, Plotted):
    """Shows the batches and samples per second of a `fit`, and how much of its devices' peak they use.

    Puts `throughput/batches_per_sec` and `throughput/samples_per_sec` into `logs`: after each batch the rate over the
    last `window` executions of the epoch, at its end the rate of the whole epoch; NaN where nothing was measured. An
    execution is one call of the train function, which runs `steps_per_execution` batches.
    `throughput/device/samples_per_sec` is the rate of one device, and `throughput/tokens_per_sec` is there with
    `tokens_per_sample`. docs/callbacks.md says what counts as training time.

    `throughput/device/mfu` is the model FLOPs utilisation, from 0 to 1 (Chowdhery et al., PaLM, 2022, appendix B,
    https://arxiv.org/abs/2204.02311): the FLOPs of matrix products and convolutions, forward and backward, two for
    each multiply-add, divided by the bfloat16 peak of the device, or the float16 peak of a GPU without bfloat16
    units. Recomputation does not count. One above 1 is not shown, and a warning says which number is likely wrong.
    The peaks of NVIDIA GPUs are those of their data sheets; this has not run on a GPU.

    Put it **first** in the list: callbacks before it do not see its keys, and one that evaluates the model resets the
    count of examples. If several processes train together, all of them need it.

    Args:
        window: Number of executions in the rolling rate. Defaults to 20.
        warmup: Number of executions left out at the start of each `fit`, which compile, and with them the last one of
            the first epoch, which may; 0 leaves nothing out. Defaults to 1.
        batch_size: Examples per step over **all** replicas, or `None` (default) to have Keras's loss tracker count
            them, which a custom `train_step` may not keep.
        flops_per_sample: FLOPs of the forward and the backward pass for one example, or `None` for no MFU. `"auto"`
            (default) counts them once in a `fit` if the peak is known, by tracing the step a second time.
        peak_flops: Peak FLOP/s of one framework device: a chip, on TPU v2, v3 and 7x a core. `None` (default) takes
            it from the tables of TPU generations and of common NVIDIA GPUs. It is not known for a CPU.
        tokens_per_sample: Tokens in an example, or `None` (default).
        progress_bar: Which keys progress bars show: `"short"` (default), the rate and `mfu`, or `"all"`. `logs` and
            `History` always have all of them.
        log_dir: Folder for TensorBoard, or `None` (default): all keys every `window` executions and for each epoch,
            with the percentiles of step time. On JAX this needs the package `tensorboard`.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `window`, `batch_size` or `tokens_per_sample` is not an integer of at least 1, `warmup` is
            not one of at least 0, `flops_per_sample` or `peak_flops` is not a number above 0, `progress_bar` is
            another word, or `clock` is not callable. In `fit`, if this object is in `callbacks` twice.
        MissingExtraError: If `log_dir` is given and no package that can write there is installed.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        throughput = kte.callbacks.Throughput()
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        history = model.fit(x, y, epochs=3, verbose=0, callbacks=[throughput])
        print(history.history["throughput/samples_per_sec"])
        throughput.plot("throughput.png")
        ```
    """

    def __init__(
        self,
        *,
        window: int = 20,
        warmup: int = 1,
        batch_size: int | None = None,
        flops_per_sample: float | Literal["auto"] | None = "auto",
        peak_flops: float | None = None,
        tokens_per_sample: int | None = None,
        progress_bar: Literal["short", "all"] = "short",
        log_dir: str | PathLike[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(clock)
        caller = type(self).__name__
        self.window = check.integer(caller, "window", window, example=20)
        self.warmup = check.integer(caller, "warmup", warmup, minimum=0, example=1)
        self.batch_size = check.optional(check.integer, caller, "batch_size", batch_size, example=128)
        self.flops_per_sample = flops_per_sample
        if flops_per_sample not in (None, "auto"):
            what = '"auto", None or a number'
            self.flops_per_sample = check.number(
                caller, "flops_per_sample", flops_per_sample, above=0, what=what, example='"auto"'
            )
        what = "None or a number of FLOP/s of one device"
        self.peak_flops = check.optional(
            check.number, caller, "peak_flops", peak_flops, above=0, what=what, example="197e12"
        )
        self.tokens_per_sample = check.optional(
            check.integer, caller, "tokens_per_sample", tokens_per_sample, example=512
        )
        self.progress_bar = check.one_of(caller, "progress_bar", progress_bar, ("short", "all"))
        self.log_dir = log_dir
        self._open_scalars = None if log_dir is None else _runtime.event_file_class()
        self._fitting = self._is_beginning = False
        self._rolling: dict[str, float] = {}
        self._scalars: ScalarWriter | None = None
        self._start_fit()

    def __repr__(self) -> str:
        last = self._meter.records[-1][-2:] if self._meter.records else None
        rates = {} if last is None else self._devices.logs(*last)
        shown = ", ".join(f"{key.partition('/')[2]} {rounded(rate)}" for key, rate in rates.items())
        return f"<Throughput: {shown or 'nothing measured yet'}>"

    @property
    def records(self) -> tuple[ThroughputRecord, ...]:
        """The rolling rates of the last `fit`, thinned out evenly once there are thousands."""
        return tuple(self._meter.records)

    @property
    def epoch_records(self) -> tuple[EpochThroughput, ...]:
        """The rates of each epoch of the last `fit`."""
        return tuple(self._meter.epochs)

    @property
    def counted_flops(self) -> FlopsCount | None:
        """The FLOPs counted in the last `fit`, if any, with the size of the batch that they were counted for."""
        return self._devices.counted

    def step_time_percentiles(self) -> StepTimePercentiles:
        """Return the median, 90th and 99th percentile of the last `fit`'s step times in seconds.

        Executions are timed, each from its start to that of the next one, and one of k batches counts as k equal
        steps. Frameworks dispatch steps ahead of the device: then the mean is right, and single times are not.

        Raises:
            NothingMeasuredError: If no step was measured.
        """
        found = self._meter.step_times.percentiles()
        if found is None:
            raise nothing_yet("throughput.step_time_percentiles()", needs=AFTER_WARMUP)
        return found

    def _figure(self) -> Any:
        """Draw the rates of the last `fit` over time, with the MFU, or the rate of a device, on the right axis."""
        return plot_throughput(
            self.records,
            self.epoch_records,
            window=self.window,
            step_times=self._meter.step_times.percentiles(),
            second_axis=self._devices.second_axis(),
        )

    def set_params(self, params: dict[str, object]) -> None:
        """Note that a `fit` is about to begin."""
        self._is_beginning = False
        super().set_params(params)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset: each `fit` may compile anew."""
        if self._is_beginning:
            raise ArgumentError(_TWICE)
        self._start_fit(self.model)
        self._fitting = self._is_beginning = True
        self._show_in_progress_bar()
        if self.log_dir is not None and self._open_scalars is not None and _runtime.devices.is_chief():
            self._scalars = ScalarWriter(self._open_scalars, check.path(self.log_dir), every=self.window)

    def end_fit(self) -> None:
        """Stop measuring, and close the file for TensorBoard."""
        self._fitting = False
        self._devices.stop()
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reset the sums of the epoch."""
        self._is_beginning = False
        self._rolling = {}
        self._meter.begin_epoch(epoch)
        self._examples_at_test: tuple[int, float | None] | None = None
        self._steps_before = _runtime.progress.train_steps(self.model)
        self._first_step = self._steps_so_far if self._steps_before is None else self._steps_before

    # Between two batches other code uses the processor's caches, so memory access costs these two hooks more than
    # their work: they append the time, and the rest is done for many batches at once.

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Take the time; process pending times if there are enough of them."""
        now, meter = self.clock() - self._not_measured, self._meter
        meter.batches.append(batch)
        meter.times.append(now)
        if now >= meter.next_update or len(meter.times) > meter.next_reading:
            self._update()
        if self._scalars is not None:
            self._scalars.begin_execution(self._first_step + batch, self._rolling_logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the rolling rates into `logs`."""
        self._meter.ends.append((batch, self.clock() - self._not_measured))
        if logs is not None:
            logs.update(self._rolling)

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Read the count of examples before validation resets it."""
        if self._fitting:
            # Not by ends of executions: on JAX the last one may be reported after this.
            self._examples_at_test = (len(self._meter.times), self._read_examples())

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the rates of the epoch into `logs`."""
        if not _runtime.progress.end_names_last_batch():
            self._meter.complete_last(self.model.steps_per_execution)
        steps = self._steps_of_epoch()
        if self._examples_at_test and self._examples_at_test[0] == len(self._meter.times):
            examples = self._examples_at_test[1]
        else:
            examples = self._read_examples()
        if self._devices.needs_flops:
            self._count_flops(steps, lambda: examples)
        rates = self._devices.epoch_logs(*self._meter.end_epoch(steps, examples))
        self._steps_so_far += steps
        if logs is not None:
            logs.update(rates)
        if self._scalars is not None:
            self._scalars.end_epoch(epoch, {**rates, **self._step_seconds_of_epoch()})
        self._warn()

    def _show_in_progress_bar(self, *, batches: bool = False) -> None:
        """Choose the keys for progress bars; one of samples and batches is enough."""
        if self.progress_bar == "all":
            names: dict[str, str | None] = {key: key for key in _KEYS}
            # On one device it equals the rate of all devices.
            names[DEVICE_SAMPLES_PER_SEC] = None if self._devices.devices == 1 else DEVICE_SAMPLES_PER_SEC
        else:
            names = {**dict.fromkeys(_KEYS), **_SHORT}
            if self.tokens_per_sample is not None:
                names |= {TOKENS_PER_SEC: "tokens/s", SAMPLES_PER_SEC: None}
            if batches:
                names[BATCHES_PER_SEC] = "batches/s"
        _runtime.progress.show_in_progress_bar(names)

    def _update(self) -> None:
        """Process pending times, and update the rolling rates."""
        meter, devices = self._meter, self._devices
        if devices.needs_flops:
            self._count_flops(meter.batches[-1], self._read_examples)
            meter.times[-1] = self.clock() - self._not_measured
        meter.update(self._read_examples)
        if devices.needs_flops:
            meter.next_update = 0.0
        self._rolling = self._rolling_logs()

    def _rolling_logs(self) -> dict[str, float]:
        batches, samples = self._meter.rates()
        return {} if batches is None else self._devices.logs(batches, samples)

    def _step_seconds_of_epoch(self) -> dict[str, float]:
        if not self._meter.epochs:
            return {}
        names = ("step_seconds_p50", "step_seconds_p90", "step_seconds_p99")
        return {f"throughput/{name}": getattr(self._meter.epochs[-1], name) for name in names}

    def _start_fit(self, model: Model | None = None) -> None:
        self._devices = DeviceRates(
            model,
            batch_size=self.batch_size,
            flops_per_sample=self.flops_per_sample,
            peak_flops=self.peak_flops,
            tokens_per_sample=self.tokens_per_sample,
        )
        self._not_measured = 0.0
        self._steps_so_far = 0
        self._first_step = 0
        self._rolling = {}
        self._warned: set[str] = set()
        self._meter: FitMeter = FitMeter(
            window=self.window,
            warmup=self.warmup,
            batch_size=self.batch_size,
            untrusted_per_step=self._devices.untrusted_per_step,
            began=self.clock(),
        )

    def _read_examples(self) -> float | None:
        # On JAX even `self.model` is expensive, since it copies the state back: only here, never at each batch.
        return _runtime.progress.examples_seen(self.model)

    def _steps_of_epoch(self) -> int:
        """Return the number of steps of the epoch; its last execution may have run fewer than the others.

        The optimizer's count is used if it fits the batch index, and so is the number of steps that Keras announced.
        The former leaves out steps that loss scaling skipped, so the larger one is right.
        """
        last, most = self._meter.last_begin, self._meter.last_batch + 1
        if most - last <= 1:
            return most
        announced = (self.params or {}).get("steps")
        taken = _runtime.progress.train_steps(self.model)
        if taken is not None and self._steps_before is not None:
            taken -= self._steps_before
        return max((steps for steps in (announced, taken) if steps and last < steps <= most), default=most)

    def _count_flops(self, steps: int, read_examples: Callable[[], float | None]) -> None:
        """Count the FLOPs of a step once an execution has run, outside the measured time."""
        began = self.clock()
        self._devices.count_flops(steps, read_examples)
        self._not_measured += self.clock() - began

    def _warn(self) -> None:
        """Warn about each topic once in a `fit`."""
        counter = self._meter.examples
        found = dict(self._devices.warnings)
        if counter.mismatch is not None:
            examples, steps = counter.mismatch
            found["examples"] = _MISMATCH.format(
                batch_size=self.batch_size, examples=examples, steps=steps, per_step=examples / steps
            )
        elif counter.per_step is None and self._meter.completed:
            found["examples"] = _UNCOUNTED
            self._show_in_progress_bar(batches=True)
        for topic in found.keys() - self._warned:
            self._warned.add(topic)
            warn(found[topic])
