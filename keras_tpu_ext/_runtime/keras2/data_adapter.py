"""How Keras 2 reads batches: padded ones, executions of varying length, and from the middle of the data."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import override
from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import DataAdapter, DataHandler, Model, Nest
from keras_tpu_ext._runtime.common.values import Place
from keras_tpu_ext._runtime.compat.keras2 import keras, private
from keras_tpu_ext._runtime.tensorflow.training_state import DistributedPasses, dataset_of, keeping_seed
from keras_tpu_ext._runtime.training.batch_source import IndexedBatches, Source, indexed
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext.errors import ArgumentError

_OTHER_SHAPE = (
    "pad_batches got a Sequence whose batch number {index} has the shape {got}, and its first two say {needed}. On a "
    "TPU every other shape is another compilation. Bring all batches to one length in __getitem__: "
    "keras.utils.pad_sequences(x, maxlen=128)"
)


def replace_padded_batches(call: FitCall) -> None:
    """Replace a `Sequence` of padded batches among the arguments of a call by a dataset."""
    shuffle = call.method == "fit" and bool(call.arguments.get("shuffle", True))
    for name, shuffles in (("x", shuffle), ("validation_data", False)):
        if isinstance(call.arguments.get(name), GivesPaddedBatches):
            call.arguments[name] = _dataset(call.arguments[name], shuffle=shuffles)


def _dataset(batches: Any, *, shuffle: bool) -> tf.data.Dataset:
    """Return a dataset of the batches of a `Sequence`, in a new order in each pass if `shuffle`."""
    # As in Keras 3, the first two batches show the dimensions whose size varies.
    first = _with_tuples(batches[0])
    leaves = tf.nest.flatten(first)
    second = tf.nest.flatten(batches[1]) if len(batches) > 1 else leaves
    specs = [None if one is None else _spec(one, other) for one, other in zip(leaves, second, strict=True)]

    def one_pass() -> Iterator[Nest]:
        order = list(range(len(batches)))
        if shuffle:
            random.shuffle(order)
        for index in order:
            batch = batches[index]
            for leaf, spec in zip(tf.nest.flatten(batch), specs, strict=True):
                if spec is not None and not spec.shape.is_compatible_with(leaf.shape):
                    raise ArgumentError(_OTHER_SHAPE.format(index=index, got=leaf.shape, needed=tuple(spec.shape)))
            yield batch
        if not isinstance(batches, IndexedBatches):
            batches.on_epoch_end()

    dataset = dataset_of(one_pass, tf.nest.pack_sequence_as(first, specs))
    if isinstance(batches, IndexedBatches):  # whose passes may begin in the middle
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _spec(one: Any, other: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tf.TensorShape(one.shape).most_specific_compatible_shape(other.shape), one.dtype)


def _with_tuples(batch: Nest) -> Nest:
    """Return a structure with tuples in place of its lists, which tf.data would turn into tensors."""
    if isinstance(batch, Mapping):
        return {name: _with_tuples(part) for name, part in batch.items()}
    if isinstance(batch, PaddedBatch):
        return type(batch)(*map(_with_tuples, batch))
    return tuple(map(_with_tuples, batch)) if isinstance(batch, (list, tuple)) else batch


_TensorLikeDataAdapter: Any = private("engine.data_adapter:TensorLikeDataAdapter")
_GeneratorDataAdapter: type = private("engine.data_adapter:GeneratorDataAdapter")
_data_adapter = private("engine.data_adapter")
_DataHandler: Any = private("engine.data_adapter:DataHandler")


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


class _Handler(_DataHandler):
    """A `DataHandler` that follows the model's schedule, and whose first epoch may start in its middle.

    With a schedule it asks the model before every execution how many steps it has: none reaches over the end of an
    epoch, and the size of the data need not be known.
    """

    def __init__(self, *args: object, model: Model, steps_per_execution: object = None, **kwargs: object) -> None:
        running = model._kte.running
        passes = None if running is None else running.data
        self._passes: HandledPasses | None = None if passes is None or passes.handler is not None else passes
        if model._kte.schedule is not None:
            # Keras gets 1, because for more it would ask for the size of the data.
            steps_per_execution = tf.Variable(1, dtype=tf.int64)
        super().__init__(*args, model=model, steps_per_execution=steps_per_execution, **kwargs)

    def steps(self: DataHandler) -> Iterator[int]:
        """Yield the first step of each execution of one epoch."""
        schedule = self._model._kte.schedule
        if schedule is None:
            handler: DataHandler = super()
            yield from handler.steps()
            return
        self._current_step, self._initial_step = self._initial_step, 0
        while not self._insufficient_data:
            steps = int(self._model.steps_per_execution)
            if self._inferred_steps is not None:
                steps = min(steps, self._inferred_steps - self._current_step)
            if steps <= 0:
                return
            schedule.requested_steps = schedule.completed_steps = steps
            self._step_increment = steps - 1
            yield self._current_step
            if self._inferred_steps is None and int(schedule.completed_steps) < steps:
                self._inferred_steps = self._current_step + int(schedule.completed_steps)
            self._current_step += steps

    def _configure_dataset_and_inferred_steps(
        self: DataHandler,
        strategy: tf.distribute.Strategy,
        x: object,
        steps_per_epoch: int | None,
        class_weight: object,
        distribute: bool,
    ) -> None:
        handler: DataHandler = super()
        data, adapter = self._passes, self._adapter
        if data is None:
            handler._configure_dataset_and_inferred_steps(strategy, x, steps_per_epoch, class_weight, distribute)
            return
        data.handler = self
        if data.indexed is not None:
            override(adapter, "get_size", data.indexed.size)
            override(adapter, "on_epoch_end", _and(adapter.on_epoch_end, data.indexed.end_pass))
            if x is not data.indexed:  # then it is a dataset of padded batches, of unknown size
                is_each = steps_per_epoch in (None, data.indexed.size())
                override(adapter, "should_recreate_iterator", lambda: is_each)
        handler._configure_dataset_and_inferred_steps(strategy, x, steps_per_epoch, class_weight, False)
        dataset = self._dataset
        data.spans_epochs = not adapter.should_recreate_iterator()
        data.has_length = self._inferred_steps is not None
        source = Source(lambda: dataset, data.indexed, why_no_state=_why_no_state(adapter))
        self._dataset = DistributedPasses(strategy, data, source, dataset, skips_first=not data.spans_epochs)
        data.element_spec = dataset.element_spec

    def enumerate_epochs(self: DataHandler) -> Iterator[tuple[int, Iterator[Nest]]]:
        """Yield every epoch and its iterator."""
        if self._passes is not None and self._passes.first_epoch is not None:
            self._initial_epoch = self._passes.first_epoch
            self._initial_step, _ = self._passes.take_first_batch()
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


def use_data_handlers() -> contextlib.AbstractContextManager[None]:
    """Return a context in which data handlers follow the model's schedule and may start in the middle of the data."""

    def make(stock: Callable[..., DataHandler]) -> Callable[..., DataHandler]:
        def get_data_handler(*args: Any, **kwargs: Any) -> DataHandler:
            program = getattr(kwargs.get("model"), "_kte", None)
            resumes = getattr(getattr(program, "running", None), "data", None) is not None
            has_schedule = getattr(program, "schedule", None) is not None
            return (_Handler if resumes or has_schedule else stock)(*args, **kwargs)

        return get_data_handler

    return patched([(_data_adapter, "keras.src.engine.data_adapter.get_data_handler", make)])
