"""Probes of a train step, on TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import tensorflow as tf

from keras_tpu_ext._runtime.common.executions import CompileWatch, Execution, Interception, Stage, Step
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat.tensorflow import get_model_proto, graph_building_time
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers
from keras_tpu_ext._runtime.tensorflow.flops import count_flops as count_flops
from keras_tpu_ext._runtime.tensorflow.lowering import lower_programs as lower_programs
from keras_tpu_ext._runtime.tensorflow.lowering import lower_step as lower_step

_NANOSECONDS = 1e-9


class TensorFlowExecution(Execution):
    """An `Execution` on TensorFlow."""

    _end_errors = (StopIteration, tf.errors.OutOfRangeError)

    def wait_for(self, result: Nest) -> None:
        """Wait by reading the tensors."""
        for leaf in tf.nest.flatten(result):
            if isinstance(leaf, tf.Tensor):
                leaf.numpy()

    def batches(self) -> list[Nest]:
        """Return the iterator's element spec."""
        spec = getattr(self._args[-1], "element_spec", None)
        return [] if spec is None else [spec]

    def stages(self) -> list[Stage]:
        """Return the stages as measured by tf.data's autotuning."""
        return _stages(self._args[-1])

    def _model_steps(self) -> int:
        steps = self._model.steps_per_execution
        if isinstance(steps, int):
            return steps
        steps = getattr(self._model, "_steps_per_execution", steps)  # Keras 2: a variable, or None
        return 1 if steps is None else int(steps.numpy())

    def _can_take_from(self, iterator: Iterator[Nest]) -> bool:
        # With several processes, each would have to take the same at the same time.
        return isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)) and num_workers() == 1

    def _bytes_of(self, item: Nest) -> int:
        tensors = tf.nest.flatten(self._local_results(item), expand_composites=True)
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors if tensor is not None)

    def _local_results(self, item: Nest) -> list[Nest]:
        """Return the part of a batch that each replica has."""
        strategy = self._model.distribute_strategy
        leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(item)]
        return [tf.nest.pack_sequence_as(item, part) for part in zip(*leaves, strict=True)]

    def _source_of(self, items: Sequence[Nest]) -> Iterator[Nest]:
        with tracing_data():
            return self._iterator_over(items)

    def _iterator_over(self, items: Sequence[Nest]) -> Iterator[Nest]:
        iterator: tf.data.Iterator = self._args[-1]
        if not isinstance(iterator, tf.distribute.DistributedIterator):
            return iter(_dataset_of(items, iterator.element_spec))
        parts = [part for item in items for part in self._local_results(item)]
        # With one spec for all parts, the step is traced once.
        spec = tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], iterator.element_spec)
        strategy = self._model.distribute_strategy
        return iter(strategy.distribute_datasets_from_function(lambda context: _dataset_of(parts, spec)))


def _dataset_of(items: Sequence[Nest], spec: Nest) -> tf.data.Dataset:
    """Return a cached dataset of `items` with the element spec `spec`, so that no step is retraced."""
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread can miss its stop signal, and ending an iterator then takes seconds
    options.experimental_optimization.apply_default_optimizations = False  # finding them takes longer than reading
    dataset = tf.data.Dataset.from_generator(lambda: iter(items), output_signature=spec).cache().with_options(options)
    for _ in dataset:  # fills the cache
        pass
    return dataset


def _stages(iterator: Iterator[Nest]) -> list[Stage]:
    if get_model_proto is None or not hasattr(iterator, "_iterator_resource"):
        return []
    try:
        nodes = get_model_proto(iterator).nodes
    except tf.errors.OpError:  # autotuning is off
        return []
    batches = max((node.num_elements for node in nodes.values() if node.name == "Root"), default=0)
    if not batches:
        return []
    stages = []
    for _, node in sorted(nodes.items()):
        parallelism = max((one.value for one in node.parameters if one.name == "parallelism"), default=1.0)
        stages.append(Stage(node.name, node.processing_time * _NANOSECONDS / batches / max(parallelism, 1.0)))
    return stages


def intercept_executions(model: Model, around: Callable[[Execution], Nest], step: Step = "train") -> Interception:
    """Pass each call of the train or test function of `model`, which is in `fit`, to `around`."""
    return Interception(model, TensorFlowExecution, around, step)


_MICROSECONDS = 1e-6
_of_data = [0.0]  # microseconds in `tracing_data`


class TracingWatch(CompileWatch):
    """Counts the seconds that the process spends on tracing functions, those of `tf.data` too, when a fit begins."""

    sees_compiler = False

    def __init__(self) -> None:
        super().__init__()
        self._before = _counter.value() - _of_data[0]

    def seconds(self) -> float:
        """Return the seconds since the watch was opened, of all threads."""
        return (_counter.value() - _of_data[0] - self._before) * _MICROSECONDS


_counter = graph_building_time.get_cell()


@contextlib.contextmanager
def tracing_data() -> Iterator[None]:
    """Within the block tracing is not counted: this package makes a pipeline of its own."""
    before = _counter.value()
    try:
        yield
    finally:
        _of_data[0] += _counter.value() - before


_T = TypeVar("_T")
watch_compiles = TracingWatch


def call_abstractly(function: Callable[[], _T]) -> _T:
    """Call a function; here variables always have values. See `training/protocols.py`."""
    return function()


def start_profiler(directory: str) -> None:
    """Start TensorFlow's profiler."""
    try:
        tf.profiler.experimental.start(directory)
    except tf.errors.AlreadyExistsError as error:
        raise RuntimeError(error.message) from error


def stop_profiler() -> None:
    """Stop the profiler, and write what it recorded."""
    tf.profiler.experimental.stop()


def profiled_step(name: str, step: int) -> AbstractContextManager[object]:
    """Return a context whose span a running profiler records under a name, with the number of a step."""
    return tf.profiler.experimental.Trace(name, step_num=step, _r=1)  # _r: a step, to TensorBoard
