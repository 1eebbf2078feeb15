"""How callbacks of Keras 3 are kept from writing.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`BackupAndRestore._save_model` and `BackupAndRestore._training_metadata_path`, and `utils.file_utils`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras
from keras.src.utils import file_utils

from keras_tpu_ext._runtime.training.chief import ChiefOnly, Place


class Keras3ChiefOnly(ChiefOnly):
    """A `ChiefOnly` for Keras 3, whose callbacks know nothing of other processes."""

    def _restore_alike(self: Any, backup: Any, restore: Callable[[], None]) -> None:
        # Before anything is restored: for variables that each process has a part of they wait for each other.
        self._check_same_epoch(_epoch_in(backup))
        restore()

    def _places_that_write(self: Any, callback: Any) -> list[Place]:
        places = super()._places_that_write(callback)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Without a folder in it, it makes none; and `model.save` writes nothing.
            name = "model.weights.h5" if callback.save_weights_only else "model.keras"
            places.append((callback, "filepath", lambda path: name))
        if isinstance(callback, keras.callbacks.BackupAndRestore):  # restores, but keeps and deletes nothing
            places.append((callback, "_save_model", lambda save: lambda: self.save_weights("model.weights.h5")))
            places.append((callback, "on_train_end", lambda delete: lambda logs=None: None))
        return places


def _epoch_in(backup: Any) -> int:
    """Return after how many epochs a `BackupAndRestore` lets training go on."""
    path = backup._training_metadata_path
    if not file_utils.exists(path):
        return 0
    with file_utils.File(path, "r") as file:
        return int(json.loads(file.read())["epoch"])
