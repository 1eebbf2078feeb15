"""Virtual CPU devices for a rehearsal, and input for their replicas that does not stall."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch, install
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.errors import ScopeError

_IteratorSpec: Any = private("tensorflow.python.data.ops.iterator_ops:IteratorSpec")
_DistributedIterator: Any = private("tensorflow.python.distribute.input_lib:_SingleWorkerOwnedDatasetIterator")
_DistributedIteratorSpec: Any = private("tensorflow.python.distribute.input_lib:_SingleWorkerDatasetIteratorSpec")


@functools.cache
def skip_replica_iterators() -> None:
    """Let replicas on CPUs take their parts of a batch directly from the pipeline, one after the other.

    TensorFlow gives each replica its own iterator, which copies its part to another device. On TensorFlow 2.21 with
    two cores, these cost a tenth of a second per replica at the start of each pass, and up to 80 seconds at its end,
    because the autotuning thread missed its stop signal.
    """
    ours: dict[str, Callable[..., Nest]] = {
        "_make_iterator": _make_iterator,
        "get_next_as_list": _next_parts,
        "get_next_as_optional_list": _next_optional_parts,
    }
    prefix = "tensorflow.python.distribute.input_lib._SingleWorker"
    for name, function in ours.items():
        make = functools.partial(_on_cpus_else, function)
        install([(_DistributedIterator, f"{prefix}OwnedDatasetIterator.{name}", make)])
    specs: Patch = (
        _DistributedIteratorSpec,
        f"{prefix}DatasetIteratorSpec._component_specs",
        lambda stock: property(_on_cpus_else(_component_specs, stock.fget)),
    )
    install([specs])


def _on_cpus_else(ours: Callable[..., Nest], stock: Callable[..., Nest]) -> Callable[..., Nest]:
    """Return a method that is `ours` if batches are split over CPUs only, and `stock` otherwise."""

    @functools.wraps(stock)
    def method(self: Any, *args: object, **kwargs: object) -> Nest:
        modes = tf.distribute.InputReplicationMode
        is_split = self._options is None or self._options.experimental_replication_mode == modes.PER_WORKER
        are_cpus = all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in self._devices)
        return (ours if is_split and are_cpus else stock)(self, *args, **kwargs)

    return method


def _make_iterator(self: Any) -> None:
    with tf.device(self._worker):
        self._iterator = iter(self._dataset)


def _next_parts(self: Any, name: str | None = None) -> list[Nest]:
    with tf.device(self._worker):
        return [_copied(self._iterator.get_next()) for _ in self._devices]


def _next_optional_parts(self: Any) -> list[_CopiedOptional]:
    with tf.device(self._worker):
        return [_CopiedOptional(self._iterator.get_next_as_optional()) for _ in self._devices]


class _CopiedOptional:
    """A `tf.experimental.Optional` whose value is a copy."""

    def __init__(self, optional: tf.experimental.Optional) -> None:
        self.element_spec = optional.element_spec
        self.has_value = optional.has_value
        self._optional = optional

    def get_value(self) -> Nest:
        """Return a copy of the value."""
        return _copied(self._optional.get_value())


def _copied(part: Nest) -> Nest:
    """Return a copy, as TensorFlow makes for another device.

    What a generator yields stays in the memory of its arrays. The last operation that needs an input may write its
    result there, so training would change the user's data.
    """
    return tf.nest.map_structure(
        lambda leaf: leaf if leaf.dtype == tf.variant else tf.raw_ops.DeepCopy(x=leaf), part, expand_composites=True
    )


def _component_specs(self: Any) -> list[Any]:
    return [_IteratorSpec(element_spec=self._element_spec)]


def make_virtual_cpus(count: int) -> None:
    """Make at least `count` logical CPU devices; do nothing if there are enough."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        existing = max(1, len(configured))
        raise ScopeError(
            f"strategy_scope(replicas={count}) needs {count} virtual CPU devices, but TensorFlow has already "
            f"started its devices with {existing} of them; they cannot be added afterwards. "
            f"An earlier call came too early{early_calls()}. "
            f"What to do: write `with strategy_scope(replicas={count}) as scope:` before the first line that "
            "makes a tensor, a model or a dataset; "
            "in a notebook, restart the kernel first."
        ) from error


def early_calls() -> str:
    """Name, for the error, the live objects that the call that started the devices must have made."""
    alive: dict[str, str] = {}
    for thing in gc.get_objects():
        for kind, label in ((tf.Variable, "variable"), (tf.data.Dataset, "dataset"), (tf.Tensor, "tensor")):
            if issubclass(type(thing), kind):
                alive.setdefault(label, getattr(thing, "name", "") if kind is tf.Variable else "")
    if not alive:
        return " (one that made a tensor or listed the logical devices, say)"
    return ": it made " + " and ".join(f"a {label} {name}".strip() for label, name in sorted(alive.items()))
