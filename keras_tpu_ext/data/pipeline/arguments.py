"""What `advise` and `optimize` ask of what they are given."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.errors import ArgumentError, MissingExtraError


def checked_dataset(dataset: Any, caller: str) -> Any:
    """Return TensorFlow, after making sure that `dataset` is a `tf.data.Dataset`.

    Raises:
        ArgumentError: If it is something else, or is made inside a `tf.function`.
        MissingExtraError: If TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise MissingExtraError(
            f"{caller} works on tf.data.Dataset, and TensorFlow is not installed. Write: pip install tensorflow-cpu"
        ) from None
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentError(
            f"{caller} needs a tf.data.Dataset; got {type(dataset).__name__}. {_cure(dataset, caller)}"
        )
    if not tf.executing_eagerly():
        raise ArgumentError(f"{caller} was called inside a tf.function. Call it where you make the dataset.")
    return tf


def _cure(dataset: Any, caller: str) -> str:
    name = type(dataset).__name__
    if name.startswith("Distributed"):
        return f"Write {caller}(dataset) before scope.distribute(dataset)."
    if name == "generator" or hasattr(dataset, "__next__"):
        return f"Write {caller}(tf.data.Dataset.from_generator(lambda: make_batches(), output_signature=...))."
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "use_multiprocessing"):
        return "A PyDataset is no pipeline of stages: give it workers=8 and max_queue_size=16."
    return f"Write {caller}(tf.data.Dataset.from_tensor_slices((x, y)).batch(1024))."
