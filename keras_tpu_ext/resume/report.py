"""The contents of a training's checkpoints, read without a framework."""

from __future__ import annotations

import dataclasses
import os

from keras_tpu_ext.checks.schema import plain
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.output.display import file_size
from keras_tpu_ext.output.report import Report
from keras_tpu_ext.resume.checkpoint import CheckpointFolder, read, time_text
from keras_tpu_ext.resume.storage import Folder


@dataclasses.dataclass(frozen=True)
class CheckpointSummary:
    """One checkpoint."""

    path: str
    size: int  # number of bytes
    damage: str = ""  # what is wrong with it; empty if it is complete
    epoch: int = 0  # the epoch to resume in, from 0
    batch: int = 0  # number of batches of that epoch that were trained on
    batches: int = 0  # the same for all epochs together
    saved: float = 0.0  # when it was saved, in seconds since 1970
    finished: bool = False  # whether training had reached its end
    diverged: bool = False  # whether its loss was no finite number, or a weight was NaN
    framework: str = ""  # the framework, `"JAX"` or `"TensorFlow"`


@dataclasses.dataclass(frozen=True, repr=False)
class ResumeReport(Report):
    """The checkpoints in a folder, as `AutoResume` finds them."""

    directory: str  # the folder
    checkpoints: tuple[CheckpointSummary, ...]  # the checkpoints, the newest first

    @property
    def newest(self) -> CheckpointSummary | None:
        """The checkpoint that training resumes from; `None` if there is none."""
        return next((one for one in self.checkpoints if not one.damage), None)

    @property
    def ok(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.newest is not None

    def __str__(self) -> str:
        return "\n".join([f"{self.directory}: {self._verdict()}", *map(_line, self.checkpoints)])

    __repr__ = __str__

    def _verdict(self) -> str:
        newest = self.newest
        if newest is None:
            return "no checkpoint can be used" if self.checkpoints else "no checkpoint"
        if newest.finished:
            return f"finished after {newest.epoch} epochs, {newest.batches:,} batches"
        return f"goes on at epoch {newest.epoch + 1}, batch {newest.batch:,} ({newest.batches:,} batches in all)"


def resume_report(directory: str) -> ResumeReport:
    """Return a report on the checkpoints in a folder; each one is read to its end."""
    checkpoints = CheckpointFolder(directory)
    if not checkpoints.folder.exists():
        raise CheckpointError(f"there is no folder {directory}. Write the one that AutoResume was given.")
    found = checkpoints.find()
    if not found:
        checkpoints.refuse_old()
    return ResumeReport(directory, tuple(_summary(checkpoints.folder, one.name) for one in found))


def _summary(folder: Folder, name: str) -> CheckpointSummary:
    path, size = folder.path_of(name), 0
    try:
        size = folder.size_of(name)
        found = read(folder, name, values=False)
    except (CheckpointError, OSError) as error:
        return CheckpointSummary(path, size, damage=str(error.__cause__ or error))
    names = ("epoch", "batch", "batches", "finished", "diverged", "framework")
    return CheckpointSummary(path, size, saved=found.time, **{one: getattr(found, one) for one in names})


def _line(one: CheckpointSummary) -> str:
    name = f"  {os.path.basename(one.path)}  {file_size(one.size):>8}"
    if one.damage:
        return f"{name}  cannot be used: {one.damage}"
    diverged = "  its loss is no finite number, or a weight is NaN" if one.diverged else ""
    framework = plain(one.framework)
    return f"{name}  epoch {one.epoch + 1}, batch {one.batch:,}  saved {time_text(one.saved)}  {framework}{diverged}"
