"""A training that others kill: `train` runs in a process of its own, and tells them what it does."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime import keras

SIZE, BATCH, EPOCHS = 330, 16, 4
X = np.random.default_rng(0).normal(size=(SIZE, 8)).astype("float32")
Y = X.sum(axis=1)
EVERY_S = 0.1  # from one save to the next
PAUSE_S = 0.01  # in each step, so that there is a time to kill it in


IS_KERAS2 = _runtime.message_terms.keras == "Keras 2"


class Batches(_runtime.PyDataset):
    def __len__(self):
        return SIZE // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


def generated():
    generator = np.random.default_rng(1)
    while True:
        rows = generator.integers(0, SIZE, BATCH)
        yield X[rows], Y[rows]


def tf_data(repeats):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(100)
    return (dataset.repeat() if repeats else dataset).batch(BATCH).prefetch(2)


def files_of_tf_data():
    import tensorflow as tf

    def read(file):
        first = file * SIZE // 5
        return tf.data.Dataset.from_tensor_slices(tuple(tf.constant(of)[first:][: SIZE // 5] for of in (X, Y)))

    return tf.data.Dataset.range(5).shuffle(5).interleave(read, cycle_length=2).shuffle(50).batch(BATCH).prefetch(2)


def grain_data():
    import grain

    rows = grain.MapDataset.source(np.arange(SIZE)).seed(1).shuffle()
    return rows.map(lambda row: (X[row], Y[row])).batch(BATCH, drop_remainder=True)


ARRAYS = {"x": X, "y": Y, "batch_size": BATCH}


class Kind(NamedTuple):
    """What is trained: the data, how the model is compiled, and on what."""

    data: Callable[[], dict[str, Any]] = lambda: ARRAYS
    compile: Mapping[str, Any] = MappingProxyType({})
    scope: Mapping[str, Any] = MappingProxyType({"replicas": 2})
    needs: str = "keras_tpu_ext"


KINDS = {
    "arrays": Kind(),
    "workers": Kind(lambda: {"x": Batches(), "workers": 2} if IS_KERAS2 else {"x": Batches(workers=2)}),
    "a generator": Kind(lambda: {"x": generated(), "steps_per_epoch": 15}),
    "accumulation and a loss scale": Kind(compile={"gradient_accumulation_steps": 4, "loss_scale": "dynamic"}),
    "executions of 3 steps": Kind(compile={"steps_per_execution": 3}),
    "sharded": Kind(scope={"shard": "fsdp", "mesh": (("data", 2), ("model", 4))}),
    "tf.data": Kind(lambda: {"x": tf_data(repeats=False)}, needs="tensorflow"),
    "tf.data, repeated": Kind(lambda: {"x": tf_data(repeats=True), "steps_per_epoch": 13}, needs="tensorflow"),
    "tf.data, files": Kind(lambda: {"x": files_of_tf_data()}, needs="tensorflow"),
    "Grain": Kind(lambda: {"x": grain_data()}, needs="grain"),
}
ONLY_ON_JAX = ("sharded", "Grain")
HERE = [
    name
    for name, kind in KINDS.items()
    if importlib.util.find_spec(kind.needs) and (keras.backend.backend() == "jax" or name not in ONLY_ON_JAX)
]
NEEDED = sorted({KINDS[name].needs for name in HERE})


def compiled(kind: Kind) -> Any:
    """Return a model with random numbers, statistics, moving averages and a schedule."""
    keras.utils.set_random_seed(3)
    if IS_KERAS2:
        keras.backend.experimental.enable_tf_random_generator()  # in a process of its own
    layers = keras.layers
    with kte.strategy_scope(require="cpu", **kind.scope):
        model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu")])
        for layer in (layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)):
            model.add(layer)
        optimizer = keras.optimizers.Adam(0.02, use_ema=True, ema_overwrite_frequency=7)
        model.compile(optimizer, "mse", metrics=["mae"], **kind.compile)
    return model


class Witness(keras.callbacks.Callback):
    """Knows every step, tells of each, and draws a decision from Python's random numbers.

    Args:
        tell: Takes the number of steps and the time.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__()
        self._tell = tell
        self.steps: list[Any] = []
        self.rates: list[float] = []

    def get_state(self) -> Any:
        return {"steps": self.steps, "rates": self.rates}

    def set_state(self, state: Any) -> None:
        self.steps, self.rates = list(state["steps"]), list(state["rates"])

    def on_train_begin(self, logs: Any = None) -> None:
        self._tell("begun", 0, time.monotonic())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.rates.append(random.random())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append((batch, float(logs["loss"]), float(logs["mae"])))
        self._tell("step", len(self.steps), time.monotonic())
        time.sleep(PAUSE_S)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(PAUSE_S)


def kill_in_a_save(function: str, call: int) -> None:
    """Let this process be killed in a call of a function of `os` that a save makes, counted from 1."""
    stock, left = getattr(os, function), [call]

    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return stock(*args, **kwargs)

    setattr(os, function, counted)


def train(
    name: str, directory: str | None, pipe: Any, dies_in: tuple[str, int] | None = None, *, by_keras: bool = False
) -> None:
    """Train, and send what came of it through a pipe.

    Args:
        name: Of a kind of training.
        directory: Of its checkpoints; `None` to train without `AutoResume`.
        pipe: Takes `("begun", 0, time)` when it begins, `("step", number, time)` after each step, and in the end
            `("end", whether it is finished, what came of it)`, or `("refused", error)` if it is not let in.
        dies_in: A function of `os`, and in which of its calls this process is to be killed.
        by_keras: Whether to save with Keras's `BackupAndRestore`, every 5 batches.
    """
    warnings.simplefilter("ignore")
    if dies_in is not None:
        kill_in_a_save(*dies_in)
    kind = KINDS[name]
    model = compiled(kind)
    witness = Witness(lambda *what: pipe.send(what))
    resume: Any = None
    if by_keras:
        resume = keras.callbacks.BackupAndRestore(directory, save_freq=5)
    elif directory is not None:
        resume = kte.callbacks.AutoResume(directory, every_s=EVERY_S)
    try:
        history = model.fit(
            **kind.data(),
            epochs=EPOCHS,
            verbose=0,
            validation_data=(X[:100], Y[:100]),
            callbacks=[
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
                keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True),
                keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=0, factor=0.5),
                witness,
                *([] if resume is None else [resume]),
            ],
        )
    except kte.errors.CheckpointError as error:
        pipe.send(("refused", str(error)))
        return
    outcome = {
        "weights": hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in model.get_weights())).hexdigest(),
        "optimizer": float(model.optimizer.learning_rate.numpy()),
        "history": history.history,
        "epochs": history.epoch,
        "steps": witness.steps,
        "rates": witness.rates,
    }
    pipe.send(("end", getattr(resume, "finished", True), outcome))
