"""Real `model.fit` runs under a clock that only the test moves."""

from __future__ import annotations

import keras
import numpy as np

import sources
from keras_tpu_ext.callbacks import Throughput

BATCHES = "throughput/batches_per_sec"
SAMPLES = "throughput/samples_per_sec"
BETWEEN = 1000.0  # seconds for each thing that must never count, so that one of them would show
COMPILE = 500.0


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


class Passing(keras.callbacks.Callback):
    """Lets time pass: `seconds[i]` in the i-th execution, `BETWEEN` around epochs and validation."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock = clock
        self.seconds = iter(seconds)
        self.batch_logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.batch_logs.append(dict(logs))

    def pass_between(self, *args, **kwargs):
        self.clock.now += BETWEEN

    def on_train_batch_begin(self, batch, logs=None):
        self.clock.now += next(self.seconds)

    on_train_begin = on_epoch_begin = on_epoch_end = on_test_begin = on_test_end = pass_between


def model_of(kind="functional", **options):
    layers = [keras.layers.Dense(1)]
    if kind == "sequential":
        model = keras.Sequential(layers)
    elif kind == "functional":
        x = keras.Input((2,))
        model = keras.Model(x, layers[0](x))
    else:
        model = kind()
    model.compile("sgd", "mse", **options)
    return model


def arrays(examples):
    return np.ones((examples, 2), "float32"), np.ones((examples, 1), "float32")


def dataset(examples, batch, known=True):
    return sources.batched(arrays(examples), batch, known)


def run(model, data, seconds, epochs=1, callbacks=(), fit=None, **options):
    """Fit and return history, the logs after each batch, and the callback."""
    clock = Clock()
    throughput = Throughput(clock=clock, **options)
    passing = Passing(clock, seconds)
    history = model.fit(
        data,
        epochs=epochs,
        verbose=0,
        shuffle=False,  # a dataset brings its own order, and Keras warns that it does
        callbacks=[throughput, passing, *callbacks],
        **(fit or {}),
    ).history
    return history, passing.batch_logs, throughput
