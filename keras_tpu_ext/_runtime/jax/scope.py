"""Enter a distribution of Keras on JAX; models that are built inside stay bound to it.

Keras reads the global distribution when it trains, so a model that was built under one fails, or trains on one
device, after the block. Here every model that is built inside keeps its own distribution.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch, install, patched, temporarily
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import mesh_sizes
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, mesh_of
from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext._runtime.training.program import BLOCKS
from keras_tpu_ext.errors import ArgumentError, ScopeError
from keras_tpu_ext.output.display import mesh_text

_Trainer: Any = private("keras.src.models.model:Trainer")

_DISTRIBUTIONS: Any = weakref.WeakKeyDictionary()  # of models, which may be plain and have nothing of ours
_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_CURE = (
    "Keras's own step on JAX needs batches that can be split evenly over the {} devices, in validation_data too. "
    "Leave exact=False out of strategy_scope(), and the model trains on any batch"
)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Active(threading.local):
    """The distribution of the block that this thread is in."""

    distribution: keras.distribution.DataParallel | None = None


_ACTIVE = _Active()


def _binding_init(original: Callable[..., None]) -> Callable[..., None]:
    """Bind every new plain Keras model to the active distribution, for good."""

    @functools.wraps(original)
    def init(model: keras.Model, *args: object, **kwargs: object) -> None:
        original(model, *args, **kwargs)
        if BLOCKS.makes_plain:
            return
        if distribution_of(model) is None and _ACTIVE.distribution is not None:
            bind(model, _ACTIVE.distribution)
            if not isinstance(model, ExactModel):
                for name in _METHODS:
                    install([(model, f"a plain model's {name}", functools.partial(_in_own_distribution, model))])

    return init


@contextlib.contextmanager
def scope(distribution: keras.distribution.DataParallel) -> Iterator[None]:
    """Bind the variables and models that are created within the block to `distribution`, for good."""
    outer = _ACTIVE.distribution
    if outer is not None and outer != distribution:
        raise ScopeError(
            f"A block for {_describe(distribution)} was opened inside a block for {_describe(outer)}, and a model "
            "can belong to one strategy only. Leave the outer block first, or open the same scope again inside it."
        )
    patches: list[Patch] = [(_Trainer, "keras.src.models.model.Trainer.__init__", _binding_init)]
    with distribution.scope(), patched(patches), temporarily(_ACTIVE, distribution=distribution):
        yield


def distribution_of(model: keras.Model) -> keras.distribution.DataParallel | None:
    """Return the distribution that `model` is bound to, or `None`."""
    return _DISTRIBUTIONS.get(model)


def bind(model: keras.Model, distribution: keras.distribution.DataParallel | None) -> None:
    """Bind `model` to `distribution`."""
    _DISTRIBUTIONS[model] = distribution


@contextlib.contextmanager
def bound(model: keras.Model, distribution: keras.distribution.DataParallel) -> Iterator[None]:
    """Bind `model` to `distribution` within the block."""
    before = distribution_of(model)
    bind(model, distribution)
    try:
        yield
    finally:
        bind(model, before)


@contextlib.contextmanager
def use_distribution(distribution: keras.distribution.DataParallel | None) -> Iterator[None]:
    """Set Keras's global distribution within the block."""
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        with contextlib.nullcontext() if distribution is None else distribution.scope():
            yield
    finally:
        keras.distribution.set_distribution(before)


def num_replicas(model: keras.Model) -> int:
    """Return the number of replicas that train `model` synchronously: the size of the mesh's axis for batches."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    return 1 if distribution is None else batch_shards(distribution)


def batch_shards(distribution: keras.distribution.Distribution) -> int:
    """Return the number of parts into which a distribution splits a batch."""
    return mesh_sizes(distribution)[distribution.batch_dim_name]


def num_devices(model: keras.Model) -> int:
    """Return the number of devices that train `model`, which share the work of its replicas."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    return 1 if distribution is None else int(distribution.device_mesh.devices.size)


def device_name(model: keras.Model) -> str:
    """Return JAX's `device_kind` of the devices that train `model`, such as `"TPU v3"` or `"cpu"`."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    if distribution is None:
        return str(jax.devices()[0].device_kind)
    platform, _, _ = str(distribution.device_mesh.devices.flat[0]).partition(":")  # as in "tpu:0"
    return str(jax.local_devices(backend=platform)[0].device_kind)


def shard_data(data: Nest, distribution: keras.distribution.DataParallel | None, *, axis: int | None) -> Nest:
    """Return `data`, the same in every process, on the devices of `distribution`, or on the default device.

    The dimension `axis`, whose size must split evenly, is sharded; with `None` the data are replicated. Of data that
    are shapes, the result has the shapes and shardings.
    """
    sharding = None
    if distribution is not None and not _is_default_device(distribution):
        spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, distribution.batch_dim_name)
        sharding = NamedSharding(mesh_of(distribution), spec)
    if isinstance(next(iter(jax.tree.leaves(data)), None), jax.ShapeDtypeStruct):
        return jax.tree.map(lambda leaf: abstract_array(leaf.shape, leaf.dtype, sharding), data)
    if sharding is None:
        return jax.device_put(data)
    if sharding.is_fully_addressable:
        return jax.device_put(data, sharding)

    def put_own_shards(leaf: Any) -> jax.Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    return jax.tree.map(put_own_shards, data)


def replicated(distribution: keras.distribution.DataParallel | None) -> NamedSharding | None:
    """Return the sharding of a replicated array; `None` for the default device."""
    if distribution is None or _is_default_device(distribution):
        return None
    return NamedSharding(mesh_of(distribution), PartitionSpec())


def abstract_array(shape: Sequence[int], dtype: Any, sharding: NamedSharding | None) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and sharding of an array as JAX has it on devices, with 32 bits if it narrows 64 bits."""
    return jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(dtype), sharding=sharding)


def _is_default_device(distribution: keras.distribution.DataParallel) -> bool:
    """Return whether a distribution has one device, where arrays are anyway.

    There Keras makes variables without a mesh. With batches that have one, JAX would compile a step for variables
    without it, for those that come out of a step, and for both together.
    """
    mesh = mesh_of(distribution)
    return mesh.size == 1 and (not isinstance(mesh, jax.sharding.Mesh) or mesh.devices.flat[0] == jax.devices()[0])


def data_parallel(devices: Sequence[jax.Device]) -> keras.distribution.DataParallel:
    """Return Keras's distribution that splits batches over `devices`."""
    # Each process gets the whole batch and takes its part of it, so the dataset must not be sharded again.
    return keras.distribution.DataParallel(
        devices=[f"{device.platform}:{device.id}" for device in devices], auto_shard_dataset=False
    )


def distribute(distribution: keras.distribution.DataParallel, dataset: Iterable[Nest]) -> Iterable[Nest]:
    """Return `dataset`, an iterable of batches, with each batch sharded over the devices."""
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            f"distribute needs an iterable of batches; got {type(dataset).__name__}. Write "
            "scope.distribute(dataset) with a tf.data.Dataset, a keras.utils.PyDataset or a list of batches."
        )
    return _Distributed(distribution, dataset)


class _Distributed:
    """Iterable over the batches of a dataset, as sharded arrays."""

    def __init__(self, distribution: keras.distribution.DataParallel, dataset: Iterable[Nest]) -> None:
        self._distribution = distribution
        self._dataset = dataset

    def __iter__(self) -> Iterator[Nest]:
        replicas = batch_shards(self._distribution)
        for batch in self._dataset:
            for leaf in jax.tree.leaves(batch):
                if len(leaf) % replicas:
                    raise ArgumentError(
                        f"A batch of {len(leaf)} rows cannot be split evenly over {replicas} replicas, and a loop of "
                        "your own must not lose any. Write dataset.batch(scope.global_batch_size(32)) and take care "
                        "of a short last batch, with pad_batches for instance."
                    )
            yield shard_data(jax.tree.map(_host_array, batch), self._distribution, axis=0)


def _host_array(leaf: Any) -> Any:
    """Return a TensorFlow tensor as a NumPy array, because not every version of JAX accepts tensors."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _in_own_distribution(model: keras.Model, method: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(method)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        distribution = distribution_of(model) if replicated(distribution_of(model)) else None
        try:
            with (
                use_distribution(distribution),
                exact_operations(TracedDevices.of(distribution, exact_attention=False)),
            ):
                return method(*args, **kwargs)
        except ValueError as error:
            if type(error).__name__ != "IndivisibleError":
                raise
            raise type(error)(f"{error}. {_CURE.format(num_replicas(model))}") from error

    return run


def _describe(distribution: keras.distribution.DataParallel) -> str:
    sizes, replicas = mesh_sizes(distribution), batch_shards(distribution)
    mesh = f" on a mesh of {mesh_text(sizes)}" if len(sizes) > 1 else ""
    return f"{replicas} replica{'' if replicas == 1 else 's'}{mesh} ({type(distribution).__name__})"
