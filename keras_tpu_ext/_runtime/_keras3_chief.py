"""How callbacks of Keras 3 are kept from writing.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`BackupAndRestore._save_model` and `Trainer._initial_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_ext._runtime._keras_chief import ChiefOnly, Place


class Keras3ChiefOnly(ChiefOnly):
    """A `ChiefOnly` for Keras 3, whose callbacks know nothing of other processes."""

    def _restore_alike(self: Any, backup: Any, restore: Callable[[], None]) -> None:
        restore()
        self._check_same_epoch(int(self._initial_epoch or 0))

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
