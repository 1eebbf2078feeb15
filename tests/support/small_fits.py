"""A small model on two replicas, and callbacks that do something at a chosen batch, for tests of `AutoResume`."""

import keras
import numpy as np

import keras_tpu_ext as kte

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def model():
    keras.utils.set_random_seed(3)
    with kte.strategy_scope(require="cpu", replicas=2):
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made.compile("adam", "mse")
    return made


def fit(callbacks, *, made=None, epochs=2):
    """Train four steps an epoch."""
    made = made or model()
    made.fit(X, X.sum(axis=1), batch_size=16, epochs=epochs, verbose=0, callbacks=callbacks)
    return made


class Calling(keras.callbacks.Callback):
    """Calls a function before a batch, counted from the first of the process."""

    def __init__(self, batch, function):
        super().__init__()
        self.left, self.function = batch, function

    def get_state(self):
        return None

    def set_state(self, state):
        """Go on counting."""

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == -1:
            self.function()


class Killed(BaseException):
    """Stands for the end of a process between two steps."""


class KilledAt(Calling):
    """Ends `fit` before a batch, counted from the first that this process trains on; `None` ends none."""

    async_safe = True

    def __init__(self, batch):
        super().__init__(-1 if batch is None else batch, kill)


def kill():
    """Stand for the end of this process."""
    raise Killed
