"""One `fit` that saves what it has come to, and goes on from what another has saved."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._checkpoint import CannotWriteError, CheckpointFolder, Found
from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches
from keras_tpu_ext._runtime.common.protocols import Place, ResumableData, RunningFit, SavedVariable
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext.callbacks._callback_state import OF_KERAS, CallbackStates
from keras_tpu_ext.callbacks._leaving import Interruption, seconds_of_process
from keras_tpu_ext.callbacks._saver import Saver
from keras_tpu_ext.errors import CheckpointError, ClusterError, ResumeWarning


class Left(BaseException):
    """Ends a `fit` between two steps. No `except Exception` of a callback's may catch it."""


class ResumableFit:
    """One `fit`.

    Args:
        folder: Where the checkpoints are.
        every_s: Seconds from one save to the next.
        deadline_s: Seconds from the start of the process at which it ends; `None` if it does not.
        margin: How many times the seconds of a save and a step it leaves before that.
        say: Prints a line.

    Attributes:
        finished: Whether nothing is left to do.
        is_left: Whether it has left.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        every_s: float,
        deadline_s: float | None,
        margin: float,
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._margin = margin
        self._say = say
        self._saver = Saver(folder)
        self._saver.wait_for_others()
        self._interruption = Interruption()
        self._found: Found | None
        self._saved: Any
        try:
            self._found, self._saved = folder.read_newest()
        except OSError as error:
            raise CheckpointError(
                f"AutoResume cannot read what is in {folder.path}: {error}. Nothing there was changed. Start again "
                "when it can be read, or give AutoResume another directory."
            ) from error
        self._data: ResumableData
        self._model: Model
        self._others: list[Any]
        self._states: CallbackStates
        self._epochs = 1  # that `fit` is asked for
        self._epoch: int | None = None
        self._before_epoch = 0  # batches in all before this epoch
        self._batch = 0  # batches of this epoch before the execution that runs
        self._end = 0  # and after it
        self._is_first_batch = True
        self._is_last = False
        self._last_save = self._step_began = time.monotonic()
        self._seconds_of_step = self._seconds_stood_still = self._seconds_of_validation = 0.0
        self._validation_began = 0.0
        self._history: dict[str, Any] | None = None
        self._told: set[str] = set()
        self._is_chief = _runtime.devices.is_chief()
        self._processes = 1
        self._executions_until_agreement = 0
        self._begun = self._told_of = self._ended = 0  # executions of this epoch; the callbacks hear of their ends
        self._hearing = threading.Lock()  # Keras on JAX may tell of the end of several at once
        self._telling: dict[int, FrameType] = {}  # where it does, in each thread
        self._is_on_host = False  # whether variables are copied there, as something was wrong on the device
        self._why = ""  # it leaves
        self.finished = False

    @contextlib.contextmanager
    def around(self, call: RunningFit, model: Model, others: list[Any]) -> Iterator[None]:
        """Within the block Keras runs `fit`, with these other callbacks."""
        self._model, self._others = model, others
        if self._is_chief:
            self._prepare()
        self._check_same_checkpoint()
        self._epochs = epochs = int(call.arguments.get("epochs", 1))
        first_epoch, seed = None, None
        given = call.arguments.get("x")
        given = given.dataset if isinstance(given, GivesPaddedBatches) else given
        self._datasets = [given] if isinstance(given, _runtime.PyDataset) else []
        if self._saved is not None:
            self._check(self._saved)
            # It may have ended before its last epoch, as EarlyStopping ends it; or `fit` is asked for fewer epochs.
            is_finished = self._saved["finished"] and self._saved["epochs"] >= epochs
            self.finished = is_finished or self._saved["epoch"] >= epochs
            first_epoch = epochs if self.finished else self._saved["epoch"]
            seed = self._saved["seed"]
            self._say(self._where())
        with contextlib.ExitStack() as stack:
            stack.push(self._wait_for_saver)
            self._data = stack.enter_context(_runtime.training_state.reading_batches(call, first_epoch, seed))
            stack.enter_context(self._interruption.heeding_signals())
            yield

    def _wait_for_saver(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not KeyboardInterrupt:  # the second Ctrl-C, which ends `fit` at once
            self._saver.close()

    def _prepare(self) -> None:
        """Say what is wrong with the folder before anything is trained."""
        path = self._folder.path
        try:
            self._folder.folder.prepare()
        except OSError as error:
            raise CheckpointError(
                f"AutoResume cannot write into {path}: {error}. Give it a folder that can be written: on Kaggle "
                'AutoResume("/kaggle/working/checkpoints").'
            ) from error
        damaged = self._folder.damaged
        if damaged:
            where = "begins anew" if self._found is None else f"goes on from {self._found.name}"
            are = "is" if len(damaged) == 1 else "are"
            _warn(f"in {path} {' and '.join(damaged)} {are} damaged, so this {where}")

    def _check_same_checkpoint(self) -> None:
        """Refuse to go on where processes that train together have found different checkpoints."""
        batches = self._gather(0 if self._saved is None else self._saved["batches"] + 1)
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
        """Note what callbacks know when training begins; where nothing is left to do, be as at the end of it."""
        self._states = CallbackStates(self._others, but=OF_KERAS, variables=self._variables)
        self._states_of_data = CallbackStates(self._datasets, variables=self._variables)
        saved = self._saved
        if saved is None:
            return
        if not self.finished:
            of_data = functools.partial(self._states_of_data.assign, saved.get("data", []))
            self._data.resume(Place(*saved["place"]), saved["batch"], of_data)
        if saved["finished"] or self.finished:  # saved before the begin of an epoch, and not after it; or none begins
            self._resume()

    def _variables(self) -> list[Any]:
        return [variable for _, variable in _runtime.training_state.all_variables(self._model)]

    def begin_epoch(self, epoch: int) -> None:
        """Go on in the middle of an epoch if that was saved, and save at the begin of every later one."""
        is_first = self._epoch is None
        self._before_epoch += self._end
        self._epoch, self._batch, self._end = epoch, 0, 0
        self._begun = self._told_of = self._ended = 0
        if self._saved is not None:
            self._resume()
        elif is_first and self._history is not None:
            self._restore_history()
        self._is_first_batch, self._is_last = True, False
        self._data.begin_epoch(self._before_epoch + self._batch)
        self._save_if_due(is_epoch=not is_first)
        self._step_began = time.monotonic()

    def begin_validation(self) -> None:
        """Note when Keras begins to validate."""
        self._validation_began = time.monotonic()

    def end_validation(self) -> None:
        """Note how long that took."""
        self._seconds_of_validation = time.monotonic() - self._validation_began

    def before_batch(self, batch: int, batches: int | None) -> None:
        """Save if it is time, before the execution that begins with a batch of the epoch.

        Args:
            batch: The number of the batch in the epoch.
            batches: How many the epoch has, if that is known.
        """
        self._is_last = batches is not None and batch + int(self._model.steps_per_execution) >= batches
        now = time.monotonic()
        self._batch = batch
        if not _runtime.progress.end_names_last_batch():
            self._end = batch + int(self._model.steps_per_execution)
        self._data.note_trained(self._before_epoch + batch)
        if not self._is_first_batch:
            self._seconds_of_step = now - self._step_began
            self._save_if_due()
        self._is_first_batch = False
        self._begun += 1
        self._step_began = now

    def hear_of_end(self, where: FrameType) -> None:
        """Note that Keras tells the callbacks of the end of an execution now, and where it does."""
        with self._hearing:
            self._told_of += 1
            self._telling[threading.get_ident()] = where

    def after_batch(self, batch: int) -> None:
        """Note the end of an execution, of which the other callbacks have heard."""
        with self._hearing:
            self._ended += 1
            self._telling.pop(threading.get_ident(), None)
            if _runtime.progress.end_names_last_batch():
                self._end = max(self._end, batch + 1)
        if self._data.read_again:
            self._say(
                f"{self._data.read_again:,} batches were read again, in {self._data.seconds:.1f} s, to come to the "
                "place in the data."
            )
            self._data.read_again = 0

    def end(self) -> None:
        """Save what there is in the end."""
        if self.finished:
            self._restore_history()
            return
        self.finished = True
        self._begun = self._told_of = self._ended = 0  # where the data has ended, one has begun only
        self._before_epoch += self._end
        self._epoch, self._batch = (0 if self._epoch is None else self._epoch + 1), 0
        self._data.end_epochs(self._before_epoch)
        self._save_at_once(self._data.place(at_once=True) or Place(0, 0, None, None, None))

    def left(self) -> None:
        """Say how to go on, after the callbacks have heard of the end."""
        why = self._why
        if self._saver.has_failed:
            self._say(f"left, {why}, and could not save. {self._what_is_kept()}")
        else:
            self._say(f"left, {why}. Start the same program again, and it goes on from there.")

    def last_logs(self) -> dict[str, Any]:
        """Return the logs of the last epoch that has ended."""
        return {name: values[-1] for name, values in self._model.history.history.items() if values}

    def _leaves(self) -> str:
        """Return why it is time to leave, or an empty text."""
        if self._interruption.reason:
            return f"as {self._interruption.reason} asked it to"
        if self._deadline_s is None:
            return ""
        left = self._deadline_s - seconds_of_process()
        # After the last step of an epoch nothing is saved until Keras has validated.
        validation = self._seconds_of_validation if self._is_last else 0.0
        needed = self._margin * (self._seconds_of_save() + self._seconds_of_step + validation)
        return f"{left:.0f} s before the session ends" if left < needed else ""

    def _save_if_due(self, *, is_epoch: bool = False) -> None:
        why = self._leaves()
        leaves = bool(why)
        is_due = leaves or (self._is_due(is_epoch) and not self._saver.is_writing())
        if self._processes > 1:
            leaves, is_due = self._agree(leaves, is_due)
        if not is_due:
            return
        place = self._data.place(at_once=leaves)
        if place is None:
            return
        self._why = (why or "as another process was asked to") if leaves else ""
        if not leaves:
            self._save(place)
        elif self._save_at_once(place):
            raise Left

    def _is_due(self, is_epoch: bool) -> bool:
        since = time.monotonic() - self._last_save
        # An epoch of seconds is not worth a save. Before a deadline one is measured early.
        wanted = self._every_s
        if self._deadline_s is not None and not self._seconds_of_save():
            wanted = min(wanted, self._deadline_s / _EARLY)
        return since >= wanted or (is_epoch and since >= _LEAST * self._seconds_of_save())

    def _seconds_of_save(self) -> float:
        return self._seconds_stood_still + self._saver.seconds

    def _agree(self, leaves: bool, is_due: bool) -> tuple[bool, bool]:
        """Do what one of the processes wants, all before the same step. They talk of it about once a second."""
        self._executions_until_agreement -= 1
        if self._executions_until_agreement > 0:
            return False, False
        wish = 2 if leaves else int(is_due and self._is_chief)
        length = min(int(self._seconds_of_step * _TICKS), _LONGEST_STEP - 1)
        answers = [divmod(one, _LONGEST_STEP) for one in self._gather(wish * _LONGEST_STEP + length)]
        wish = max(one for one, _ in answers)
        in_a_second = _TICKS // max(length or _TICKS for _, length in answers)
        self._executions_until_agreement = 0 if wish == 2 else in_a_second  # what could not be done now is to be soon
        return wish == 2, wish > 0

    def _save_at_once(self, place: Place) -> bool:
        """Save, wait until it is written, and return whether it was due."""
        was_on_host = self._is_on_host
        is_due = self._save(place)
        self._finish_writing()
        if self._is_on_host and not was_on_host and self._processes == 1:  # no other save would come
            self._save(place)
            self._finish_writing()
        return is_due

    def _save(self, place: Place) -> bool:
        """Begin to save; return `False` if a callback has failed, whose error Keras raises after the next step."""
        self._finish_writing()  # the one before, which may have failed
        begun = self._last_save = time.monotonic()
        try:
            # Of several processes all must.
            variables = _runtime.training_state.read(self._model, on_host=self._is_on_host)
        except Exception as error:
            if self._processes > 1:  # the others wait for this one
                raise
            self._saver.fail(error)
            return True
        if not self._is_chief:
            return True
        if not self._have_all_heard():
            return False
        try:
            content = self._content(place, variables)
        except Exception as error:
            self._saver.fail(error)
            return True
        self._warn_of_what_is_lost()
        self._saver.begin(functools.partial(_on_host, content))
        self._seconds_stood_still = time.monotonic() - begun
        return True

    def _content(self, place: Place, variables: list[SavedVariable]) -> dict[str, Any]:
        history = self._model.history
        return {
            "keras": _runtime.message_terms.keras,
            "framework": _runtime.message_terms.framework,
            "epochs": self._epochs,
            "epoch": self._epoch,
            "batch": self._batch,
            "batches": self._before_epoch + self._batch,
            "finished": self.finished,
            "time": time.time(),
            "variables": [tuple(one) for one in variables],
            "callbacks": self._states.read(),
            "history": {"epoch": list(history.epoch), "history": {k: list(v) for k, v in history.history.items()}},
            "place": tuple(place),
            "data": self._states_of_data.read(),
            "seed": self._data.seed,
        }

    def _have_all_heard(self) -> bool:
        """Wait until the callbacks have heard of all steps; return `False` if one has failed before it did.

        Keras on JAX may tell them in other threads, a little later.
        """
        latest = time.monotonic() + _LONGEST_WAIT_S
        while self._ended < self._begun:
            with self._hearing:
                told_of, telling = self._told_of, list(self._telling.values())
            if any(frame in telling for frame in _frames_of_threads()):
                latest = time.monotonic() + _LONGEST_WAIT_S
            elif told_of == self._begun:
                return self._ended == self._begun
            elif time.monotonic() > latest:  # a list of the user's that does not tell of all
                return True
            time.sleep(0.001)
        return True

    def _finish_writing(self) -> None:
        try:
            self._saver.finish()
        except Exception as error:  # of a disk, a store, a device: none of them is to end a training
            is_plain = isinstance(error, (OSError, CannotWriteError))
            self._is_on_host |= not is_plain  # copies on the device may have been too much for it
            what = str(error) if is_plain else f"{type(error).__name__}: {error}"
            then = "" if self.finished or self._why else " The training goes on, and it tries again at the next save."
            text = f"AutoResume could not save into {self._folder.path}: {what}.{then} {self._what_is_kept()}"
            warnings.warn(text, ResumeWarning, stacklevel=2)

    def _what_is_kept(self) -> str:
        last = self._saver.last or self._found
        return "Nothing is saved yet." if last is None else f"{last.name} is the last one that is whole."

    def _resume(self) -> None:
        """Be as it was saved."""
        saved, self._saved = self._saved, None
        try:
            _runtime.training_state.assign(self._model, [SavedVariable(*one) for one in saved["variables"]])
        except CheckpointError as error:
            raise CheckpointError(
                f"AutoResume found a checkpoint of another model in {self._folder.path}: {error}. To go on, build "
                "and compile the model as it was; to start anew, give AutoResume another directory."
            ) from error
        without = self._states.assign(saved["callbacks"])
        if without and self._is_chief:  # others have no callbacks that only write
            were = "was" if len(without) == 1 else "were"
            _warn(f"{' and '.join(without)} {were} there when this was saved: what is known there is left out")
        self._history = saved["history"]
        self._restore_history()
        self._before_epoch, self._batch = saved["batches"] - saved["batch"], saved["batch"]

    def _restore_history(self) -> None:
        assert self._history is not None, "it was found with what was saved"
        self._model.history.epoch = list(self._history["epoch"])
        self._model.history.history = {name: list(values) for name, values in self._history["history"].items()}

    def _where(self) -> str:
        saved = self._saved
        ago = _duration(time.time() - saved["time"])
        what = f"{saved['batches']} batches in all, saved {ago} ago in {self._folder.path}"
        if self.finished:
            came = "is finished" if saved["finished"] else f"has come to epoch {saved['epoch'] + 1} already"
            needed = saved["epochs"] if saved["finished"] else saved["epoch"]
            return (
                f"this training {came}, with {what}: nothing is trained. For a new one give AutoResume another "
                f"directory; to go on, give `fit` more epochs than {needed}."
            )
        return f"goes on at epoch {saved['epoch'] + 1}, batch {saved['batch']} ({what})."

    def _check(self, saved: Any) -> None:
        """Refuse what was saved on another Keras, or on another framework."""
        was, now = saved["keras"], _runtime.message_terms.keras
        if was != now:
            raise CheckpointError(
                f"AutoResume cannot go on from {self._folder.path}: it was saved by {was}, whose optimizers and "
                f"metrics have other variables than those of {now}. To go on, use that Keras; to start anew, give "
                "AutoResume another directory."
            )
        was, now = saved["framework"], _runtime.message_terms.framework
        if was != now:
            raise CheckpointError(
                f"AutoResume cannot go on from {self._folder.path}: it was saved on {was}, which draws other random "
                f"numbers and keeps the place in the data otherwise than {now}. To go on, use {was}; to start anew, "
                "give AutoResume another directory."
            )

    def _warn_of_what_is_lost(self) -> None:
        if self._data.not_exact and "data" not in self._told:
            self._told.add("data")
            _warn(
                "after an interruption this training may go on in another order or with other random numbers, for "
                f"the state of its data cannot be saved: {self._data.not_exact}"
            )
        not_kept = _runtime.training_state.not_kept(self._model)
        if not_kept and "model" not in self._told:
            self._told.add("model")
            _warn(f"after an interruption this training goes on with others than {not_kept}")
        for name, attributes in {**self._states.not_kept, **self._states_of_data.not_kept}.items():
            if name not in self._told:
                self._told.add(name)
                _warn(
                    f"{name} keeps {' and '.join(attributes)}, which no checkpoint can hold: after an interruption "
                    "it begins anew. Give it get_state(), which returns numbers, strings, arrays, lists or "
                    "dicts, and set_state(state)"
                )


# How many times the seconds of a save an epoch must have lasted to be saved at its end.
_LEAST = 20
# How long a step lasts is told in ticks, of which a second has so many, and no step.
_TICKS, _LONGEST_STEP = 10**5, 10**8
# How long Keras may take until it tells the callbacks of a step.
_LONGEST_WAIT_S = 10.0
# After which part of the time until the deadline the first save comes at the latest.
_EARLY = 20


def _on_host(content: dict[str, Any]) -> dict[str, Any]:
    """Bring the variables to the host, and give up their copies on the device."""
    variables = content["variables"]
    for number, (role, path, value, per_replica) in enumerate(variables):
        variables[number] = role, path, np.asarray(value), per_replica
    return content


def _frames_of_threads() -> Iterator[FrameType]:
    """Yield what each thread is in."""
    for frame in sys._current_frames().values():
        inner: FrameType | None = frame
        while inner is not None:
            yield inner
            inner = inner.f_back


def _warn(text: str) -> None:
    warnings.warn(f"AutoResume: {text}.", ResumeWarning, stacklevel=2)


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
