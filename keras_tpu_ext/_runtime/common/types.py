"""Names for what the frameworks bring.

None of them ships types that hold on every runtime, so to the type checker each is `Any`; to a reader they tell what
a function takes. A file that is about one framework names that framework's own classes.
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
IteratorState: TypeAlias = Any  # bytes or a dict: the place of an iterator over batches
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
