"""Of several processes that train together, one writes and prints."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.compat import keras, tree
from keras_tpu_ext.errors import ClusterError

# They do nothing but write or print.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
_TALKERS = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)
Place = tuple[Any, str, Callable[[Any], Any]]


class ChiefOnly:
    """Lets a model print and write on one process only, while all of them compute the same.

    The runtime's `TrainStep` inherits from this and may override the methods that say what is true of it.
    """

    def _is_chief(self) -> bool:
        """Return whether this process writes and prints."""
        return True

    def _saves_together(self) -> bool:
        """Return whether saving reads what the processes have parts of, so that all of them must take part."""
        return False

    def _all_gather_int(self, number: int) -> list[int]:
        """Return the numbers that all processes call this with, the same on each of them."""
        return [number]

    def _restore_alike(self, backup: Any, restore: Callable[[], None]) -> None:
        """Restore what a `BackupAndRestore` has kept, and `_check_same_epoch`, in the order that is safe."""
        raise NotImplementedError

    def _check_same_epoch(self, epoch: int) -> None:
        """Raise a `ClusterError` if not every process calls this with the same number of epochs that are done."""
        epochs = self._all_gather_int(epoch)
        if len(set(epochs)) > 1:
            raise ClusterError(
                "BackupAndRestore found another backup in one process than in another: they would go on "
                f"after {' and '.join(map(str, epochs))} epochs. All of them must see the folder that the "
                "chief writes. What to do: give it a path on storage that they share, or copy the chief's folder "
                "to every machine before they start."
            )

    def _places_that_write(self, callback: Any) -> list[Place]:
        """Return what of `callback` has to be something else while it must not write or print, see `patched`."""
        return [(callback, "verbose", lambda verbose: 0)] if isinstance(callback, _TALKERS) else []

    def _explain_peer_failure(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the end of another process is told in words."""
        return contextlib.nullcontext()

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does; only the chief prints, and only its callbacks write."""
        model: Any = super()
        with self._in_its_role("fit", args, kwargs) as call:
            return model.fit(*call.args[1:], **call.kwargs)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does; only the chief prints, and only its callbacks write."""
        model: Any = super()
        with self._in_its_role("evaluate", args, kwargs) as call:
            return model.evaluate(*call.args[1:], **call.kwargs)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does, all of the data on every process; only the chief prints."""
        model: Any = super()
        with self._in_its_role("predict", args, kwargs) as call:
            return model.predict(*call.args[1:], **call.kwargs)

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; call it on every process, and the chief writes."""
        model: Any = super()
        self._write(model.save, filepath, args, kwargs)

    def save_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save_weights` does; call it on every process, and the chief writes."""
        model: Any = super()
        self._write(model.save_weights, filepath, args, kwargs)

    def _write(self: Any, save: Callable[..., None], filepath: Any, args: Any, kwargs: Any) -> None:
        with self._explain_peer_failure():
            if self._is_chief():
                save(filepath, *args, **kwargs)
            elif self._saves_together():
                # The same reads in the same order as the chief's. No other way is sure to have them all.
                with tempfile.TemporaryDirectory() as folder:
                    save(os.path.join(folder, os.path.basename(str(filepath))), *args, **kwargs)

    @contextlib.contextmanager
    def _in_its_role(self: Any, method: str, args: Any, kwargs: Any) -> Iterator[inspect.BoundArguments]:
        """Yield the arguments of a call to a method of `keras.Model`, as they are for this process."""
        call = inspect.signature(getattr(keras.Model, method)).bind(self, *args, **kwargs)
        callbacks = call.arguments.get("callbacks")
        with self._explain_peer_failure(), patched(_restoring_alike(self, callbacks)):
            if self._is_chief():
                yield call
                return
            call.arguments["verbose"] = 0
            with _without_writing(self, callbacks) as call.arguments["callbacks"]:
                yield call


@contextlib.contextmanager
def _without_writing(model: Any, callbacks: Any) -> Iterator[Any]:
    """Yield `callbacks` without those that only write; in the block Keras's others neither write nor print."""
    in_list = isinstance(callbacks, keras.callbacks.CallbackList)
    every = _flat(callbacks)
    kept = [callback for callback in every if not isinstance(callback, _WRITERS)]
    if in_list:
        callbacks.callbacks = kept
    try:
        with patched([place for callback in kept for place in model._places_that_write(callback)]):
            yield callbacks if in_list else kept
    finally:
        if in_list:
            callbacks.callbacks = every


def _flat(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return [callback for callback in tree.flatten(callbacks) if callback is not None]


def _restoring_alike(model: Any, callbacks: Any) -> list[Place]:
    """Let every `BackupAndRestore` check that all processes go on at the same epoch."""

    def checked(backup: Any, restore: Callable[..., None]) -> Callable[..., None]:
        return lambda logs=None: model._restore_alike(backup, lambda: restore(logs))

    backups = [one for one in _flat(callbacks) if isinstance(one, keras.callbacks.BackupAndRestore)]
    return [(backup, "on_train_begin", functools.partial(checked, backup)) for backup in backups]
