"""Let Keras 2 read the batches of `fit` so that it can start in the middle of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.types import DataAdapter, DataHandler, Nest
from keras_tpu_ext._runtime.common.values import Place
from keras_tpu_ext._runtime.compat.keras2 import keras, private
from keras_tpu_ext._runtime.tensorflow.resumable_data import DistributedPasses, keeping_seed
from keras_tpu_ext._runtime.training.batch_source import Source
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.indexed_batches import indexed
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses

_TensorLikeDataAdapter: Any = private("engine.data_adapter:TensorLikeDataAdapter")
_GeneratorDataAdapter: type = private("engine.data_adapter:GeneratorDataAdapter")


@contextlib.contextmanager
def reading_batches(call: FitCall, first_epoch: int | None, seed: int | None) -> Iterator[ResumablePasses]:
    """Within the block, `fit` reads its batches so that it can start in the middle of the data."""
    data = HandledPasses(first_epoch)
    given = call.arguments.get("x")
    if isinstance(given, keras.utils.Sequence):
        shuffle = bool(call.arguments.get("shuffle", True))
        data.indexed = indexed(given, shuffle=shuffle, read_ahead=True)
        call.arguments["x"], call.arguments["shuffle"] = data.indexed, False
    call.data = data
    with keeping_seed(data, seed):
        yield data


class HandledPasses(ResumablePasses):
    """The batches of one `fit`, which a `DataHandler` requests."""

    def __init__(self, first_epoch: int | None) -> None:
        super().__init__(reads_ahead=True, spans_epochs=False, begins_before_epoch=True)
        self.first_epoch = first_epoch
        # The one for the training data, if it exists: the next ones are for the validation data.
        self.handler: DataHandler | None = None
        self.element_spec: Nest = None  # the specs of a batch

    def resume(self, place: Place, batch: int, restore: Callable[[], object] = lambda: None) -> None:
        """Let the first epoch start where another process stopped, with the length of the data that it learnt."""
        super().resume(place, batch, restore)
        if self.handler is not None and self.handler._inferred_steps is None:
            self.handler._inferred_steps = place.size

    def place(self, *, at_once: bool) -> Place | None:
        """Return the position in the data after the batches that were trained on; see `ResumablePasses`."""
        found = super().place(at_once=at_once)
        return found if found is None or self.handler is None else found._replace(size=self.handler._inferred_steps)


class ResumesData:
    """Mixin before a `DataHandler`, whose first epoch may start in its middle."""

    def _configure_dataset_and_inferred_steps(
        self: DataHandler,
        strategy: tf.distribute.Strategy,
        x: object,
        steps_per_epoch: int | None,
        class_weight: object,
        distribute: bool,
    ) -> None:
        data, adapter = self._model._kte.running.data, self._adapter
        data.handler = self
        if data.indexed is not None:
            override(adapter, "get_size", data.indexed.size)
            override(adapter, "on_epoch_end", _and(adapter.on_epoch_end, data.indexed.end_pass))
            if x is not data.indexed:  # then it is a dataset of padded batches, of unknown size
                is_each = steps_per_epoch in (None, data.indexed.size())
                override(adapter, "should_recreate_iterator", lambda: is_each)
        handler: DataHandler = super()
        handler._configure_dataset_and_inferred_steps(strategy, x, steps_per_epoch, class_weight, False)
        dataset = self._dataset
        data.spans_epochs = not adapter.should_recreate_iterator()
        data.has_length = self._inferred_steps is not None
        source = Source(lambda: dataset, data.indexed, why_no_state=_why_no_state(adapter))
        self._dataset = DistributedPasses(strategy, data, source, dataset, skips_first=not data.spans_epochs)
        data.element_spec = dataset.element_spec

    def enumerate_epochs(self: DataHandler) -> Iterator[tuple[int, Iterator[Nest]]]:
        """Yield every epoch and its iterator."""
        data = self._model._kte.running.data
        if data.first_epoch is not None:
            self._initial_epoch = data.first_epoch
            self._initial_step, _ = data.take_first_batch()
        handler: DataHandler = super()
        yield from handler.enumerate_epochs()


def _why_no_state(adapter: DataAdapter) -> str:
    if isinstance(adapter, _TensorLikeDataAdapter) and adapter._shuffle:
        return "Keras 2 shuffles arrays by an operation that tells no state"
    return "it reads an iterable in Python" if isinstance(adapter, _GeneratorDataAdapter) else ""


def _and(*calls: Callable[[], None]) -> Callable[[], None]:
    def call_all() -> None:
        for call in calls:
            call()

    return call_all
