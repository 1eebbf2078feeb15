"""Whether `fit` can go on from what is in a folder: its framework and its data must be those of before."""

from __future__ import annotations

import time

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common import user_frame
from keras_tpu_ext.checks.schema import plain
from keras_tpu_ext.errors import CheckpointError, ResumeWarning
from keras_tpu_ext.output.display import duration
from keras_tpu_ext.resume.checkpoint import Checkpoint, CheckpointFolder, Found
from keras_tpu_ext.resume.data_spec import DataSpec, differences
from keras_tpu_ext.resume.lock import FolderLock


def take_folder(folder: CheckpointFolder, lock: FolderLock) -> None:
    """Take a folder for this process, so that its problems are known before training starts."""
    try:
        folder.folder.prepare()
        lock.acquire()
        folder.folder.remove_unfinished()
    except OSError as error:
        raise CheckpointError(
            f"AutoResume cannot write into {folder.path}: {error}. Give it a folder that can be written, on Kaggle "
            'AutoResume("/kaggle/working/checkpoints").'
        ) from error


def read_folder(folder: CheckpointFolder, *, warns: bool) -> tuple[Found, Checkpoint] | tuple[None, None]:
    """Return the newest checkpoint of a folder that can be used, and warn of newer ones that cannot."""
    try:
        newest = folder.read_newest()
    except OSError as error:
        raise CheckpointError(
            f"AutoResume cannot read what is in {folder.path}: {error}. Nothing there was changed. Start again when "
            "it can be read, or give AutoResume another directory."
        ) from error
    if folder.damaged and warns:
        where = "begins anew" if newest[0] is None else f"goes on from {newest[0].name}"
        are = "is" if len(folder.damaged) == 1 else "are"
        warn(f"in {folder.path} {' and '.join(folder.damaged)} {are} damaged, so this {where}")
    return newest


def check_framework(path: str, saved: Checkpoint) -> None:
    """Refuse what was saved on another Keras, or on another framework."""
    kerases = plain(saved.keras), _runtime.message_terms.keras
    frameworks = plain(saved.framework), _runtime.message_terms.framework
    if kerases[0] != kerases[1]:
        why = "by {}, whose optimizers and metrics have other variables than those of {}. To go on, use that Keras"
        raise _refusal(path, why.format(*kerases))
    if frameworks[0] != frameworks[1]:
        why = "on {0}, which draws other random numbers and keeps the place in the data otherwise than {1}. To go on"
        raise _refusal(path, f"{why}, use {{0}}".format(*frameworks))


def _refusal(path: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"AutoResume cannot go on from {path}: it was saved {why}; to start anew, give AutoResume another directory."
    )


def changes_of_data(saved: Checkpoint, spec: DataSpec, epochs: int) -> list[str]:
    """Return in words what shows that data are others than when a checkpoint was saved."""
    place, batch = saved.place, saved.batch
    if changes := differences(saved.data, spec):
        return changes
    steps = spec.steps_per_epoch or spec.batches
    if steps is not None and (batch > steps or place.batch > (saved.epoch + 1) * steps):
        return [f"{batch} batches of epoch {saved.epoch + 1}, now {steps} in all"]
    if max(place.passes, place.unread) > 2 * epochs + 2:
        return [f"{place.passes} passes over the data, now {epochs} epochs"]
    return []


def refusal_of_data(path: str, changes: list[str], *, may_restart: bool) -> CheckpointError:
    """Return the error for other data than before; `may_restart` is whether the epoch could begin anew with them."""
    restart = 'To begin the epoch anew with these, write AutoResume(..., on_changed_data="restart_epoch"); to'
    return CheckpointError(
        f"AutoResume cannot go on from {path}: the data are others than when it was saved: {'; '.join(changes)}. "
        f"Give `fit` the data of before. {restart if may_restart else 'To'} start anew, give it another directory."
    )


def where_it_goes_on(path: str, saved: Checkpoint, *, is_finished: bool) -> str:
    """Return in words where a training goes on from a checkpoint, or that nothing is left to do."""
    ago = duration(max(time.time() - saved.time, 0.0))
    what = f"{saved.batches} batches in all, saved {ago} ago in {path}"
    if not is_finished:
        return f"goes on at epoch {saved.epoch + 1}, batch {saved.batch} ({what})."
    came = "is finished" if saved.finished else f"has come to epoch {saved.epoch + 1} already"
    return (
        f"this training {came}, with {what}: nothing is trained. For a new one give AutoResume another directory; "
        f"to go on, give `fit` more epochs than {saved.epochs if saved.finished else saved.epoch}."
    )


def warn(text: str) -> None:
    """Warn with a `ResumeWarning`."""
    user_frame.warn(f"AutoResume: {text}.", ResumeWarning)
