"""Turn the batches of Keras's data adapters into the arguments of a compiled step.

TPUs need few shapes, and devices need equal parts. So a batch that is short, or that cannot be split evenly over the
devices, is padded with copies of its last row, and the step gets the number of rows that count. If a model has code
that must see only the examples, a batch keeps its size, and one that cannot be split evenly is replicated on every
device. Either way nothing is dropped and nothing counts twice.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.padding import MARK, PaddedBatch, without_own_weights
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat.keras3 import execution
from keras_tpu_ext._runtime.jax.batch import is_jax_sparse
from keras_tpu_ext._runtime.jax.saved_programs import offered_steps
from keras_tpu_ext._runtime.jax.scope import distribution_of, num_replicas, shard_data, use_distribution

get_data_adapter: Any = private("keras.src.trainers.data_adapters:get_data_adapter")
DataAdapter: Any = private("keras.src.trainers.data_adapters.data_adapter:DataAdapter")
is_scipy_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:is_scipy_sparse")
is_tensorflow_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:is_tensorflow_sparse")
scipy_sparse_to_jax_sparse: Any = private(
    "keras.src.trainers.data_adapters.data_adapter_utils:scipy_sparse_to_jax_sparse"
)
tf_sparse_to_jax_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:tf_sparse_to_jax_sparse")


Method = Literal["fit", "evaluate", "predict"]


def first_execution(adapter: Any, read: list[Nest]) -> list[tuple[Any, ...]]:
    """Return an execution for Keras to build a model from; batches that it reads, which is one, go to `read` too."""

    def batches() -> Iterator[Nest]:
        for batch in adapter.get_numpy_iterator():
            read.append(with_jax_sparse(without_own_weights(batch)))
            yield jax.tree.map(_as_jax_has_it, read[-1], is_leaf=is_jax_sparse)

    return [execution(0, 0, batches())]


def _as_jax_has_it(leaf: Any) -> Nest:
    """Return an array, or its shape in 32 bits: Keras would ask for its 64, of which JAX warns since 0.11."""
    if is_jax_sparse(leaf) or str(leaf.dtype) not in ("int64", "uint64", "float64"):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))


class GroupedDataAdapter(DataAdapter):
    """A data adapter of Keras whose batches come in groups, ready for a model's own step to `method`."""

    def __init__(self, model: Model, adapter: Any, method: Method) -> None:
        self._model = model
        self._adapter = adapter
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def get_jax_iterator(self, super_batch: int | None = None) -> Any:
        """Return an iterator over groups of batches, which already are what Keras 3.16 calls a `super_batch`."""
        model, adapter = self._model, self._adapter
        # Executions have the room that they have in compiled programs, also if there are fewer batches.
        has_room = self._method != "predict" and int(model.steps_per_execution) == offered_steps()
        batches = batches_of(
            model,
            fills_up=_may_be_short(adapter, num_replicas(model)),
            may_pad=lambda data: model._kte.separability.may_pad(self._method, data),
            most_steps=None if has_room else adapter.num_batches,
            rows=getattr(adapter, "rows_before", 0),
        )
        return batches.executions(adapter.get_numpy_iterator(), lambda: _requested_steps(model))

    # Not found by `__getattr__`: Keras's base class has them.
    num_batches = property(operator.attrgetter("_adapter.num_batches"))
    batch_size = property(operator.attrgetter("_adapter.batch_size"))
    has_partial_batch = property(operator.attrgetter("_adapter.has_partial_batch"))
    partial_batch_size = property(operator.attrgetter("_adapter.partial_batch_size"))
    on_epoch_begin = property(operator.attrgetter("_adapter.on_epoch_begin"))
    on_epoch_end = property(operator.attrgetter("_adapter.on_epoch_end"))


def grouped_data(model: Model, arguments: dict[str, Any]) -> GroupedDataAdapter:
    """Return the adapter of the data that `predict` was called with, after building the model on them if necessary.

    Keras would mistake an execution's groups for a batch to build on.
    """
    adapter = get_data_adapter(
        arguments["x"], batch_size=arguments.get("batch_size"), steps_per_epoch=arguments.get("steps")
    )
    if not all(layer.built for layer in model._flatten_layers()):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(with_jax_sparse(next(iter(adapter.get_numpy_iterator()))))
        with use_distribution(distribution_of(model)), keras.StatelessScope():
            model(x)
    return GroupedDataAdapter(model, adapter, "predict")


def _requested_steps(model: Model) -> tuple[int, int]:
    """Return the number of steps of the next execution, and the most that an execution may have."""
    schedule, most = model._kte.schedule, int(model.steps_per_execution)
    return (most, most) if schedule is None or schedule.held else (int(schedule.requested_steps), most)


def _may_be_short(adapter: Any, replicas: int) -> bool:
    """Return whether a batch may be shorter than the others, or cannot be split evenly."""
    if not adapter.batch_size or adapter.batch_size % replicas:
        return True
    if adapter.has_partial_batch is not None:
        return bool(adapter.has_partial_batch)
    inner = getattr(adapter, "adapter", adapter)
    return type(inner).__name__ != "TFDatasetAdapter"  # whose batch size comes from a static shape


class Group(NamedTuple):
    """Batches of one shape, on the devices."""

    data: Nest  # the batch; with `steps`, several of them along a new first dimension
    examples: Any  # int32, the number of rows of each batch that count, a vector with `steps`; `None` if all do
    steps: Any  # int32, the number of batches; `None` for a single batch without that dimension


class HostBatch(NamedTuple):
    """A batch on the host."""

    data: Nest  # what the model takes, as NumPy arrays, or their shapes, for `lowering.py`
    rows: int  # number of rows, all of them examples
    space: int = 0  # number of rows that it was padded to before
    # Whether it is replicated, is not padded and forms its own group: its parts have different numbers of rows, such
    # as labelled and unlabelled examples, or it has sparse matrices.
    is_whole: bool = False


class Batches:
    """Makes groups of the batches of one pass over the data.

    Args:
        distribution: Keras's `DataParallel`, or `None`.
        replicas: Number of devices over which a batch is split.
        fills_up: Whether to pad batches.
        may_pad: Returns whether a batch may be padded, given its data.
        most_steps: The most batches that an execution may have, if known: the number in an epoch.
        rows: The most rows that a batch has had before these.
    """

    def __init__(
        self,
        distribution: Any,
        replicas: int,
        *,
        fills_up: bool,
        may_pad: Callable[[Nest], bool] = lambda data: True,
        most_steps: int | None = None,
        rows: int = 0,
    ) -> None:
        self._distribution = distribution
        self._replicas = replicas
        self._fills_up = fills_up
        self._may_pad = may_pad
        self._most_steps = most_steps
        self._space = -(-rows // replicas) * replicas

    def executions(self, source: Any, steps: Callable[[], tuple[int, int]]) -> Iterator[list[Group]]:
        """Yield the groups of one execution after the other.

        `steps` returns the number of batches for the next execution, and the number to leave room for: a shorter last
        execution with the room of the others needs no other program.
        """
        iterator = iter(source)
        while True:
            wanted, room = steps()
            batches = [host_batch(batch) for batch in itertools.islice(iterator, wanted)]
            if not batches:
                return
            yield self.groups(batches, room if self._most_steps is None else min(room, self._most_steps))

    def groups(self, batches: Sequence[HostBatch], room: int = 1) -> list[Group]:
        """Return groups that hold `batches` in their order, each with room for `room` of them."""
        padded = [self._fills_up and not batch.is_whole and self._may_pad(batch.data) for batch in batches]
        pairs = list(zip(batches, padded, strict=True))
        largest = max((max(batch.rows, batch.space) for batch, pads in pairs if pads), default=0)
        self._space = max(self._space, -(-largest // self._replicas) * self._replicas)
        alike = itertools.groupby(pairs, key=lambda pair: _key(*pair))
        return [self._group([batch for batch, _ in group], room, pads=key[0]) for key, group in alike]

    def _group(self, batches: list[HostBatch], room: int, *, pads: bool) -> Group:
        if batches[0].is_whole:
            return Group(shard_data(batches[0].data, self._distribution, axis=None), None, None)
        rows = self._space if pads else batches[0].rows
        examples = np.asarray([batch.rows for batch in batches], np.int32) if pads else None
        splits = rows % self._replicas == 0
        if room == len(batches) == 1:
            one = jax.tree.map(lambda leaf: _with_rows(leaf, rows), batches[0].data)
            on_devices = shard_data(one, self._distribution, axis=0 if splits else None)
            return Group(on_devices, None if examples is None else examples[0], None)
        room = max(room, len(batches))
        stack = jax.tree.map(lambda *leaves: _stacked(leaves, rows, room), *[batch.data for batch in batches])
        on_devices = shard_data(stack, self._distribution, axis=1 if splits else None)
        if examples is not None:
            examples = np.pad(examples, (0, room - len(batches)))
        return Group(on_devices, examples, np.int32(len(batches)))


def _key(batch: HostBatch, pads: bool) -> tuple[bool, Any]:
    """Return whether a batch is padded, and what else the batches of a group have in common."""
    if batch.is_whole:
        return False, id(batch)
    leaves, structure = jax.tree.flatten(batch.data)
    return pads, (None if pads else batch.rows, structure, *((leaf.shape[1:], leaf.dtype) for leaf in leaves))


def batches_of(model: Model, **options: Any) -> Batches:
    """Return `Batches` for the devices that train `model`."""
    return Batches(distribution_of(model), num_replicas(model), **options)


def host_batch(batch: Nest) -> HostBatch:
    """Return a batch as NumPy arrays, without the rows that `pad_batches` has added."""
    space = 0
    if type(batch) is tuple and batch and all(type(part) is np.ndarray and part.ndim for part in batch):
        # The usual case; what follows takes microseconds.
        return HostBatch(batch, len(batch[0]), is_whole=any(len(part) != len(batch[0]) for part in batch))
    if isinstance(batch, PaddedBatch):
        weight = np.asarray(next(leaf for leaf in jax.tree.leaves(batch.sample_weight)))
        real = np.any(weight.view(np.int32) != np.float32(MARK).view(np.int32), axis=tuple(range(1, weight.ndim)))
        space, examples = len(real), int(real.sum())
        batch = tuple(without_own_weights(batch))
        at_the_end = real[:examples].all()
        batch = jax.tree.map(
            lambda leaf: np.asarray(leaf)[:examples] if at_the_end else np.asarray(leaf)[real], batch
        )
    else:
        batch = with_jax_sparse(batch)
        leaves = jax.tree.leaves(batch, is_leaf=is_jax_sparse)
        if any(is_jax_sparse(leaf) for leaf in leaves):
            return HostBatch(batch, leaves[0].shape[0], is_whole=True)
        batch = jax.tree.map(_host_array, batch)
    leaves = jax.tree.leaves(batch)
    return HostBatch(batch, leaves[0].shape[0], space, is_whole=len({leaf.shape[:1] for leaf in leaves}) > 1)


def _host_array(leaf: Any) -> jax.ShapeDtypeStruct | np.ndarray:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)


def with_jax_sparse(batch: Nest) -> Nest:
    """Return a batch with JAX's sparse matrices in place of those of SciPy and TensorFlow."""

    def converted(leaf: Any) -> Nest:
        if is_scipy_sparse(leaf):
            return scipy_sparse_to_jax_sparse(leaf)
        return tf_sparse_to_jax_sparse(leaf) if is_tensorflow_sparse(leaf) else leaf

    return jax.tree.map(converted, batch, is_leaf=is_tensorflow_sparse)


def _with_rows(leaf: Any, rows: int) -> jax.ShapeDtypeStruct | np.ndarray:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
    return leaf if leaf.shape[0] == rows else _stacked([leaf], rows, 1)[0]


def _stacked(leaves: Sequence[Any], rows: int, room: int) -> jax.ShapeDtypeStruct | np.ndarray:
    """Return arrays stacked along a new first dimension of size `room`, each padded to `rows` rows."""
    if isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((room, rows, *leaves[0].shape[1:]), leaves[0].dtype)
    stack = np.empty((room, rows, *leaves[0].shape[1:]), leaves[0].dtype)
    for batch, leaf in zip(stack, leaves, strict=False):
        batch[: len(leaf)] = leaf
        batch[len(leaf) :] = leaf[-1:]
    stack[len(leaves) :] = 0
    return stack
