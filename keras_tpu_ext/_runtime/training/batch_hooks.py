"""Which callbacks need to hear of every single batch.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`TensorBoard._should_trace`.
"""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.compat import keras, tree

# By method of the model: the hooks that hear of its batches.
_HOOKS = {
    "fit": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "evaluate": ("on_test_batch_begin", "on_test_batch_end"),
}


def needing_every_batch(callbacks: Any, method: str) -> list[str]:
    """Return the class names of those callbacks that asked for every batch of `method`.

    That is who overrides a batch hook, except Keras's own callbacks where they are set to work by the epoch,
    and a callback with an attribute `wants_every_batch = False`.

    Args:
        callbacks: What the user gave: `None`, a callback, a list or a `CallbackList`.
        method: `"fit"` or `"evaluate"`.
    """
    callbacks = getattr(callbacks, "callbacks", callbacks)
    every = [callback for callback in tree.flatten(callbacks) if callback is not None]
    return [type(callback).__name__ for callback in every if _wants(callback, _HOOKS[method])]


def _wants(callback: Any, hooks: tuple[str, ...]) -> bool:
    if not getattr(callback, "wants_every_batch", True):
        return False
    owners = {owner for hook in hooks if (owner := _owner(callback, hook)) is not keras.callbacks.Callback}
    return bool(owners) and not all(owner in _BY_EPOCH and _BY_EPOCH[owner](callback) for owner in owners)


def _owner(callback: Any, hook: str) -> Any:
    """Return the class that a hook comes from, or the callback itself where it was set on the object."""
    if hook in vars(callback):
        return callback
    return next((owner for owner in type(callback).__mro__ if hook in vars(owner)), keras.callbacks.Callback)


def _saves_by_epoch(callback: Any) -> bool:
    return callback.save_freq == "epoch"


def _writes_by_epoch(callback: Any) -> bool:
    return callback.update_freq == "epoch" and not callback.write_steps_per_second and not callback._should_trace


_BY_EPOCH = {
    keras.callbacks.ProgbarLogger: lambda callback: True,  # it shows progress: any execution will do
    keras.callbacks.ModelCheckpoint: _saves_by_epoch,
    keras.callbacks.BackupAndRestore: _saves_by_epoch,
    keras.callbacks.TensorBoard: _writes_by_epoch,
}
if hasattr(keras.callbacks, "OrbaxCheckpoint"):  # newer than the first Keras 3
    _BY_EPOCH[keras.callbacks.OrbaxCheckpoint] = _saves_by_epoch
