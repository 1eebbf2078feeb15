"""One `fit` that saves its state, and resumes from the state that an earlier one saved."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common import user_frame
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.common.values import Place, SavedVariable
from keras_tpu_ext.checks.schema import plain
from keras_tpu_ext.errors import CheckpointError, ClusterError, ResumeWarning
from keras_tpu_ext.resume.callback_state import OF_KERAS, CallbackStates, LostStateWarnings
from keras_tpu_ext.resume.checkpoint import Checkpoint, CheckpointFolder, Found
from keras_tpu_ext.resume.data_spec import DataSpec, data_spec
from keras_tpu_ext.resume.leaving import say
from keras_tpu_ext.resume.lock import FolderLock
from keras_tpu_ext.resume.opening import (
    changes_of_data,
    check_framework,
    read_folder,
    refusal_of_data,
    take_folder,
    warn,
    where_it_goes_on,
)
from keras_tpu_ext.resume.saver import Saver, copied_to_host, is_not_finite
from keras_tpu_ext.resume.schedule import Schedule
from keras_tpu_ext.resume.tensor_file import CannotWriteError

_MOST_THREADS = 64  # in which Keras on JAX may call hooks at once: its pool has at most 32


class Left(BaseException):
    """Ends a `fit` between two steps. An `except Exception` in a callback must not catch it."""


class ResumableFit:
    """One `fit` that can be resumed.

    Args:
        folder: Where the checkpoints are.
        schedule: When it saves, and when it stops early.
        restarts_epoch: Whether to begin the interrupted epoch anew if the data are others, or else to refuse them.
    """

    def __init__(self, folder: CheckpointFolder, schedule: Schedule, *, restarts_epoch: bool) -> None:
        self._folder = folder
        self.schedule = schedule
        self._restarts_epoch = restarts_epoch
        self._lock = FolderLock(folder.folder)
        self._saver = Saver(folder, self._lock)
        self._saver.wait_for_others()
        self._found: Found | None = None
        self._saved: Checkpoint | None = None
        self._data: _runtime.ResumablePasses
        self._spec: DataSpec
        self._model: Model
        self._others: list[Any]
        self._states: CallbackStates
        self._epochs = 1  # the `epochs` argument of `fit`
        self._epoch: int | None = None
        self._before_epoch = 0  # batches of all earlier epochs
        self._batch = 0  # batches of this epoch before the current execution
        # Ends of executions of this epoch, each as the batches until then; on JAX in the order of several threads.
        self._ends: deque[int] = deque(maxlen=_MOST_THREADS)
        self._is_first_batch = True
        self._history: Mapping[str, Any] | None = None
        self._place: Place | None = None  # where the data are resumed
        self._lost = LostStateWarnings()
        self._is_chief = _runtime.devices.is_chief()
        self._processes = 1
        self._is_on_host = False  # whether variables are copied to the host, after a failure on the device
        self._why = ""  # why it stops early
        self.finished = False  # whether nothing is left to do

    @contextlib.contextmanager
    def around(self, call: _runtime.FitCall, model: Model, others: list[Any]) -> Iterator[None]:
        """Keras runs `fit` inside the block, with these other callbacks."""
        self._model, self._others = model, others
        with contextlib.ExitStack() as stack:
            stack.push(self._wait_for_saver)
            if self._is_chief:
                take_folder(self._folder, self._lock)
            self._found, self._saved = read_folder(self._folder, warns=self._is_chief)
            self._check_same_checkpoint()
            self._epochs = epochs = int(call.arguments.get("epochs", 1))
            first_epoch, seed = None, None
            self._datasets = [] if call.py_dataset is None else [call.py_dataset]
            saved, self._spec = self._saved, data_spec(call)
            if saved is not None:
                check_framework(self._folder.path, saved)
                if saved.diverged:
                    self.warn_that_it_diverged()
                # It may have ended before its last epoch, such as by EarlyStopping; or `fit` now has fewer epochs.
                is_finished = saved.finished and saved.epochs >= epochs
                self.finished = is_finished or saved.epoch >= epochs
                first_epoch = epochs if self.finished else saved.epoch
                seed = saved.seed
                self._say(where_it_goes_on(self._folder.path, saved, is_finished=self.finished))
                changes = changes_of_data(saved, self._spec, epochs)
                self._accept(changes)
                self._place = None if self.finished or changes else saved.place
            self._data = stack.enter_context(_runtime.training_state.reading_batches(call, first_epoch, seed))
            stack.enter_context(self.schedule.interruption.heeding_signals())
            with self._telling_refusals():
                yield

    @contextlib.contextmanager
    def _telling_refusals(self) -> Iterator[None]:
        """Complete errors of what reads the data; of another thread, a framework puts them into its own."""
        try:
            yield
        except Exception as error:
            refusal = error if isinstance(error, CheckpointError) else self._data.refusal
            if refusal is None or str(refusal).startswith("AutoResume"):
                raise
            raise self._refusal_of_data([str(refusal)]) from refusal

    def _wait_for_saver(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not KeyboardInterrupt:  # raised by the second Ctrl-C, which ends `fit` at once
            self._saver.close()
        self._saver.release()

    def _accept(self, changes: list[str]) -> None:
        """Refuse other data, unless the epoch is to begin anew with them."""
        if changes and not self._restarts_epoch:
            raise self._refusal_of_data(changes)
        if changes:
            warn(f"the data are others than when this was saved ({'; '.join(changes)}), so it begins the epoch anew")

    def _refusal_of_data(self, changes: list[str]) -> CheckpointError:
        return refusal_of_data(self._folder.path, changes, may_restart=not self._restarts_epoch)

    def _check_same_checkpoint(self) -> None:
        """Refuse to resume if processes that train together have found different checkpoints."""
        batches = self._gather(0 if self._saved is None else self._saved.batches + 1)
        self._processes = len(batches)
        if len(set(batches)) > 1:
            found = " and ".join(f"{one - 1:,} batches" if one else "none" for one in batches)
            raise ClusterError(
                f"AutoResume found another checkpoint in {self._folder.path} in one process than in another: "
                f"{found}. All of them must see the folder that the chief writes. What to do: give it a path on "
                "storage that they share, or copy the chief's folder to every machine before they start."
            )

    def _gather(self, number: int) -> list[int]:
        return _runtime.training_state.all_gather_int(self._model, number)

    def begin(self) -> None:
        """Note the state of callbacks when training begins; if nothing is left to do, restore the final state."""
        self._states = CallbackStates(self._others, but=OF_KERAS, variables=self._variables, names=self._names)
        self._states_of_data = CallbackStates(self._datasets, variables=self._variables)
        saved = self._saved
        if saved is None:
            return
        if self._place is not None:
            of_data = functools.partial(self._states_of_data.assign, saved.data_state)
            self._data.resume(self._place, saved.batch, of_data)
        if saved.finished or self.finished:  # saved before the start of an epoch, not after it; or no epoch starts
            self._resume()

    def _names(self) -> frozenset[str]:
        """Return the names of what this model logs."""
        model = self._model
        try:
            of_metrics = model.get_metrics_result() if hasattr(model, "get_metrics_result") else model.metrics_names
        except Exception:  # a metric of the user's own may raise anything
            of_metrics = ()
        names = {"loss", "lr", "learning_rate", *of_metrics}
        return frozenset([*names, *(f"val_{name}" for name in names)])

    def _variables(self) -> list[Any]:
        return [variable for _, variable in _runtime.training_state.all_variables(self._model)]

    def begin_epoch(self, epoch: int) -> None:
        """Resume in the middle of an epoch if it was saved there, and save at the start of every later epoch."""
        is_first = self._epoch is None
        if is_first:
            self._states.note_attributes()
            self._states_of_data.note_attributes()
        self._before_epoch += max(self._ends, default=0)
        self._epoch, self._batch = epoch, 0
        self._ends.clear()
        is_saved = self._saved is not None
        if is_saved:
            self._resume()
        elif is_first and self._history is not None:
            self._restore_history()
        self._is_first_batch = True
        self._data.begin_epoch(self._before_epoch + self._batch)
        self.schedule.begin_epoch()
        self._save_if_due(is_epoch=not is_first, is_saved=is_saved)

    def before_batch(self, batch: int, batches: int | None) -> None:
        """Save if a save is due, before the execution that starts with a batch of the epoch."""
        steps = int(self._model.steps_per_execution)
        self._batch = batch
        self._data.note_trained(self._before_epoch + batch)
        is_last = batches is not None and batch + steps >= batches
        self.schedule.begin_step(is_first=self._is_first_batch, is_last=is_last)
        if not self._is_first_batch:
            self._save_if_due()
        self._is_first_batch = False
        if not _runtime.progress.end_names_last_batch():
            self._ends.append(batch + steps)

    def after_batch(self, batch: int) -> None:
        """Note the end of an execution, for which the other callbacks have been called."""
        if _runtime.progress.end_names_last_batch():
            self._ends.append(batch + 1)
        if self._data.read_again:
            self._say(
                "batches read again, to return to the position in the data: "
                f"{self._data.read_again:,}, in {self._data.seconds:.1f} s."
            )
            self._data.read_again = 0

    def end(self) -> None:
        """Save the final state."""
        if self.finished:
            self._restore_history()
            return
        self.finished = True
        self._before_epoch += max(self._ends, default=0)
        self._ends.clear()  # if the data has ended, an execution has only begun
        self._epoch, self._batch = (0 if self._epoch is None else self._epoch + 1), 0
        self._data.end_epochs(self._before_epoch)
        self._save_at_once(self._data.place(at_once=True) or Place(0, 0, None, None, None))

    def left(self) -> None:
        """Print how to resume, after the callbacks have been called for the end."""
        why = self._why
        if self._saver.has_failed:
            self._say(f"stopped, {why}, and could not save. {self._what_is_kept()}")
        else:
            self._say(f"stopped, {why}. Start the same program again to continue from here.")

    def _say(self, text: str) -> None:
        if self._is_chief:
            say(text)

    def last_logs(self) -> dict[str, Any]:
        """Return the logs of the last epoch that has ended."""
        return {name: values[-1] for name, values in self._model.history.history.items() if values}

    def _save_if_due(self, *, is_epoch: bool = False, is_saved: bool = False) -> None:
        writing = self._saver.seconds
        why = self.schedule.leaves(writing)
        leaves = bool(why)
        may_save = not (is_saved or self._saver.is_writing())
        is_due = leaves or (may_save and self.schedule.is_due(writing, is_epoch=is_epoch))
        if self._processes > 1:
            is_due = is_due and self._is_chief
            leaves, is_due = self.schedule.agree(self._gather, leaves=leaves, is_due=is_due)
        if not is_due:
            return
        place = self._data.place(at_once=leaves)
        if place is None:
            return
        self._why = (why or "as another process was asked to") if leaves else ""
        if not leaves:
            self._save(place)
        else:
            self._save_at_once(place)
            self.schedule.interruption.is_heeded = True
            raise Left

    def _save_at_once(self, place: Place) -> None:
        """Save, and wait until it is written: copies on the device would save no time."""
        self._save(place, at_once=True)
        self._finish_writing()

    def _save(self, place: Place, *, at_once: bool = False) -> None:
        """Begin to save."""
        self._finish_writing()  # the previous save, which may have failed
        self.schedule.begin_save()
        try:
            # All processes must read.
            variables = _runtime.training_state.read(self._model, on_host=at_once or self._is_on_host)
        except Exception as error:
            if self._processes > 1:  # the others wait for this process
                raise
            self._saver.fail(error)
            return
        if not self._is_chief:
            return
        _runtime.progress.finish_hooks()
        try:
            checkpoint = self._checkpoint(place, variables)
            self._saver.begin(functools.partial(copied_to_host, checkpoint))
        except Exception as error:
            self._saver.fail(error)
            return
        self._warn_of_what_is_lost()
        self.schedule.end_save()

    def _checkpoint(self, place: Place, variables: list[SavedVariable]) -> Checkpoint:
        history = self._model.history
        return Checkpoint(
            keras=_runtime.message_terms.keras,
            framework=_runtime.message_terms.framework,
            epochs=self._epochs,
            epoch=self._epoch or 0,
            batch=self._batch,
            batches=self._before_epoch + self._batch,
            finished=self.finished,
            diverged=is_not_finite(history.history.get("loss", [0.0])[-1:]),
            time=time.time(),
            variables=list(variables),
            callbacks=self._states.read(),
            history={"epoch": list(history.epoch), "history": {k: list(v) for k, v in history.history.items()}},
            place=place,
            data=self._spec,
            data_state=self._states_of_data.read(),
            seed=self._data.seed,
        )

    def _finish_writing(self) -> None:
        try:
            self._saver.finish()
            if self._saver.last is not None and self._saver.last.diverged:
                self.warn_that_it_diverged()
        except Exception as error:  # of a disk, a store, a device: none of them must end the training
            is_plain = isinstance(error, (OSError, CannotWriteError))
            self._is_on_host |= not is_plain  # copies on the device may have taken too much memory
            what = str(error) if is_plain else f"{type(error).__name__}: {error}"
            then = "" if self.finished or self._why else " The training goes on, and it tries again at the next save."
            text = f"AutoResume could not save into {self._folder.path}: {what}.{then} {self._what_is_kept()}"
            user_frame.warn(text, ResumeWarning)

    def _what_is_kept(self) -> str:
        last = self._saver.last or self._found
        return "Nothing is saved yet." if last is None else f"{last.name} is the last one that is whole."

    def _resume(self) -> None:
        """Restore the saved state."""
        saved, self._saved = self._saved, None
        assert saved is not None, "it was found"
        try:
            _runtime.training_state.assign(self._model, saved.variables)
        except CheckpointError as error:
            raise CheckpointError(
                f"AutoResume found a checkpoint of another model in {self._folder.path}: {error}. To go on, build "
                "and compile the model as it was; to start anew, give AutoResume another directory."
            ) from error
        without = [plain(name) for name in self._states.assign(saved.callbacks)]
        if without and self._is_chief:  # other processes lack callbacks that only write
            were = "was" if len(without) == 1 else "were"
            warn(f"{' and '.join(without)} {were} there when this was saved: what is known there is left out")
        self._history = saved.history
        self._restore_history()
        self._before_epoch, self._batch = saved.batches - saved.batch, saved.batch
        if self._place is None and not self.finished:  # the epoch begins anew
            self._before_epoch, self._batch = saved.batches, 0
            self._model.reset_metrics()

    def _restore_history(self) -> None:
        assert self._history is not None, "it was found with what was saved"
        self._model.history.epoch = list(self._history["epoch"])
        self._model.history.history = {name: list(values) for name, values in self._history["history"].items()}

    def warn_that_it_diverged(self) -> None:
        """Warn, once, that the training has diverged, and name the last checkpoint from before."""
        self._saver.close()  # what is being written may be that one
        self._lost.warn_of_divergence(self._folder.last_before_it_diverged() if self._is_chief else None)

    def _warn_of_what_is_lost(self) -> None:
        of_callbacks = {**self._states.not_kept, **self._states_of_data.not_kept}
        self._lost.warn(self._data.not_exact, _runtime.training_state.not_kept(self._model), of_callbacks)
