"""`pad_batches` for a `keras.utils.PyDataset`, in NumPy, without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import MARK, GivesPaddedBatches, PaddedBatch, UnweightedPaddedBatch
from keras_tpu_ext.errors import ArgumentError


class PaddedPyDataset(GivesPaddedBatches, _runtime.PyDataset):
    """A `PyDataset` whose batches are the padded ones of another."""

    def __init__(self, dataset: Any, size: int) -> None:
        super().__init__()
        for option in ("workers", "use_multiprocessing", "max_queue_size"):
            if hasattr(dataset, option):  # in Keras 2 they are options of `fit`
                setattr(self, option, getattr(dataset, option))
        self.dataset = dataset
        self.size = size

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def num_batches(self) -> int | None:
        """Return the number of batches of the other dataset."""
        number: int | None = getattr(self.dataset, "num_batches", len(self.dataset))  # Keras 2 does not have it
        return number

    def __getitem__(self, index: int) -> PaddedBatch:
        batch = self.dataset[index]
        parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
        if not 1 <= len(parts) <= 3:
            raise ArgumentError(
                f"pad_batches needs batches of x, (x, y) or (x, y, sample_weight); number {index} has {len(parts)} "
                "parts. Put several inputs into one structure: return (a, b), y."
            )
        return padded(*(*parts, None, None)[:3], size=self.size)

    def on_epoch_begin(self) -> None:
        """Tell the other dataset."""
        if hasattr(self.dataset, "on_epoch_begin"):  # Keras 2 does not have it
            self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tell the other dataset."""
        self.dataset.on_epoch_end()


def padded(x: Any, y: Any, weight: Any, *, size: int) -> PaddedBatch:
    """Return a batch of NumPy arrays padded to `size` rows."""
    tree = _runtime.tree
    rows = len(next(leaf for leaf in tree.flatten(x) if leaf is not None))
    if not 1 <= rows <= size:
        cure = "Give batch_size the size of the largest batch." if rows else "Leave such a batch out."
        raise ArgumentError(f"pad_batches got batch_size={size}, and a batch of {rows} rows. {cure}")
    places = np.minimum(np.arange(size), rows - 1)

    def fill(leaf: Any) -> Any:
        return None if leaf is None else np.asarray(leaf)[places]

    def fill_weight(leaf: Any) -> Any:
        if leaf is None:
            return None
        filled = fill(np.asarray(leaf, np.float32) + np.float32(0.0))  # the user's minus zero becomes zero
        filled[rows:] = MARK
        return filled

    kind = UnweightedPaddedBatch if weight is None else PaddedBatch
    weight = np.ones([rows], np.float32) if weight is None else weight
    return kind(tree.map_structure(fill, x), tree.map_structure(fill, y), tree.map_structure(fill_weight, weight))
