"""How each callback of TensorFlow Addons is tried: in `fit`, and by what it has done there."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from addons.tensorflow_addons_here import tfa
from addons.trial import Trial

keras = tf.keras


class Checkpoint:
    """Saves the averages of each epoch in a folder of its own."""

    def __call__(self) -> list[Any]:
        self.path = os.path.join(tempfile.mkdtemp(), "averages.h5")
        return [tfa.callbacks.AverageModelCheckpoint(False, self.path, save_weights_only=True)]

    def saved(self, model: Any) -> Any:
        """Return what was saved, which is not what the model has."""
        own = model.get_weights()
        model.load_weights(self.path)
        averages = model.get_weights()
        assert not any(np.array_equal(*pair) for pair in zip(own, averages, strict=True))
        return averages


class Stop:
    """Stops `fit` after its first epoch, where time is up at once."""

    def __call__(self) -> list[Any]:
        self.made = tfa.callbacks.TimeStopping(seconds=0)
        return [self.made]

    def stopped(self, model: Any) -> Any:
        assert self.made.stopped_epoch == 0
        return [self.made.stopped_epoch]


class Progress:
    """Shows bars, with what was counted in the last epoch."""

    def __call__(self) -> list[Any]:
        self.made = tfa.callbacks.TQDMProgressBar()
        return [self.made]

    def counted(self, model: Any) -> Any:
        """Return the batches that were counted, and the mean loss that is shown."""
        return [self.made.num_samples_seen, self.made.logs["loss"] / self.made.num_samples_seen]


checkpoint, stop, progress = Checkpoint(), Stop(), Progress()

CALLBACKS: dict[str, list[Trial]] = {
    "AverageModelCheckpoint": [
        Trial(
            optimizer=lambda model: tfa.optimizers.MovingAverage(keras.optimizers.legacy.SGD(0.1), 0.5),
            callbacks=checkpoint,
            after=checkpoint.saved,
        )
    ],
    "TQDMProgressBar": [
        Trial(callbacks=progress, after=progress.counted),
        Trial(
            callbacks=progress,
            after=progress.counted,
            ours={"steps_per_execution": 3},
            otherwise="It counts executions, so with `steps_per_execution` above 1 its bar stays behind.",
        ),
    ],
    "TimeStopping": [Trial(callbacks=stop, after=stop.stopped)],
}
