"""`tf.keras` under the names of Keras 3, so that the same tests run on both: what they mean by `import keras`."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import tensorflow as tf


class Facade(types.ModuleType):
    """A module with some names of its own, and all others of another one."""

    def __init__(self, behind: Any, **names: Any) -> None:
        super().__init__(behind.__name__)
        self.__dict__.update(names)
        self.__dict__["_behind"] = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


class PyDataset(tf.keras.utils.Sequence):
    """A `Sequence` that takes the options of a `PyDataset`, which Keras 2 takes in `fit`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    @property
    def num_batches(self) -> int:
        return len(self)

    def on_epoch_begin(self) -> None:
        """Do nothing: Keras 2 has no such hook."""


class _Ops:
    """`keras.ops`, as far as TensorFlow has the same names."""

    convert_to_numpy = staticmethod(lambda value: np.asarray(tf.convert_to_tensor(value)))
    absolute = staticmethod(tf.abs)
    mean = staticmethod(tf.reduce_mean)
    sum = staticmethod(tf.reduce_sum)
    max = staticmethod(tf.reduce_max)
    std = staticmethod(tf.math.reduce_std)
    concatenate = staticmethod(tf.concat)

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name, None) or getattr(tf.math, name, None) or getattr(tf.nn, name)


def _variable(value: Any, *, synchronization: str, aggregation: str, **options: Any) -> tf.Variable:
    return tf.Variable(
        value,
        synchronization=tf.VariableSynchronization[synchronization.upper()],
        aggregation=tf.VariableAggregation[aggregation.upper()],
        **options,
    )


def keras3_names() -> Facade:
    """Return the facade."""
    mixed = tf.keras.mixed_precision
    return Facade(
        tf.keras,
        ops=_Ops(),
        Variable=_variable,
        tree=types.SimpleNamespace(flatten=tf.nest.flatten, map_structure=tf.nest.map_structure),
        config=types.SimpleNamespace(
            dtype_policy=mixed.global_policy,
            set_dtype_policy=mixed.set_global_policy,
            set_floatx=tf.keras.backend.set_floatx,
            floatx=tf.keras.backend.floatx,
        ),
        dtype_policies=types.SimpleNamespace(DTypePolicy=mixed.Policy),
        optimizers=Facade(tf.keras.optimizers, LossScaleOptimizer=mixed.LossScaleOptimizer),
        utils=Facade(tf.keras.utils, PyDataset=PyDataset),
    )
