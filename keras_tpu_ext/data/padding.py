"""Batches of one size, so that a TPU compiles one step instead of two."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import MARK, PaddedBatch, UnweightedPaddedBatch
from keras_tpu_ext.checks.arguments import integer
from keras_tpu_ext.data._padded_py_dataset import PaddedPyDataset
from keras_tpu_ext.errors import ArgumentError, MissingExtraError


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
        return PaddedPyDataset(dataset, size)
    tf = _tensorflow()
    _check_dataset(tf, dataset, size)
    if not (_has_batches(tf, dataset.element_spec, size) if batched is None else batched):
        dataset = dataset.batch(size)
    is_parts = isinstance(dataset.element_spec, tuple)

    def pad(*parts: Any) -> PaddedBatch:
        x, y, weight = (*parts, None, None, None)[:3]
        return _padded(tf, x, y, weight, size)

    return dataset.map(pad if is_parts else lambda x: pad(x))


def _padded(tf: Any, x: Any, y: Any, weight: Any, size: int) -> PaddedBatch:
    rows = tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]
    checks = [
        tf.debugging.assert_positive(rows, "pad_batches: a batch has no row at all. Write dataset.filter(...)."),
        tf.debugging.assert_less_equal(
            rows, size, f"pad_batches: a batch has more rows than batch_size={size}. Write dataset.rebatch({size})."
        ),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        places = tf.minimum(tf.range(size), rows - 1)

    def fill(leaf: Any) -> Any:
        filled = tf.cond(tf.equal(rows, size), lambda: leaf, lambda: tf.gather(leaf, places))
        return tf.ensure_shape(filled, [size, *leaf.shape[1:]])

    def fill_weight(leaf: Any) -> Any:
        leaf = tf.cast(leaf, tf.float32) + 0.0  # the user's minus zero becomes zero
        real = tf.reshape(tf.range(size) < rows, [-1] + [1] * (leaf.shape.rank - 1))
        return tf.where(real, fill(leaf), tf.constant(MARK))

    kind = UnweightedPaddedBatch if weight is None else PaddedBatch
    weight = tf.ones([rows]) if weight is None else weight
    return kind(_mapped(tf, fill, x), _mapped(tf, fill, y), _mapped(tf, fill_weight, weight))


def _mapped(tf: Any, function: Any, structure: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else function(leaf), structure)


def _has_batches(tf: Any, element_spec: Any, size: int) -> bool:
    specs = [spec for spec in tf.nest.flatten(element_spec) if not _is_none(spec)]
    return all(spec.shape.rank and spec.shape[0] in (None, size) for spec in specs)


def _is_none(spec: Any) -> bool:
    return type(spec).__name__ == "NoneTensorSpec"  # which TensorFlow does not export


def _check_dataset(tf: Any, dataset: Any, size: int) -> None:
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


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError:
        raise MissingExtraError(
            "pad_batches works on keras.utils.PyDataset, and on tf.data.Dataset where TensorFlow is installed. "
            "Write: pip install tensorflow-cpu"
        ) from None
    return tensorflow
