"""What a training with Keras 2 has come to: nothing is kept of it yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from keras_tpu_ext._runtime.common.protocols import ResumableData, RunningFit, SavedVariable
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext.errors import NotForThisKerasError


def read(model: Model) -> list[SavedVariable]:
    """Refuse."""
    _refuse()


def assign(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Refuse."""
    _refuse()


def all_gather_int(model: Model, number: int) -> list[int]:
    """Refuse."""
    _refuse()


def reading_batches(
    call: RunningFit, first_epoch: int | None, seed: int | None
) -> AbstractContextManager[ResumableData]:
    """Refuse."""
    _refuse()


def _refuse() -> NoReturn:
    raise NotForThisKerasError(
        "AutoResume works with Keras 3, and this process is on Keras 2. Install keras>=3.8; on Keras 2 "
        "keras.callbacks.BackupAndRestore(folder) begins the interrupted epoch anew."
    )
