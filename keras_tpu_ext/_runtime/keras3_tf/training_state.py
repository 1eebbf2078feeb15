"""The state of a training run with Keras 3 on TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import EpochIterator, Model, Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.keras3.data_adapter import ResumableAdapter
from keras_tpu_ext._runtime.keras3.data_adapter import reading_batches as _reading_batches
from keras_tpu_ext._runtime.keras3.models import not_kept as not_kept
from keras_tpu_ext._runtime.keras3.models import variables_of
from keras_tpu_ext._runtime.tensorflow.training_state import (
    DistributedPasses,
    assign_variables,
    keeping_seed,
    read_variables,
    variables_of_step,
)
from keras_tpu_ext._runtime.tensorflow.training_state import all_gather_int as all_gather_int
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses


def all_variables(model: Model) -> list[tuple[str, Variable]]:
    """Return each variable of `model` that training changes and its role."""
    return variables_of(model) + variables_of_step(model)


def read(model: Model, *, on_host: bool) -> list[SavedVariable]:
    """Return the value of each variable of `model` that training changes, always on the host."""
    return read_variables(all_variables(model))


def assign(model: Model, saved: Sequence[SavedVariable]) -> None:
    """Assign values that `read` returned to the variables of `model`."""
    with model._kte.own_scope():
        model._kte.build_optimizer()
        model._kte.build_accumulator()
        assign_variables(all_variables(model), saved)


@contextlib.contextmanager
def reading_batches(call: FitCall, first_epoch: int | None, seed: int | None) -> Iterator[ResumablePasses]:
    """Within the block, `fit` reads its batches so that it can start in the middle of the data."""
    data = ResumablePasses(reads_ahead=True, spans_epochs=call.arguments.get("steps_per_epoch") is not None)
    with _reading_batches(call, data, first_epoch), keeping_seed(data, seed):
        yield data


def read_in_passes(model: Model, epoch_iterator: EpochIterator) -> None:
    """Let the iterator over an epoch's batches read them so that it can start in the middle of the data."""
    data = None if model._kte.running is None else model._kte.running.data
    adapter = epoch_iterator.data_adapter
    if data is not None and isinstance(adapter, ResumableAdapter):
        dataset = adapter.get_tf_dataset()
        passes = DistributedPasses(model.distribute_strategy, data, adapter.source_of(dataset), dataset)
        override(epoch_iterator, "_get_iterator", lambda: passes)
