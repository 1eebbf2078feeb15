"""Let Keras 3 read the batches of `fit` so that it can start in the middle of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from keras_tpu_ext._runtime.common.missing_names import override, private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import DataAdapter, Dataset, Nest
from keras_tpu_ext._runtime.training.batch_source import RememberedDataset, Source, indexed
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext.errors import ArgumentError

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
