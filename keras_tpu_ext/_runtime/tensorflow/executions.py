"""Executions of a running `fit` on TensorFlow.

Private names of TensorFlow that this module leans on (tests/_runtime/test_tensorflow_executions.py watches them):
`PerReplicaSpec._value_specs`, and of newer ones `iterator_model_ops.get_model_proto`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.executions import Execution, Interception, Stage
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers

_NANOSECONDS = 1e-9


class TensorFlowExecution(Execution):
    """An `Execution` on TensorFlow."""

    _ends = (StopIteration, tf.errors.OutOfRangeError)

    def wait_for(self, result: Any) -> None:
        """Wait by reading what it returned."""
        for leaf in tf.nest.flatten(result):
            if isinstance(leaf, tf.Tensor):
                leaf.numpy()

    def run_and_describe(self) -> tuple[Any, Any]:
        """Make the call; return what it returns, and the specs of a batch, as a rule of any size."""
        return self.run(), getattr(self._args[-1], "element_spec", None)

    def stages(self) -> list[Stage]:
        """Return the stages, by what tf.data's own tuning has noted."""
        return _stages(self._args[-1])

    def _model_steps(self) -> int:
        steps = self._model.steps_per_execution
        if isinstance(steps, int):
            return steps
        steps = getattr(self._model, "_steps_per_execution", steps)  # Keras 2: a variable, or None
        return 1 if steps is None else int(steps.numpy())

    def _can_take_from(self, iterator: Any) -> bool:
        # In several processes each would have to take the same at the same time.
        return isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)) and num_workers() == 1

    def _bytes_of(self, item: Any) -> int:
        tensors = tf.nest.flatten(self._parts_of(item), expand_composites=True)
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors if tensor is not None)

    def _parts_of(self, item: Any) -> list[Any]:
        """Return the parts that replicas have of a batch."""
        strategy = self._model.distribute_strategy
        leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(item)]
        return [tf.nest.pack_sequence_as(item, part) for part in zip(*leaves, strict=True)]

    def _source_of(self, items: list[Any]) -> Any:
        iterator = self._args[-1]
        if not isinstance(iterator, tf.distribute.DistributedIterator):
            return iter(_held(items, iterator.element_spec))
        parts = [part for item in items for part in self._parts_of(item)]
        # The parts of a batch have one description in all, or the step would be traced for each.
        spec = tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], iterator.element_spec)
        strategy = self._model.distribute_strategy
        return iter(strategy.distribute_datasets_from_function(lambda context: _held(parts, spec)))


def _held(items: list[Any], spec: Any) -> tf.data.Dataset:
    """Return a dataset of `items`, which are in memory, described as `spec` says: else steps were traced anew."""
    dataset = _slices(items, spec) or tf.data.Dataset.from_generator(lambda: iter(items), output_signature=spec)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread can miss its stop, and the end of an iterator then takes seconds
    options.experimental_optimization.apply_default_optimizations = False  # finding them takes longer than this does
    dataset = dataset.cache().with_options(options)
    for _ in dataset:  # which fills the cache
        pass
    return dataset


def _slices(items: list[Any], spec: Any) -> tf.data.Dataset | None:
    """Return a dataset that cuts `items` out of one tensor, which needs no tracing; `None` where they vary."""
    leaves = [tf.nest.flatten(item) for item in items]
    if not all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for item in leaves for leaf in item):
        return None
    rows = [{int(leaf.shape[0]) for leaf in item} for item in leaves]
    sizes = [next(iter(of_item)) for of_item in rows if len(of_item) == 1]
    if len(sizes) < len(items) or len(set(sizes[:-1]) | {max(sizes)}) > 1 or not sizes[0]:
        return None
    joined = [tf.concat(column, axis=0) for column in zip(*leaves, strict=True)]
    is_static = all(part.shape.rank and part.shape[0] is not None for part in tf.nest.flatten(spec))
    dataset = tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(items[0], joined))
    dataset = dataset.batch(sizes[0], drop_remainder=is_static)
    return dataset if dataset.element_spec == spec else None


def _stages(iterator: Any) -> list[Stage]:
    read = _model_reader()
    if read is None or not hasattr(iterator, "_iterator_resource"):
        return []
    try:
        nodes = read(iterator).nodes
    except tf.errors.OpError:  # its tuning is off
        return []
    batches = max((node.num_elements for node in nodes.values() if node.name == "Root"), default=0)
    if not batches:
        return []
    found = []
    for _, node in sorted(nodes.items()):
        parallel = max((one.value for one in node.parameters if one.name == "parallelism"), default=1.0)
        found.append(Stage(node.name, node.processing_time * _NANOSECONDS / batches / max(parallel, 1.0)))
    return found


@functools.cache
def _model_reader() -> Callable[[Any], Any] | None:
    """Return how to read what tf.data knows of a pipeline's stages; TensorFlow 2.15 has no such thing."""
    try:
        from tensorflow.python.data.experimental.ops import iterator_model_ops
    except ImportError:
        return None
    read: Callable[[Any], Any] = iterator_model_ops.get_model_proto
    return read


def intercept_executions(model: Any, around: Callable[[Execution], Any]) -> Interception:
    """Let `around` make the calls of the train function of `model`, which is in `fit`."""
    return Interception(model, TensorFlowExecution, around)
