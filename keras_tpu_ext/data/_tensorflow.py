"""TensorFlow, imported only where it is needed, and the argument checks that `data` shares."""

from __future__ import annotations

import importlib
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_tpu_ext.checks.arguments import argument_error, integer
from keras_tpu_ext.errors import ArgumentError, MissingExtraError


class _LazyTensorFlow:
    """TensorFlow, imported when a name of it is first used: this package works without it."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module("tensorflow"), name)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyTensorFlow()

# TensorFlow has a thread for each core, and one that waits for storage does nothing else: opening a file on a network
# takes some 20 ms, so two threads open 100 files a second and 64 threads 3200 (benchmarks/input_ladder.py).
FILE_THREADS = 64
READS = "{} reads with tf.data, which needs TensorFlow; it is not installed. It can stand beside JAX."


def require_tensorflow(needs: str) -> None:
    """Raise a `MissingExtraError` that begins with `needs` if TensorFlow is not installed."""
    try:
        importlib.import_module("tensorflow")
    except ImportError:
        raise MissingExtraError(f"{needs} Write: pip install tensorflow-cpu") from None


def without_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` without AutoGraph: it has no Python control flow over tensors."""
    return tf.autograph.experimental.do_not_convert(function)


def height_and_width(function: str, size: Any) -> tuple[int, int]:
    """Return `size`, a number or (height, width), as a pair."""
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2:
        raise argument_error(function, "size", "(height, width) in pixels", repr(size), "size=(224, 224)")
    height, width = (integer(function, "size", side, example=(224, 224)) for side in pair)
    return height, width


def checked_shard(function: str, shard: Any) -> tuple[int, int]:
    """Return `shard` as (index, count), (0, 1) for `None`."""
    if shard is None:
        return 0, 1
    is_pair = isinstance(shard, (tuple, list)) and len(shard) == 2
    if not is_pair or not all(isinstance(part, numbers.Integral) for part in shard) or not 0 <= shard[0] < shard[1]:
        needed = "(index, count), with index from 0 to count - 1"
        raise argument_error(function, "shard", needed, repr(shard), "shard=(0, 4) on the first of four hosts")
    return int(shard[0]), int(shard[1])


def check_dataset(dataset: object, caller: str) -> None:
    """Check that `dataset` is a `tf.data.Dataset`, and that this is not inside a `tf.function`."""
    require_tensorflow(f"{caller} works on tf.data.Dataset, and TensorFlow is not installed.")
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentError(
            f"{caller} needs a tf.data.Dataset; got {type(dataset).__name__}. {_cure(dataset, caller)}"
        )
    if not tf.executing_eagerly():
        raise ArgumentError(f"{caller} was called inside a tf.function. Call it where you make the dataset.")


def _cure(dataset: object, caller: str) -> str:
    name = type(dataset).__name__
    if name.startswith("Distributed"):
        return f"Write {caller}(dataset) before scope.distribute(dataset)."
    if name == "generator" or hasattr(dataset, "__next__"):
        return f"Write {caller}(tf.data.Dataset.from_generator(lambda: make_batches(), output_signature=...))."
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "use_multiprocessing"):
        return "A PyDataset is no tf.data pipeline: give it workers=8 and max_queue_size=16."
    return f"Write {caller}(tf.data.Dataset.from_tensor_slices((x, y)).batch(1024))."
