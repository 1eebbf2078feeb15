"""Whether `HostBottleneck` is right, where host and device cost what this script says.

    python benchmarks/host_bottleneck.py [--batches 160] [--device-ms 10]
    KERAS_BACKEND=jax python benchmarks/host_bottleneck.py

Host and device sleep: the host for a multiple of the device's time before it gives a batch, the device inside the
step. Each row trains three times for two epochs: on batches that are there at once, on the slow pipeline, and on
that with the callback. The second epochs of the first two, timed from outside and without the callback, say what
part of the time really waits; the row says how far the callback is off, and whether its verdict is the right one.
Verdicts within 5 points of a band's edge count for neither. The last line is JSON.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import harness
import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext._runtime import keras

ON_JAX = keras.backend.backend() == "jax"
RATIOS = (0.0, 0.25, 0.5, 0.9, 1.1, 2.0, 4.0)
EDGES, MARGIN = (0.05, 0.20), 0.05
ROWS, FEATURES = 8, 4


class SlowDevice(keras.layers.Layer):
    """Returns its input, late."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def call(self, x: Any) -> Any:
        """Return `x`."""
        return _late(x, self.seconds)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the same shape."""
        return input_shape


def _late(x: Any, seconds: float) -> Any:
    def wait(x: Any) -> Any:
        time.sleep(seconds)
        return np.asarray(x)

    if ON_JAX:
        import jax

        late = jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x))
        return jax.lax.stop_gradient(late)
    import tensorflow as tf

    late = tf.numpy_function(wait, [x], tf.float32)
    late.set_shape(x.shape)
    return late


class SlowHost(kte._runtime.PyDataset):
    """Batches that the host makes slowly, for JAX.

    Args:
        batches: Number of batches in an epoch.
        seconds: How long each takes.
    """

    def __init__(self, batches: int, seconds: float) -> None:
        super().__init__()
        self.batches = batches
        self.seconds = seconds
        self.batch = np.ones((ROWS, FEATURES), "float32"), np.ones((ROWS, 1), "float32")

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return self.batch


def pipeline(batches: int, seconds: float | None, *, tuned: bool = True) -> Any:
    """Return batches that the host makes in `seconds` each, or that are there; on TensorFlow by `tf.data`.

    The truth is found without tf.data's tuner, for which the end of a pipeline now and then waits for seconds.
    """
    source = SlowHost(batches, seconds or 0.0)
    if ON_JAX:
        return source
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = tuned
    if seconds is None:
        return tf.data.Dataset.from_tensors(source[0]).repeat(batches).prefetch(2).with_options(options)

    def made(i: Any) -> Any:
        x, y = tf.numpy_function(source.__getitem__, [i], [tf.float32, tf.float32])
        return tf.ensure_shape(x, (ROWS, FEATURES)), tf.ensure_shape(y, (ROWS, 1))

    return tf.data.Dataset.range(batches).map(made).prefetch(2).with_options(options)


class StepSeconds(keras.callbacks.Callback):
    """Times each epoch but the first, from a batch on."""

    async_safe = True

    def __init__(self, batches: int, first: int) -> None:
        super().__init__()
        self.batches, self.first = batches, first
        self.of_epochs: list[float] = []

    @property
    def seconds(self) -> float:
        """The seconds of a step, in the median of epochs."""
        return statistics.median(self.of_epochs[1:])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the last one."""
        self.begun = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Take the time, once."""
        if self.begun is None and batch >= self.first:
            self.begun = batch, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the seconds of a step."""
        batch, begun = self.begun
        self.of_epochs.append((time.perf_counter() - begun) / (self.batches - batch))


def step_seconds(model: Any, batches: int, host: float | None) -> float:
    """Return the seconds of a step without the callback, in the second epoch from its second quarter on."""
    timer = StepSeconds(batches, batches // 4)
    data, steps = pipeline(batches, host, tuned=False), None
    if host is None and not ON_JAX:
        data, steps = data.repeat(), batches  # one pipeline for all epochs: none of them waits for its start
    model.fit(data, steps_per_epoch=steps, epochs=2, verbose=0, shuffle=False, callbacks=[timer])
    return timer.seconds


def row(model_class: Any, steps: int, ratio: float, *, batches: int, device: float) -> dict[str, Any]:
    """Return what is true and what the callback says, for one ratio of host to device."""
    inputs = keras.Input((FEATURES,))
    model = model_class(inputs, keras.layers.Dense(1)(SlowDevice(device)(inputs)))
    model.compile("sgd", "mse", steps_per_execution=steps)
    alone, piped = (step_seconds(model, batches, host) for host in (None, ratio * device))
    truth = max(0.0, 1 - alone / piped)
    callback = kte.callbacks.HostBottleneck(verbose=False)
    model.fit(pipeline(batches, ratio * device), epochs=2, verbose=0, shuffle=False, callbacks=[callback])
    verdict = callback.verdict
    assert verdict is not None
    right = kte.callbacks.InputVerdict(truth, piped, alone, None).verdict == verdict.verdict
    near = any(abs(truth - edge) < MARGIN for edge in EDGES)
    return {
        "truth": truth,
        "found": verdict.wait_fraction,
        "verdict": verdict.verdict,
        "right": None if near else right,
        "costliest_stage": verdict.costliest_stage,
    }


def main() -> None:
    """Print a row for each model, number of steps and ratio."""
    parser = harness.parser(__doc__)
    parser.add_argument("--batches", type=int, default=160)
    parser.add_argument("--device-ms", type=float, default=10.0)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name, model_class in (("keras.Model", keras.Model), ("TPUModel", kte.TPUModel)):
        for steps, ratio in itertools.product((1, 8), RATIOS):
            device = options.device_ms / 1000
            one = row(model_class, steps, ratio, batches=options.batches, device=device)
            found[f"{name}, {steps} step(s), host/device {ratio}"] = one
            verdict = {True: "right", False: "WRONG", None: "near an edge"}[one["right"]]
            off = abs(one["found"] - one["truth"])
            print(
                f"{name:11s} steps_per_execution {steps} host/device {ratio:4.2f}: "
                f"waits {one['truth']:6.1%}, found {one['found']:6.1%}, off {off:5.1%}, {one['verdict']}: {verdict}",
                flush=True,
            )
    most_off = max(abs(one["found"] - one["truth"]) for one in found.values())
    wrong = sum(one["right"] is False for one in found.values())
    harness.report("host_bottleneck", most_off=most_off, wrong=wrong, rows=found)


if __name__ == "__main__":
    main()
