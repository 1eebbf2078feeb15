"""What this package uses of the frameworks' objects, of which no framework has types that are valid on every runtime.

A file about one framework uses that framework's own classes. `__getattr__` stands for attributes that only some
versions have, and for private ones, which `tests/support/private_name_table.py` lists.
"""

# mypy: disable-error-code="explicit-any"

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

Array: TypeAlias = np.ndarray
DataAdapter: TypeAlias = Any  # keras.src.trainers.data_adapters.DataAdapter, or what stands in for one
DataHandler: TypeAlias = Any  # keras.src.engine.data_adapter.DataHandler of Keras 2
Dataset: TypeAlias = Any  # tf.data.Dataset, or keras.utils.PyDataset
EpochIterator: TypeAlias = Any  # keras.src.trainers.epoch_iterator.EpochIterator
IteratorState: TypeAlias = Any  # bytes or a dict: the position of an iterator over batches
Nest: TypeAlias = object  # a structure of tensors, as in tf.nest and jax.tree
SameNest = TypeVar("SameNest")  # one that stays the same structure
RandomState: TypeAlias = Any  # of Python's and NumPy's random generators


class Tensor(Protocol):
    """A `tf.Tensor` or a `jax.Array`."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Tensor: ...
    def __int__(self) -> int: ...
    def __neg__(self) -> Tensor: ...
    def __add__(self, other: Any, /) -> Tensor: ...
    def __radd__(self, other: Any, /) -> Tensor: ...
    def __sub__(self, other: Any, /) -> Tensor: ...
    def __rsub__(self, other: Any, /) -> Tensor: ...
    def __mul__(self, other: Any, /) -> Tensor: ...
    def __rmul__(self, other: Any, /) -> Tensor: ...
    def __truediv__(self, other: Any, /) -> Tensor: ...
    def __rtruediv__(self, other: Any, /) -> Tensor: ...
    def __floordiv__(self, other: Any, /) -> Tensor: ...
    def __mod__(self, other: Any, /) -> Tensor: ...
    def __and__(self, other: Any, /) -> Tensor: ...
    def __lt__(self, other: Any, /) -> Tensor: ...
    def __le__(self, other: Any, /) -> Tensor: ...
    def __gt__(self, other: Any, /) -> Tensor: ...
    def __ge__(self, other: Any, /) -> Tensor: ...


class Variable(Protocol):
    """A `keras.Variable` or a `tf.Variable`."""

    name: str
    trainable: bool

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    def assign(self, value: Any) -> object: ...
    def __getattr__(self, name: str) -> Any: ...


class Layer(Protocol):
    """A `keras.Layer`."""

    name: str
    built: bool
    call: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...


class Model(Layer, Protocol):
    """A `keras.Model`."""

    augment: Any
    optimizer: Any
    layers: list[Layer]
    metrics: list[Metric]
    trainable_variables: list[Variable]
    non_trainable_variables: list[Variable]
    compute_loss: Any
    compute_metrics: Any
    train_step: Any
    test_step: Any
    predict_step: Any

    def __setattr__(self, name: str, value: Any) -> None: ...


class Optimizer(Protocol):
    """A `keras.optimizers.Optimizer`."""

    iterations: Any
    learning_rate: Any

    def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> object: ...
    def __getattr__(self, name: str) -> Any: ...


class Loss(Protocol):
    """A `keras.losses.Loss`."""

    name: str
    dtype: Any
    reduction: Any

    def call(self, y_true: Any, y_pred: Any) -> Tensor: ...
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor: ...


class Metric(Protocol):
    """A `keras.metrics.Metric`."""

    name: str
    variables: list[Variable]

    def update_state(self, *args: Any, **kwargs: Any) -> object: ...
    def __getattr__(self, name: str) -> Any: ...


class Callback(Protocol):
    """A `keras.callbacks.Callback`."""

    def set_model(self, model: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...


class Policy(Protocol):
    """A `keras.DTypePolicy`."""

    @property
    def name(self) -> str: ...


class Strategy(Protocol):
    """A `tf.distribute.Strategy` or a `keras.distribution.Distribution`."""

    def scope(self) -> AbstractContextManager[object]: ...
    def __getattr__(self, name: str) -> Any: ...
