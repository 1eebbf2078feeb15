"""Batches of one size, so that a TPU compiles one step instead of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import MARK, GivesPaddedBatches, PaddedBatch, UnweightedPaddedBatch
from keras_tpu_ext._runtime.common.types import Dataset, Nest
from keras_tpu_ext.checks.arguments import integer
from keras_tpu_ext.data._tensorflow import require_tensorflow, tf
from keras_tpu_ext.errors import ArgumentError


def pad_batches(dataset: Any, batch_size: int, *, batched: bool | None = None) -> Any:
    """Return `dataset` with every batch filled up to `batch_size` rows, and all shapes static.

    A short last batch has another shape, and another shape is another compilation. Dropping it drops data; padded, it
    shares the trace of the other batches. The padding rows are copies of its last row, with sample weight minus zero:
    `TPUModel` ignores them. They count in no loss, no metric (weighted or not), no `add_loss` term that has a value
    for each example, no statistic of a `BatchNormalization` and no activity regulariser (of L1 and L2), and `predict`
    does not return them. They do count where a layer itself reduces its whole batch to a single number for
    `add_loss`. To any other Keras model they are rows of weight zero: they count in the denominator of a mean loss
    and in unweighted metrics.

    `class_weight` of `fit` is refused: weight the examples before they are padded.

    Call it last, or before `prefetch`: a `map` after it that takes the batch apart loses the difference between a
    padded row and one of weight zero.

    Args:
        dataset: A `tf.data.Dataset` of `x`, `(x, y)` or `(x, y, sample_weight)`; each may be a nested structure of
            dense tensors. Its elements are batches, as `.batch(batch_size)` makes them, or examples, which are then
            batched. Or a `keras.utils.PyDataset`, whose items are batches; this needs no TensorFlow.
        batch_size: Number of rows in a batch over all replicas, such as `scope.global_batch_size(128)`. Batches of
            `dataset` may have fewer rows, but not more.
        batched: Whether the elements of `dataset` are batches. `None` (default) assumes so if all its tensors have a
            first dimension that is unknown or `batch_size`, as `.batch(batch_size)` makes. Batches of another static
            size need `True`, and examples that all begin with such a dimension `False`.

    Returns:
        A dataset of the same kind, of `(x, y, sample_weight)` as a named tuple. `y` is `None` if `dataset` has none;
        missing weights are one, of shape `(batch_size,)` and float32.

    Raises:
        ArgumentError: If `dataset` is neither a `tf.data.Dataset` of dense tensors of known rank in one of these
            forms nor a `PyDataset`, or `batch_size` is not a positive integer. For a `PyDataset`, while iterating, if
            a batch has more than `batch_size` rows, or none.
        MissingExtraError: If TensorFlow is not installed.
        tensorflow.errors.InvalidArgumentError: While iterating, if a batch has more than `batch_size` rows, or none.

    Example:
        ```python
        import keras
        import numpy as np
        import tensorflow as tf
        import keras_tpu_ext as kte

        x = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).shuffle(300).batch(128)
        padded = kte.data.pad_batches(dataset, 128)
        print([len(batch.x) for batch in padded])  # [128, 128, 128], and not [128, 128, 44]
        inputs = keras.Input((4,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("adam", "mse")
        model.fit(padded.prefetch(2))  # the loss is that of 300 examples
        ```
    """
    size = integer("pad_batches", "batch_size", batch_size, example="scope.global_batch_size(128)")
    if isinstance(dataset, _runtime.PyDataset):
        return _PaddedPyDataset(dataset, size)
    require_tensorflow(
        "pad_batches works on keras.utils.PyDataset, and on tf.data.Dataset where TensorFlow is installed."
    )
    _check_dataset(dataset, size)
    if not (_has_batches(dataset.element_spec, size) if batched is None else batched):
        dataset = dataset.batch(size)
    is_parts = isinstance(dataset.element_spec, tuple)

    def pad(*parts: Nest) -> PaddedBatch:
        x, y, weight = (*parts, None, None, None)[:3]
        return _padded(x, y, weight, size)

    return dataset.map(pad if is_parts else lambda x: pad(x))


def _padded(x: Nest, y: Nest, weight: Nest, size: int) -> PaddedBatch:
    rows = tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]
    checks = [
        tf.debugging.assert_positive(rows, "pad_batches: a batch has no row at all. Write dataset.filter(...)."),
        tf.debugging.assert_less_equal(
            rows, size, f"pad_batches: a batch has more rows than batch_size={size}. Write dataset.rebatch({size})."
        ),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        indices = tf.minimum(tf.range(size), rows - 1)

    def fill(leaf: tf.Tensor) -> tf.Tensor:
        filled = tf.cond(tf.equal(rows, size), lambda: leaf, lambda: tf.gather(leaf, indices))
        return tf.ensure_shape(filled, [size, *leaf.shape[1:]])

    def fill_weight(leaf: tf.Tensor) -> tf.Tensor:
        leaf = tf.cast(leaf, tf.float32) + 0.0  # the user's minus zero becomes zero
        real = tf.reshape(tf.range(size) < rows, [-1] + [1] * (leaf.shape.rank - 1))
        return tf.where(real, fill(leaf), tf.constant(MARK))

    kind = UnweightedPaddedBatch if weight is None else PaddedBatch
    weight = tf.ones([rows]) if weight is None else weight
    return kind(_mapped(tf.nest, fill, x), _mapped(tf.nest, fill, y), _mapped(tf.nest, fill_weight, weight))


def _mapped(tree: Any, function: Callable[[Any], Any], structure: Nest) -> Nest:
    return tree.map_structure(lambda leaf: None if leaf is None else function(leaf), structure)


def _has_batches(element_spec: Nest, size: int) -> bool:
    specs = [spec for spec in tf.nest.flatten(element_spec) if not _is_none(spec)]
    return all(spec.shape.rank and spec.shape[0] in (None, size) for spec in specs)


def _is_none(spec: object) -> bool:
    return type(spec).__name__ == "NoneTensorSpec"  # which TensorFlow does not export


def _check_dataset(dataset: object, size: int) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentError(
            f"pad_batches needs a tf.data.Dataset or a keras.utils.PyDataset; got {type(dataset).__name__}. "
            f"Write pad_batches(tf.data.Dataset.from_tensor_slices((x, y)), {size})."
        )
    spec = dataset.element_spec
    if isinstance(spec, PaddedBatch):
        raise ArgumentError("pad_batches got a dataset that is padded already. Call it once.")
    if isinstance(spec, tuple) and not 1 <= len(spec) <= 3:
        raise ArgumentError(
            f"pad_batches needs a dataset of x, (x, y) or (x, y, sample_weight); its elements have {len(spec)} "
            "parts. Put several inputs into one structure: dataset.map(lambda a, b, y: ((a, b), y))."
        )
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) and not _is_none(part):
            raise ArgumentError(
                f"pad_batches needs dense tensors; the dataset has a {type(part).__name__}. "
                "Write dataset.map(...) with .to_tensor() for ragged and tf.sparse.to_dense() for sparse tensors."
            )
        if not _is_none(part) and part.shape.rank is None:
            raise ArgumentError(
                "pad_batches needs to know how many dimensions each tensor has; the dataset has one of unknown rank. "
                "Write from_generator(..., output_signature=tf.TensorSpec([None, 28, 28], tf.float32))."
            )


class _PaddedPyDataset(GivesPaddedBatches, _runtime.PyDataset):
    """A `PyDataset` whose batches are the padded ones of another."""

    def __init__(self, dataset: Dataset, size: int) -> None:
        super().__init__()
        for option in ("workers", "use_multiprocessing", "max_queue_size"):
            if hasattr(dataset, option):  # in Keras 2 they are options of `fit`
                setattr(self, option, getattr(dataset, option))
        self.dataset = dataset
        self.size = size

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def num_batches(self) -> int | None:
        """Return the number of batches of the other dataset."""
        number: int | None = getattr(self.dataset, "num_batches", len(self.dataset))  # Keras 2 does not have it
        return number

    def __getitem__(self, index: int) -> PaddedBatch:
        batch = self.dataset[index]
        parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
        if not 1 <= len(parts) <= 3:
            raise ArgumentError(
                f"pad_batches needs batches of x, (x, y) or (x, y, sample_weight); number {index} has {len(parts)} "
                "parts. Put several inputs into one structure: return (a, b), y."
            )
        return _padded_arrays(*(*parts, None, None)[:3], size=self.size)

    def on_epoch_begin(self) -> None:
        """Tell the other dataset."""
        if hasattr(self.dataset, "on_epoch_begin"):  # Keras 2 does not have it
            self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tell the other dataset."""
        self.dataset.on_epoch_end()


def _padded_arrays(x: Nest, y: Nest, weight: Nest, *, size: int) -> PaddedBatch:
    """Return a batch of NumPy arrays padded to `size` rows."""
    tree = _runtime.tree
    rows = len(next(leaf for leaf in tree.flatten(x) if leaf is not None))
    if not 1 <= rows <= size:
        cure = "Give batch_size the size of the largest batch." if rows else "Leave such a batch out."
        raise ArgumentError(f"pad_batches got batch_size={size}, and a batch of {rows} rows. {cure}")
    indices = np.minimum(np.arange(size), rows - 1)

    def fill(leaf: ArrayLike) -> np.ndarray:
        return np.asarray(leaf)[indices]

    def fill_weight(leaf: ArrayLike) -> np.ndarray:
        filled = fill(np.asarray(leaf, np.float32) + np.float32(0.0))  # the user's minus zero becomes zero
        filled[rows:] = MARK
        return filled

    kind = UnweightedPaddedBatch if weight is None else PaddedBatch
    weight = np.ones([rows], np.float32) if weight is None else weight
    return kind(_mapped(tree, fill, x), _mapped(tree, fill, y), _mapped(tree, fill_weight, weight))
