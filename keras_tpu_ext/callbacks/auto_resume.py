"""Resume an interrupted training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext.callbacks._fit_observer import FitObserver
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError, ScopeError
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from keras_tpu_ext.resume.leaving import SESSIONS
from keras_tpu_ext.resume.resumable_fit import Left, ResumableFit
from keras_tpu_ext.resume.saver import is_not_finite
from keras_tpu_ext.resume.schedule import Schedule
from keras_tpu_ext.resume.storage import folder_of


class AutoResume(FitObserver):
    """Saves the state of a training, so that the same program, started again, resumes where it stopped.

    Training ends as if it had never been interrupted: with the same weights, history and callback decisions, from the
    same batches in the same order. On a CPU the result is equal to the bit, elsewhere as far as the hardware is
    deterministic.

    A checkpoint holds the whole state of the model and the random generators, the history, the position in the data
    in the middle of an epoch, and the attributes that other callbacks have changed since training began; your own may
    instead have `get_state()`, which returns numbers, strings, arrays, lists and dicts, and `set_state(state)`.
    docs/guides/resume.md says more.

    It saves every `every_s` seconds, in the background, and at the start of an epoch once 20 times the seconds of a
    save have passed. Before `deadline_s`, and on SIGTERM or Ctrl-C, it saves and `fit` returns, with `finished` set
    to `False`. A second Ctrl-C ends `fit` at once.

    Training goes on only with the same model and the same data; `on_changed_data` allows other data. A checkpoint is
    data: nothing in it is imported, called or used as a path. One process at a time may write into the folder.

    The model must have the step of this package: made in a `strategy_scope()`, or a `TPUModel`. If several processes
    train together, on JAX, the chief writes for all, into a folder that all can see; they save and stop before the
    same step. Keras 2 layers draw the same random numbers again only after
    `keras.backend.experimental.enable_tf_random_generator()`; a warning says so.

    Args:
        directory: Folder for the checkpoints of this training only; or a URL such as `"gs://bucket/run"`, which needs
            the packages fsspec and gcsfs.
        every_s: Seconds between saves. Defaults to 600.
        deadline_s: Seconds from the start of the process after which the session is ended from outside, `"kaggle"` (9
            hours), `"colab"` (12 hours), or `None` for no deadline. Defaults to `None`.
        margin: `fit` stops when less time is left than `margin` times that of a save and a step. Defaults to 2.0.
        keep: Number of checkpoints to keep. Defaults to 2, so that one is left if the newest is damaged. The last one
            with a finite loss is kept, too.
        on_changed_data: What to do if `fit` gets other data than before the interruption: `"raise"` (default) an
            error, or `"restart_epoch"`, to begin the interrupted epoch anew with them.

    Attributes:
        finished: Whether training has reached its end; `False` if `fit` returned before it.

    Raises:
        ArgumentError: If an argument is invalid; from `fit`, if its dataset is already distributed, or is a
            `PyDataset` with workers that has no end or is cut short by `steps_per_epoch`.
        CheckpointError: From `fit`, if the folder has a checkpoint of another model, of other data or of another
            version of this package, or if another process writes into it.
        ClusterError: From `fit`, if processes that train together find different checkpoints.
        NotForThisKerasError: From `fit`, if several processes train together on TensorFlow.
        ScopeError: From `fit`, if the model does not have the step of this package.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x = np.random.default_rng(0).normal(size=(512, 4))
        resume = kte.callbacks.AutoResume("checkpoints", deadline_s="kaggle")
        model.fit(x, x.sum(axis=1), epochs=2, callbacks=[resume])
        print("done" if resume.finished else "start this program again")
        ```
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_s: float = 600,
        deadline_s: float | str | None = None,
        margin: float = 2.0,
        keep: int = 2,
        on_changed_data: str = "raise",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.directory = folder_argument(name, directory)
        self.every_s = check.number(name, "every_s", every_s, minimum=0, example=600)
        self.deadline_s = _deadline(name, deadline_s)
        self.margin = check.number(name, "margin", margin, minimum=1, example=2.0)
        self.keep = check.integer(name, "keep", keep, example=2)
        self.on_changed_data = check.one_of(
            name, "on_changed_data", on_changed_data, ("raise", "restart_epoch"), example='"raise"'
        )
        self.finished = False
        # A callback that changes the current folder must not split the checkpoints over two.
        self._path = absolute(self.directory)
        self._fit: ResumableFit | None = None

    @contextlib.contextmanager
    def _kte_around_fit(self, call: _runtime.FitCall, model: Model) -> Iterator[None]:
        """Keras runs `fit`, or another loop of a model with the step of this package, inside the block."""
        if call.method != "fit":
            yield
            return
        others = [callback for callback in call.callbacks if callback is not self]
        _refuse_others_like_it(others)
        self.finished = False
        fit = self._fit = ResumableFit(
            CheckpointFolder(self._path, self.keep),
            Schedule(every_s=self.every_s, deadline_s=self.deadline_s, margin=self.margin),
            restarts_epoch=self.on_changed_data == "restart_epoch",
        )
        try:
            # The first must be called for a batch before the others, so that they have not been called for a batch
            # that is not saved; this one for an epoch after them, so that what they set at its start is restored.
            before = _BeforeOthers(fit, getattr(self, "params", None))  # which Keras 2 sets late
            with call.calling([before, *others, self]), fit.around(call, model, others):
                yield
        except Left:
            for callback in others:
                callback.on_train_end(fit.last_logs())
            fit.left()
        finally:
            self.finished = fit.finished
            self._fit = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Note the state of the other callbacks."""
        if self._fit is None:
            raise ScopeError(
                "AutoResume needs a model with the step of this package, and this one has that of Keras. Write: "
                "with keras_tpu_ext.strategy_scope(): ... around the lines that make and compile the model."
            )
        self._fit.begin()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Resume in the middle of the epoch, or save at its start."""
        if self._fit is not None:
            self._fit.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the number of batches."""
        if self._fit is not None:
            self._fit.after_batch(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Warn of a loss that is no finite number."""
        if self._fit is not None and is_not_finite([(logs or {}).get("loss", 0.0)]):
            self._fit.warn_that_it_diverged()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Note when validation begins."""
        if self._fit is not None:
            self._fit.schedule.begin_validation()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Note how long validation took."""
        if self._fit is not None:
            self._fit.schedule.end_validation()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save the final state."""
        if self._fit is not None:
            self._fit.end()


class _BeforeOthers(FitObserver):
    """Stands before the other callbacks of a `fit`."""

    def __init__(self, fit: ResumableFit, params: Any) -> None:
        super().__init__()
        self._fit = fit
        self.set_params(params)  # those of a `CallbackList`; Keras sets them in lists that it makes

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save if it is time."""
        self._fit.before_batch(batch, (self.params or {}).get("steps"))


def _refuse_others_like_it(others: list[Any]) -> None:
    for callback in others:
        if isinstance(callback, AutoResume):
            raise ArgumentError("AutoResume: `fit` got two of them. Give it one, with one directory.")
        if isinstance(callback, _runtime.keras.callbacks.BackupAndRestore):
            raise ArgumentError(
                "AutoResume: `fit` got a BackupAndRestore as well, which would set weights and epoch back to its "
                "own. Leave it out: AutoResume does what it does."
            )


def absolute(directory: str) -> str:
    """Return the absolute path of a folder; a URL as it is."""
    return directory if "://" in directory else os.path.abspath(directory)


def folder_argument(caller: str, directory: Any, name: str = "directory", example: str = "checkpoints") -> str:
    """Return a folder's path or URL, which was given as the argument `name`."""
    write = f'{name}="{example}"'
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        raise check.argument_error(caller, name, "the path of a folder", repr(directory), write)
    path = check.path(directory)
    try:
        folder_of(path)
    except (ImportError, ValueError) as error:
        needed = f"a folder, or a URL that fsspec opens (pip install fsspec gcsfs for gs://; here: {error})"
        raise check.argument_error(caller, name, needed, repr(path), write) from error
    return path


def _deadline(caller: str, deadline: Any) -> float | None:
    if isinstance(deadline, str):
        words = check.one_of(caller, "deadline_s", deadline, list(SESSIONS), example='"kaggle"')
        return SESSIONS[words]
    return check.optional(check.number, caller, "deadline_s", deadline, above=0, example=9 * 3600)
