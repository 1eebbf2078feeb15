"""How Keras 3 reads batches in `fit`: executions of varying length, and from the middle of the data."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import keras

from keras_tpu_ext._runtime.common.missing_names import override, private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import DataAdapter, Dataset, EpochIterator, Model, Nest
from keras_tpu_ext._runtime.compat.keras3 import execution
from keras_tpu_ext._runtime.training.batch_source import RememberedDataset, Source, indexed
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext.errors import ArgumentError

# What `execution` of `compat/keras3.py` returns.
Executions: TypeAlias = Iterator[tuple[object, ...]]


def enumerate_executions(model: Model, epoch_iterator: EpochIterator) -> None:
    """Let the iterator over an epoch's batches determine before every execution how many steps it has.

    Also let it start in the middle of an epoch, if training resumes there, and without left-over batches.
    """
    _discard_what_is_left_over(epoch_iterator.data_adapter)
    data = None if model._kte.running is None else model._kte.running.data
    if model._kte.schedule is not None or data is not None:
        executions = functools.partial(_enumerate, model, data, epoch_iterator)
        override(epoch_iterator, "_enumerate_iterator", executions)


def _enumerate(model: Model, data: ResumablePasses | None, epoch: EpochIterator) -> Executions:
    """Yield every execution of one epoch.

    Like Keras's own `EpochIterator._enumerate_iterator`, except for the steps, which are read again each time and,
    if there is a schedule, never reach over the epoch's end.
    """
    epoch.data_adapter.on_epoch_begin()
    # Not the size that Keras learns from the first epoch: it is one too many, and ends each epoch by an exception.
    size = epoch.steps_per_epoch or epoch.data_adapter.num_batches
    batch, of_pass = (0, 0) if data is None else data.take_first_batch()
    if epoch._current_iterator is None or epoch.steps_per_epoch is None:
        _start(epoch, of_pass)
    yield from (_enumerate_known(model, epoch, size, batch) if size else _enumerate_unknown(model, epoch, batch))
    if size and epoch._num_batches and epoch._steps_seen >= epoch._num_batches:
        with contextlib.nullcontext() if data is None else data.between_epochs(epoch.steps_per_epoch is None):
            _start(epoch)
    epoch.data_adapter.on_epoch_end()


def _enumerate_known(model: Model, epoch: EpochIterator, size: int, batch: int) -> Executions:
    while batch < size:
        left = size - batch
        if epoch._num_batches:
            left = min(left, epoch._num_batches - epoch._steps_seen)
        if left <= 0:
            if epoch.steps_per_epoch:
                epoch._interrupted_warning()
            break
        steps, schedule = model.steps_per_execution, model._kte.schedule
        if schedule is not None:
            schedule.requested_steps = steps = min(model.steps_per_execution, left)
        epoch._steps_seen += steps
        yield execution(batch, batch + steps - 1, epoch._current_iterator)
        batch += steps


def _enumerate_unknown(model: Model, epoch: EpochIterator, batch: int) -> Executions:
    schedule = model._kte.schedule
    epoch._steps_seen = batch
    done = steps = 0
    while done == steps:
        epoch._steps_seen += done  # what Keras takes as the size, if the next execution finds no data
        done = steps = model.steps_per_execution
        # While `held`, completed steps are not counted: a single step completes, or ends the epoch by an exception.
        if schedule is not None:
            schedule.requested_steps = schedule.completed_steps = steps
        yield execution(epoch._steps_seen, epoch._steps_seen + steps - 1, epoch._current_iterator)
        done = steps if schedule is None else int(schedule.completed_steps)
    epoch._current_iterator = None


def _start(epoch: EpochIterator, seen: int = 0) -> None:
    epoch._current_iterator = iter(epoch._get_iterator())
    epoch._steps_seen = seen


def _discard_what_is_left_over(adapter: DataAdapter) -> None:
    """Make each epoch of a `PyDataset` with workers begin without batches that were read before it.

    The workers read ahead when Keras takes the first batch to build the model. The first epoch would begin with what
    they have read then, and so have those batches twice and lack others.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None or adapter.num_batches is None:
        return
    begin = adapter.on_epoch_begin

    def on_epoch_begin() -> None:
        if not enqueuer.is_running():
            override(enqueuer, "ready_queue", queue.Queue())
        begin()

    override(adapter, "on_epoch_begin", on_epoch_begin)


_data_adapters: Any = private("keras.src.trainers.data_adapters")
ArrayDataAdapter: Any = private("keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter")
TFDatasetAdapter: Any = private("keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter")


@contextlib.contextmanager
def reading_batches(call: FitCall, data: ResumablePasses, first_epoch: int | None) -> Iterator[None]:
    """Within the block, `fit` reads its batches through `data`."""
    if first_epoch is not None:
        call.arguments["initial_epoch"] = first_epoch
    given = call.arguments.get("x")
    if isinstance(given, keras.utils.PyDataset):
        shuffle = bool(call.arguments.get("shuffle", True))
        data.indexed = indexed(given, shuffle=shuffle, read_ahead=data.reads_ahead)
        call.arguments["x"], call.arguments["shuffle"] = data.indexed, False
        if call.arguments.get("steps_per_epoch") == data.indexed.size():
            call.arguments["steps_per_epoch"], data.spans_epochs = None, False
        if data.spans_epochs and (given.workers > 1 or given.use_multiprocessing):
            raise _refusal_of_workers(data.indexed.size())
    call.data = data
    is_first = [True]  # Keras takes the training data first, then the validation data

    def make(stock: Callable[..., DataAdapter]) -> Callable[..., DataAdapter]:
        def get_data_adapter(*args: object, **kwargs: object) -> DataAdapter:
            adapter = stock(*args, **kwargs)
            if not is_first:
                return adapter
            is_first.clear()
            data.has_length = adapter.num_batches is not None or data.spans_epochs
            return ResumableAdapter(adapter, data)

        return get_data_adapter

    with patched([(_data_adapters, "keras.src.trainers.data_adapters.get_data_adapter", make)]):
        yield


def _refusal_of_workers(size: int | None) -> ArgumentError:
    alone = "Write workers=1 and no use_multiprocessing in the PyDataset"
    if size is None:
        return ArgumentError(
            "AutoResume: of a PyDataset without an end and with workers nobody knows which batches they have read "
            f"ahead, so that no later process can go on with the next one. {alone}, or give it an end: num_batches."
        )
    return ArgumentError(
        "AutoResume: a PyDataset with workers begins anew in each epoch of steps_per_epoch, so that later batches "
        f"are never read, and AutoResume does not follow that. {alone}, or leave steps_per_epoch out of `fit`."
    )


class ResumableAdapter:
    """Keras's adapter of some data, whose passes can begin anywhere."""

    def __init__(self, adapter: DataAdapter, data: ResumablePasses) -> None:
        self.adapter = adapter
        self._data = data
        self.num_batches = adapter.num_batches  # the number of batches of a whole pass, if it is known
        self._indexed = data.indexed
        self._dataset: RememberedDataset | None = None
        if isinstance(adapter, TFDatasetAdapter) and keras.backend.backend() == "jax":
            self._dataset = RememberedDataset(adapter._dataset)
            override(adapter, "_dataset", self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    @property
    def rows_before(self) -> int:
        """The most rows that a batch had before those of the next pass, if that begins in the middle."""
        return 0 if self._data.resumed is None else self._data.resumed.rows

    def get_numpy_iterator(self) -> Iterator[Nest]:
        """Return an iterator over the batches of a pass, as NumPy arrays."""
        return self._begin_pass(self.adapter.get_numpy_iterator)

    def get_jax_iterator(self) -> Iterator[Nest]:
        """Return an iterator over the batches of a pass, in the form for JAX."""
        return self._begin_pass(self.adapter.get_jax_iterator)

    def source_of(self, dataset: Dataset) -> Source:
        """Return the source of the batches of a dataset created by Keras's adapter."""
        is_python = not isinstance(self.adapter, (ArrayDataAdapter, TFDatasetAdapter))
        why_no_state = "it reads an iterable in Python" if is_python else ""
        return Source(lambda: dataset, self._indexed, why_no_state=why_no_state)

    def on_epoch_begin(self) -> None:
        """Notify Keras's adapter, which may begin to read."""
        resumed = self._data.resumed
        if self._indexed is not None and self._indexed.is_read:  # the pass continues
            self._indexed.on_epoch_begin()
            return
        if self._indexed is not None:
            self._indexed.begin_pass(*(() if resumed is None else (resumed.read, resumed.iterator)))
        self.adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Notify Keras's adapter."""
        if self._indexed is not None and self._data.spans_epochs and self._data.has_begun:
            self._indexed.end_epoch()
            return
        self.adapter.on_epoch_end()
        if self._indexed is not None:
            self._indexed.end_pass()

    def _begin_pass(self, iterable: Callable[[], Iterable[Nest]]) -> Iterator[Nest]:
        return self._data.begin_pass(Source(iterable, self._indexed, converts=self._dataset))
