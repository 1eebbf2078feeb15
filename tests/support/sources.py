"""Batches for `fit`, in the forms that the runtime at hand takes."""

from __future__ import annotations

import importlib.util

import keras
import numpy as np

HAS_TF_DATA = importlib.util.find_spec("tensorflow") is not None


class Batches(keras.utils.PyDataset):
    """Items that are batches already."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def regression(examples=64):
    """Return `x` and `y` of a linear function."""
    x = np.random.default_rng(0).normal(size=(examples, 3)).astype("float32")
    return x, x @ np.array([[1.0], [-2.0], [0.5]], "float32")


def cut(arrays, batch_size):
    """Return `(x, y, ...)` as a list of batches; the last one may be short."""
    rows = len(keras.tree.flatten(arrays)[0])
    return [
        keras.tree.map_structure(lambda array, i=i: array[i : i + batch_size], tuple(arrays))
        for i in range(0, rows, batch_size)
    ]


def batched(arrays, batch_size, known=True, drop_remainder=False):
    """Return batches of `(x, y, ...)`: a `tf.data.Dataset` where TensorFlow is, else what Keras takes without it.

    Without TensorFlow data of unknown length is a generator, good for one epoch. `drop_remainder` lets `tf.data` know
    the size of a batch; the batches must divide.
    """
    if HAS_TF_DATA:
        import tensorflow

        batches = tensorflow.data.Dataset.from_tensor_slices(tuple(arrays)).batch(batch_size, drop_remainder)
        return batches if known else batches.filter(lambda *_: True)
    batches = cut(arrays, batch_size)
    return Batches(batches) if known else (batch for batch in batches)


def endless(arrays, batch_size):
    """Return the batches of `(x, y, ...)` over and over, for `steps_per_epoch`."""
    if HAS_TF_DATA:
        return batched(arrays, batch_size).repeat()
    return (batch for _ in iter(int, 1) for batch in cut(arrays, batch_size))
