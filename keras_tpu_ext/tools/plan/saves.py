"""Which callbacks save the model, how often, and how long one save takes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks import AutoResume
from keras_tpu_ext.tools.plan.report import Cost, Seconds

_WRITTEN = 2**26  # bytes at most, to measure the disk
_TIMES = 3


class Saves(NamedTuple):
    """The saves of one callback in a training."""

    callback: str  # name of its class
    times: Seconds  # how many there are
    weights_only: bool  # whether the optimizer's state is left out


def find_saves(callbacks: Sequence[Any], epochs: int, steps: int, seconds: float) -> tuple[list[Saves], list[str]]:
    """Return the saves of each callback that saves, and the names of the others.

    Args:
        callbacks: The callbacks of the training.
        epochs: The number of epochs.
        steps: The number of steps of an epoch.
        seconds: How long the training takes without its saves.
    """
    known = _runtime.keras.callbacks
    saves, others = [], []
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, AutoResume):
            # Written beside the training; only the last one is waited for.
            saves.append(Saves(name, Seconds(1, 1, 1 + epochs + seconds / max(callback.every_s, 1.0)), False))
        elif isinstance(callback, (known.ModelCheckpoint, known.BackupAndRestore)):
            every = getattr(callback, "save_freq", "epoch")
            count = epochs if every == "epoch" else epochs * steps // max(int(every), 1)
            fewest = 1 if getattr(callback, "save_best_only", False) else count
            weights_only = getattr(callback, "save_weights_only", False)
            saves.append(Saves(name, Seconds(count, fewest, count), weights_only))
        else:
            others.append(name)
    return saves, others


def save_cost(saves: Sequence[Saves], one: Callable[[bool], Seconds], how: str) -> Cost:
    """Return the cost of all saves, of which `one` gives a single one, with the optimizer's state or without."""
    total = Seconds.exactly(0.0)
    for save in saves:
        each, count = one(save.weights_only), save.times
        total += Seconds(each.middle * count.middle, each.low * count.low, each.high * count.high)
    often = max(saves, key=lambda save: save.times.middle).callback
    write = "AutoResume(directory, every_s=1800)" if often == "AutoResume" else f"{often}(..., save_freq=10_000)"
    return Cost("checkpoint", total, how, write)


def measured_save(model: Any, weights_only: bool) -> Seconds:
    """Return how long it takes to save the model here, with `save` or `save_weights`."""
    save, ending = (model.save_weights, ".weights.h5") if weights_only else (model.save, ".keras")
    return _timed(lambda path: save(path + ending))


def written(num_bytes: int) -> Seconds:
    """Return how long this machine takes to write so many bytes to the folder of temporary files."""
    block = np.zeros(max(min(num_bytes, _WRITTEN), 1), "uint8").tobytes()

    def write(path: str) -> None:
        with open(path, "wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())

    return _timed(write) * (num_bytes / len(block))


def _timed(save: Callable[[str], object]) -> Seconds:
    """Return how long it takes to save to a path, a few times."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_TIMES):
            begin = time.perf_counter()
            save(os.path.join(folder, str(number)))
            taken.append(time.perf_counter() - begin)
    return Seconds.of(taken)
