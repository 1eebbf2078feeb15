"""Type names for the objects of the frameworks.

No framework ships types that are valid on every runtime, so each name is `Any` for the type checker; it tells a
reader what a function takes. A file about one framework uses that framework's own classes.
"""

# mypy: disable-error-code="explicit-any"

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
Callback: TypeAlias = Any  # keras.callbacks.Callback
DataAdapter: TypeAlias = Any  # keras.src.trainers.data_adapters.DataAdapter, or what stands in for one
DataHandler: TypeAlias = Any  # keras.src.engine.data_adapter.DataHandler of Keras 2
Dataset: TypeAlias = Any  # tf.data.Dataset, or keras.utils.PyDataset
EpochIterator: TypeAlias = Any  # keras.src.trainers.epoch_iterator.EpochIterator
IteratorState: TypeAlias = Any  # bytes or a dict: the position of an iterator over batches
Layer: TypeAlias = Any  # keras.Layer
Loss: TypeAlias = Any  # keras.losses.Loss
Metric: TypeAlias = Any  # keras.metrics.Metric
Model: TypeAlias = Any  # keras.Model
Nest: TypeAlias = Any  # a structure of tensors, as in tf.nest and jax.tree
Optimizer: TypeAlias = Any  # keras.optimizers.Optimizer
Policy: TypeAlias = Any  # keras.DTypePolicy
RandomState: TypeAlias = Any  # of Python's and NumPy's random generators
Strategy: TypeAlias = Any  # tf.distribute.Strategy or keras.distribution.Distribution
Tensor: TypeAlias = Any  # tf.Tensor or jax.Array
Variable: TypeAlias = Any  # keras.Variable or tf.Variable
