"""Processes that train together: all of them compute the same, and one of them writes and prints."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Callback
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext.errors import ClusterError

# Callbacks that do nothing but write or print.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
_VERBOSE = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)


class ProcessGroup:
    """The processes that train one model; each framework has its own kind."""

    def size(self) -> int:
        """Return the number of processes."""
        raise NotImplementedError

    def is_chief(self) -> bool:
        """Return whether this process writes and prints."""
        raise NotImplementedError

    def all_gather_int(self, number: int) -> list[int]:
        """Return the numbers that all processes pass to this call, in the same order on each."""
        raise NotImplementedError

    def explain_peer_failure(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the end of another process raises a `ClusterError` that suggests a fix."""
        raise NotImplementedError

    def end_with_peers(self) -> contextlib.AbstractContextManager[None]:
        """Return a context, entered by all processes, in which this one ends if an error ends another one."""
        return contextlib.nullcontext()

    def reading_shards(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading variables with shards on other processes; all processes must read them."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def take_part(
        self, call: FitCall, backup_epoch: Callable[[Callback], int], write_patches: Callable[[Callback], list[Patch]]
    ) -> Iterator[None]:
        """Within the block only the chief's callbacks write, and only the chief prints; see `ExactProgram`."""
        with self.explain_peer_failure(), self.end_with_peers(), patched(self._restore_patches(call, backup_epoch)):
            if self.is_chief():
                yield
                return
            call.arguments["verbose"] = 0
            with _silenced(call, write_patches):
                yield

    def _restore_patches(self, call: FitCall, backup_epoch: Callable[[Callback], int]) -> list[Patch]:
        """Let every `BackupAndRestore` check first that all processes resume at the same epoch."""

        def checked(backup: Callback, restore: Callable[..., None]) -> Callable[..., None]:
            def check_and_restore(logs: object = None) -> None:
                # Before anything is restored: restoring sharded variables makes processes wait for each other.
                self._check_same_epoch(backup_epoch(backup))
                restore(logs)

            return check_and_restore

        return [
            (callback, "a BackupAndRestore's on_train_begin", functools.partial(checked, callback))
            for callback in call.callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
        ]

    def _check_same_epoch(self, epoch: int) -> None:
        epochs = self.all_gather_int(epoch)
        if len(set(epochs)) > 1:
            raise ClusterError(
                "BackupAndRestore found another backup in one process than in another: they would go on "
                f"after {' and '.join(map(str, epochs))} epochs. All of them must see the folder that the "
                "chief writes. What to do: give it a path on storage that they share, or copy the chief's folder "
                "to every machine before they start."
            )


@contextlib.contextmanager
def _silenced(call: FitCall, write_patches: Callable[[Callback], list[Patch]]) -> Iterator[None]:
    """Leave out callbacks that only write; within the block, Keras's other callbacks neither write nor print."""
    remaining = [callback for callback in call.callbacks if not isinstance(callback, _WRITERS)]
    patches: list[Patch] = [
        (callback, "a callback's verbose", lambda verbose: 0)
        for callback in remaining
        if isinstance(callback, _VERBOSE)
    ]
    patches += [patch for callback in remaining for patch in write_patches(callback)]
    with call.calling(remaining), patched(patches):
        yield
