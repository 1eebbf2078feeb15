"""Checkpoints: complete or absent, and data only: whatever stands in one, nothing of it is imported or called."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext._runtime.common.random_state import check_random_state
from keras_tpu_ext._runtime.common.values import Place, SavedVariable
from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.schema import MismatchError
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume import tensor_file
from keras_tpu_ext.resume.data_spec import DataSpec, check_data_spec
from keras_tpu_ext.resume.encoding import Content, decode, encode
from keras_tpu_ext.resume.storage import Folder, folder_of

FORMAT = 2
_LAST_TIME = 2**37  # the year 6325: what a file claims may be anything
_NAME = re.compile(r"checkpoint-(\d{6,9})\.safetensors")
_LAST_NUMBER = 10**9 - 10**6  # what claims a later one is none of ours, and leaves no room for the next
_OLD_NAME = re.compile(r"checkpoint-(\d+)\.zip")  # of format 1, which could name functions


class DamagedError(CheckpointError):
    """A checkpoint is damaged."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a training."""

    keras: str  # the Keras that saved it
    framework: str  # the framework, `"JAX"` or `"TensorFlow"`
    epochs: int  # the `epochs` argument of `fit`
    epoch: int  # the epoch to resume in, from 0
    batch: int  # number of batches of that epoch that were trained on
    batches: int  # the same for all epochs together
    finished: bool  # whether training had reached its end
    diverged: bool  # whether its loss was no finite number, or a weight was NaN
    time: float  # when it was saved, in seconds since 1970
    variables: list[SavedVariable]  # the variables that training changes
    callbacks: Sequence[tuple[str, Mapping[str, Any]]]  # the class and the state of each callback
    history: Mapping[str, Any]  # the attributes `epoch` and `history` of `History`
    place: Place  # the position in the data
    data: DataSpec  # what is known of the data
    data_state: Sequence[tuple[str, Mapping[str, Any]]]  # the class and the state of a `PyDataset`
    seed: int | None  # the seed that was set for shuffles without their own, or `None`

    def to_content(self) -> dict[str, Content]:
        """Return it as plain values."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        content["variables"] = [one._asdict() for one in self.variables]
        content["callbacks"] = [list(one) for one in self.callbacks]
        content["data_state"] = [list(one) for one in self.data_state]
        return {**content, "place": self.place._asdict(), "data": self.data._asdict()}

    @classmethod
    def from_content(cls, content: Content) -> Checkpoint:
        """Return the checkpoint that `to_content` described."""
        found: Checkpoint = _CHECKPOINT(content, "")
        place = found.place
        for name, batch in (("batch", found.batch), ("place.batch", place.batch), ("place.read", place.read)):
            if batch > found.batches:
                raise MismatchError(name, f"no more than batches, {found.batches}", batch)
        return found


def _array(value: Any, where: str) -> Any:
    if not isinstance(value, np.ndarray):
        raise MismatchError(where, "an array", value)
    return value


def _variable(value: Any, where: str) -> SavedVariable:
    found: SavedVariable = _VARIABLE(value, where)
    if found.per_replica and not found.value.ndim:
        raise MismatchError(where, "one with the values of all replicas", value)
    return found


_ROLES = ("weight", "optimizer", "metric", "step", "random")
_VARIABLE = schema.record(SavedVariable, role=schema.one_of(*_ROLES), value=_array)
_RANDOM = schema.optional(check_random_state)
_STATES = schema.list_of(schema.row(schema.text, schema.mapping(schema.anything)))
_CHECKPOINT = schema.record(
    Checkpoint,
    variables=schema.list_of(_variable),
    callbacks=_STATES,
    history=schema.fields(
        {"epoch": schema.list_of(schema.integer()), "history": schema.mapping(schema.list_of(schema.anything))}
    ),
    place=schema.record(Place, iterator=schema.anything, random=_RANDOM, random_at_start=_RANDOM),
    data=check_data_spec,
    data_state=_STATES,
    seed=schema.optional(schema.integer(maximum=2**31)),
)


class Found(NamedTuple):
    """A checkpoint in a folder."""

    number: int  # number of checkpoints written before it
    name: str
    diverged: bool = False  # whether it has diverged; known of one that was just written


class CheckpointFolder:
    """The checkpoints of one training."""

    def __init__(self, path: str, keep: int = 2) -> None:
        self.path = path
        self.folder = folder_of(path)
        self._keep = keep
        self._damaged: set[str] = set()
        self._diverged: dict[str, bool] = {}

    def find(self) -> list[Found]:
        """Return the checkpoints, the newest first."""
        return [found for found in self._names() if self.folder.is_file(found.name)]

    def read_newest(self) -> tuple[Found, Checkpoint] | tuple[None, None]:
        """Return the newest complete checkpoint, and its content; `damaged` then names the newer ones."""
        for found in self.find():
            try:
                newest = read(self.folder, found.name)
            except DamagedError:
                self._damaged.add(found.name)
            else:
                self._diverged[found.name] = newest.diverged
                return found, newest
        if not self._damaged:
            self.refuse_old()
        return None, None

    def refuse_old(self) -> None:
        """Refuse a folder whose checkpoints are of the format before."""
        old = sorted(filter(_OLD_NAME.fullmatch, self.folder.names()))
        if old:
            raise CheckpointError(
                f"{self.folder.path_of(old[-1])} is of format 1, which could run code when it was read; this version "
                f"of keras_tpu_ext reads format {FORMAT} only. To go on with it, use the version that wrote it; to "
                "start anew, give AutoResume another directory."
            )

    @property
    def damaged(self) -> list[str]:
        """The names of checkpoints that could not be read, in order."""
        return sorted(self._damaged)

    def last_before_it_diverged(self) -> str | None:
        """Return the name of the newest checkpoint with a finite loss; `None` if there is none."""
        return next((found.name for found in self.find() if not self._is_diverged(found.name)), None)

    def write(self, checkpoint: Checkpoint) -> Found:
        """Write a checkpoint and remove those that need not be kept; return the new one.

        The newest one with a finite loss is kept, too.
        """
        before, there = self.find(), self._names()
        number = there[0].number + 1 if there else 0
        name = f"checkpoint-{number:06d}.safetensors"
        write(self.folder, name, checkpoint)
        self._diverged[name] = checkpoint.diverged
        whole = [found.name for found in before if found.name not in self._damaged]
        kept = whole[: self._keep - 1]
        if checkpoint.diverged and all(map(self._is_diverged, kept)):
            kept += [one for one in whole if not self._is_diverged(one)][:1]
        for old in [*self._damaged, *(one for one in whole if one not in kept)]:
            self.folder.remove(old)
        self._damaged.clear()
        return Found(number, name, checkpoint.diverged)

    def _names(self) -> list[Found]:
        matches = [match for match in map(_NAME.fullmatch, self.folder.names()) if match]
        found = (Found(int(match[1]), match[0]) for match in matches)
        return sorted((one for one in found if one.number < _LAST_NUMBER), reverse=True)

    def _is_diverged(self, name: str) -> bool:
        if name not in self._diverged:
            try:
                self._diverged[name] = read(self.folder, name, values=False).diverged
            except (CheckpointError, OSError):
                return True
        return self._diverged[name]


def write(folder: Folder, name: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint.

    Raises:
        CannotWriteError: If a checkpoint cannot hold something in it.
        OSError: If it cannot be written; then nothing of it stays.
    """
    arrays: list[np.ndarray] = []
    content = {"format": FORMAT, "checkpoint": encode(checkpoint.to_content(), arrays)}
    folder.write(name, lambda file: tensor_file.write(file, content, arrays))


def read(folder: Folder, name: str, *, values: bool = True) -> Checkpoint:
    """Return a checkpoint.

    Args:
        folder: Its folder.
        name: Its name.
        values: Whether to keep its arrays; otherwise they are read for their digests, and zero.

    Raises:
        CheckpointError: If it is of another version of this package.
        DamagedError: If it is damaged.
        OSError: If it cannot be read, which does not say that it is damaged.
    """
    with _opened(folder, name) as file:
        if not values:
            file.check()
        found = schema.fields({"format": schema.integer(), "checkpoint": schema.anything})(file.content, "")
        if found["format"] != FORMAT:
            raise CheckpointError(
                f"{folder.path_of(name)} was written by another version of keras_tpu_ext: its format is "
                f"{found['format']}, and this version reads {FORMAT}. Upgrade this package, or give AutoResume "
                "another directory."
            )
        return Checkpoint.from_content(decode(found["checkpoint"], file, values=values))


@contextlib.contextmanager
def _opened(folder: Folder, name: str) -> Iterator[tensor_file.TensorFile]:
    path = folder.path_of(name)
    try:
        with folder.open(name) as file:
            yield tensor_file.TensorFile(file)
    except MismatchError as error:
        raise DamagedError(f"{path} is damaged, or no checkpoint of keras_tpu_ext: {error}") from error
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "there is not enough memory to read it", path) from error


def time_text(seconds: float) -> str:
    """Return seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(seconds, 0), _LAST_TIME)))
