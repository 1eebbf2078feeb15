"""What `AutoResume` costs a training that it saves every 100 steps, beside the same without it.

    KERAS_BACKEND=jax python benchmarks/auto_resume.py [--pairs 5] [--steps 350] [--batch 4] [--side 96]
    KERAS_BACKEND=jax python benchmarks/auto_resume.py --accelerator --batch 128 --side 224    # on one GPU or TPU

The model is Keras's ResNet50 for 1,000 classes, of 102 MB, with SGD and momentum, so that 205 MB are saved. It trains
for an epoch on a batch of random images that is in memory, in turns with and without the callback. Printed are the
paired ratios, what a save costs, how long Python stood still for one, and for how long a thread beside it then copied
and wrote. The save after the last step, for which `fit` waits, is not in the ratio. The last line is JSON.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import keras
import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext.resume.resumable_fit import ResumableFit
from keras_tpu_ext.resume.saver import Saver
from keras_tpu_ext.resume.schedule import Schedule

CLASSES = 1000
EVERY = 100  # steps from one save to the next


class OneBatch(keras.utils.PyDataset):
    """The same batch of random images, again and again.

    Args:
        steps: Number of batches in an epoch.
        size: Number of images.
        side: Their height and width.
    """

    def __init__(self, steps: int, size: int, side: int) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.batch = rng.integers(0, 256, (size, side, side, 3), "uint8"), rng.integers(0, CLASSES, size)
        self.steps = steps

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.steps

    def __getitem__(self, index: int) -> Any:
        """Return the batch."""
        return self.batch


class Epoch(keras.callbacks.Callback):
    """Times an epoch."""

    async_safe = True  # or Keras on JAX waits for each step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin."""
        self.begun = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End; Keras has waited for the last step."""
        self.seconds = time.perf_counter() - self.begun


class Turns:
    """Trains a model for an epoch, with and without the callback.

    Args:
        model: The model.
        batches: The data.

    Attributes:
        stood_still: For each save the seconds in which no step was begun.
        wrote: For each save the seconds in which it was copied and written beside the steps.
        bytes: Size of a checkpoint.
    """

    def __init__(self, model: Any, batches: OneBatch) -> None:
        self.model, self.batches = model, batches
        self.stood_still: list[float] = []
        self.wrote: list[float] = []
        self.bytes = 0

    def without(self) -> float:
        """Train without it and return the seconds of the epoch."""
        return self._fit()

    def saving(self) -> float:
        """Train with it and return the seconds of the epoch."""
        with tempfile.TemporaryDirectory() as folder:
            seconds = self._fit(kte.callbacks.AutoResume(folder))
            self.bytes = max(path.stat().st_size for path in Path(folder).iterdir())
        return seconds

    def save_by_steps(self) -> None:
        """Let it save by steps and not by the clock, and note how long that takes; the save at the end is none."""
        Schedule.begin_step = _counting(Schedule.begin_step)  # type: ignore[method-assign]
        Schedule.is_due = _every_so_many_steps  # type: ignore[method-assign]
        ResumableFit._save = _timed(ResumableFit._save, self.stood_still, lambda fit: not fit.finished)
        Saver._write = _timed(Saver._write, self.wrote, lambda saver: True)

    def _fit(self, *callbacks: Any) -> float:
        epoch = Epoch()
        self.model.fit(self.batches, verbose=0, callbacks=[epoch, *callbacks])
        return epoch.seconds


def _every_so_many_steps(schedule: Any, *, is_epoch: bool) -> bool:
    steps = getattr(schedule, "steps", 0)
    return not is_epoch and steps > 0 and steps % EVERY == 0


def _counting(method: Any) -> Any:
    def counting(self: Any, *args: Any, **options: Any) -> Any:
        self.steps = getattr(self, "steps", -1) + 1
        return method(self, *args, **options)

    return counting


def _timed(method: Any, seconds: list[float], counts: Any) -> Any:
    def timed(self: Any, *args: Any, **options: Any) -> Any:
        counted, begun = counts(self), time.perf_counter()
        result = method(self, *args, **options)
        if counted:
            seconds.append(time.perf_counter() - begun)
        return result

    return timed


def compiled(side: int, on_accelerator: bool) -> Any:
    """Return the model, on the GPU or TPU that there is or on the CPU."""
    with kte.strategy_scope(replicas=1, require=None if on_accelerator else "cpu", precision="auto"):
        inputs = keras.Input((side, side, 3), dtype="uint8")
        network = keras.applications.ResNet50(
            weights=None, input_shape=(side, side, 3), classes=CLASSES, classifier_activation=None
        )
        model = keras.Model(inputs, network(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


def main() -> None:
    """Print what it costs, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--steps", type=int, default=350, help="steps of a turn (default 350)")
    parser.add_argument("--batch", type=int, default=4, help="images in a batch (default 4)")
    parser.add_argument("--side", type=int, default=96, help="height and width of an image (default 96)")
    parser.add_argument("--accelerator", action="store_true", help="train on one GPU or TPU, and not on the CPU")
    options = parser.parse_args()
    batches = OneBatch(options.steps, options.batch, options.side)
    turns = Turns(compiled(options.side, options.accelerator), batches)
    turns.save_by_steps()
    row = harness.paired(turns.saving, turns.without, pairs=options.pairs)
    saves, step_s = len(turns.stood_still) / (options.pairs + 1), row["b_s"] / options.steps
    costs = [(ratio - 1) * options.steps / (saves * EVERY) for ratio in (row["ratio"], *row["interval"])]
    row |= {"steps": options.steps, "saves_a_turn": saves, "bytes": turns.bytes, "step_s": step_s, "costs": costs}
    row |= {"stood_still_s": statistics.median(turns.stood_still), "wrote_s": statistics.median(turns.wrote)}
    size = f"{row['bytes'] / 1e6:.0f} MB"
    print(f"{saves:.0f} saves of {size} in {options.steps} steps of {1e3 * step_s:.1f} ms: {harness.in_words(row)}")
    median, low, high = (f"{100 * cost:.1f} %" for cost in costs)
    print(f"a save every {EVERY} steps costs {median} of the time ({low} to {high})")
    stood_still, wrote = (f"{row[key]:.3f} s" for key in ("stood_still_s", "wrote_s"))
    print(f"for a save Python stands still for {stood_still}; {wrote} are writing beside it")
    harness.report("auto_resume", batch=options.batch, side=options.side, **row)


if __name__ == "__main__":
    main()
