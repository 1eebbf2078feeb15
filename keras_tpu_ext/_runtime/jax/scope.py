"""Being inside a distribution of Keras on JAX; and models that stay in the one they were built in.

Keras asks for the distribution of the moment when it trains, so a model that was built under one fails, or trains on
one device, after the block. Here every model that is built inside keeps its own.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`backend.jax.trainer.JAXTrainer`, which every model's `__init__` goes through; `Variable._layout`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
from keras.src.backend.jax.trainer import JAXTrainer

from keras_tpu_ext._runtime.jax.sharding import placed
from keras_tpu_ext.errors import ArgumentError, ScopeError

_KEPT = "_kte_distribution"
_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


class _Open(threading.local):
    """The distribution of the block that this thread is in."""

    distribution: Any = None


_OPEN = _Open()


class _Noting:
    """Lets every plain Keras model that is made in an open block belong to its distribution from then on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._original: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._original = JAXTrainer.__init__
                JAXTrainer.__init__ = _noting(self._original)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                JAXTrainer.__init__ = self._original


_NOTING = _Noting()


def _noting(original: Any) -> Any:
    @functools.wraps(original)
    def noting(model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        if distribution_of(model) is None and _OPEN.distribution is not None:
            keep(model, _OPEN.distribution)
            _let_methods_run_within(model)

    return noting


@contextlib.contextmanager
def scope(distribution: Any) -> Iterator[None]:
    """Within the block variables and models belong to `distribution`, and afterwards these models still do.

    Raises:
        ScopeError: If this is inside the block of another one.
    """
    outer = _OPEN.distribution
    if outer is not None and outer is not distribution:
        raise ScopeError(
            f"A block for {_in_words(distribution)} was opened inside a block for {_in_words(outer)}, and a model "
            "can belong to one strategy only. Leave the outer block first, or open the same scope again inside it."
        )
    with distribution.scope(), _NOTING:
        _OPEN.distribution = distribution
        try:
            yield
        finally:
            _OPEN.distribution = outer


def distribution_of(model: Any) -> Any:
    """Return the distribution that `model` was built in, or `None`."""
    return vars(model).get(_KEPT)


def current_distribution() -> Any:
    """Return the distribution that a model built now belongs to, or `None`."""
    return keras.distribution.distribution()


def keep(model: Any, distribution: Any) -> None:
    """Let `model` belong to `distribution`."""
    vars(model)[_KEPT] = distribution


@contextlib.contextmanager
def within(distribution: Any) -> Iterator[None]:
    """Within the block Keras sees `distribution`, which may be `None`."""
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def num_replicas(model: Any) -> int:
    """Return the number of replicas that train `model` in step."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    return 1 if distribution is None else int(distribution.device_mesh.devices.size)


def device_name(model: Any) -> str:
    """Return what JAX calls the devices that train `model`, such as `"TPU v3"` or `"cpu"`."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    if distribution is None:
        return str(jax.devices()[0].device_kind)
    platform, _, _ = str(distribution.device_mesh.devices.flat[0]).partition(":")  # as in "tpu:0"
    return str(jax.local_devices(backend=platform)[0].device_kind)


def distribute(distribution: Any, dataset: Any) -> Any:
    """Return `dataset`, an iterable of batches, with each batch split over the devices.

    Raises:
        ArgumentError: If `dataset` cannot be iterated, or, while iterating, a batch cannot be split evenly.
    """
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            f"distribute needs an iterable of batches; got {type(dataset).__name__}. Write "
            "scope.distribute(dataset) with a tf.data.Dataset, a keras.utils.PyDataset or a list of batches."
        )
    return _Distributed(distribution, dataset)


class _Distributed:
    """The batches of a dataset, as arrays that are split over devices."""

    def __init__(self, distribution: Any, dataset: Any) -> None:
        self._distribution = distribution
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        replicas = self._distribution.device_mesh.devices.size
        for batch in self._dataset:
            for leaf in jax.tree.leaves(batch):
                if len(leaf) % replicas:
                    raise ArgumentError(
                        f"A batch of {len(leaf)} rows cannot be split evenly over {replicas} devices, and a loop of "
                        "your own must not lose any. Write dataset.batch(scope.global_batch_size(32)) and take care "
                        "of a short last batch, with pad_batches for instance."
                    )
            yield placed(batch, self._distribution, axis=0)


def _let_methods_run_within(model: Any) -> None:
    for name in _METHODS:
        vars(model)[name] = _within_own(model, getattr(type(model), name))


def _within_own(model: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with within(distribution_of(model)):
            return method(model, *args, **kwargs)

    return run


def _in_words(distribution: Any) -> str:
    count = distribution.device_mesh.devices.size
    return f"{count} replica{'' if count == 1 else 's'} ({type(distribution).__name__})"
