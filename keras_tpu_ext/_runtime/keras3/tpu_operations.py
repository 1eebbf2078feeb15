"""Operations of Keras that cost a TPU less and compute the same: dropout, normalization, gelu and a loss.

- Dropout: each element is kept or dropped by a hash of the seed, the number of the call, and its index in the whole
  batch. XLA fuses it into what surrounds it, the gradient draws it anew instead of reading it, and it does not depend
  on the number of replicas. Keras's own draws Threefry numbers, which XLA repeats in every fusion that needs them.
- LayerNormalization: mean and variance come from one pass over the inputs.
- gelu: by `erf`, where JAX takes `erfc`, which has several branches.
- sparse_categorical_crossentropy: a comparison selects the logit of the label, without another pass over all logits.

The numbers are in docs/layers.md.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tpu_ext._runtime.common.patches import Patch, patched, temporarily
from keras_tpu_ext._runtime.common.types import Tensor
from keras_tpu_ext._runtime.compat.keras3 import backend_ops, ops_nn
from keras_tpu_ext._runtime.training.protocols import BatchOfStep

_GOLDEN_RATIO = np.uint32(0x9E3779B9)  # 2**32 divided by it


class _Thread(threading.local):
    facts: BatchOfStep | None = None  # of the batch that this thread computes with; `None` outside


_THREAD = _Thread()


@contextlib.contextmanager
def tpu_operations(facts: BatchOfStep) -> Iterator[None]:
    """Within the block, let this thread compute with the operations of this file."""
    with temporarily(_THREAD, facts=facts), patched(_patches()):
        yield


def computes_for_tpu() -> bool:
    """Return whether this thread is in a block of `tpu_operations`."""
    return _THREAD.facts is not None


def _patches() -> list[Patch]:
    patches: list[Patch] = [
        (ops_nn.backend.random, "keras.src.backend.random.dropout", _dropout),
        (backend_ops.nn, "keras.src.backend.nn.gelu", _gelu),
    ]
    if hasattr(ops_nn, "_layer_normalization"):  # older versions of Keras have it in the layer, and keep theirs
        patches.append((ops_nn, "keras.src.ops.nn._layer_normalization", _layer_normalization))
    if keras.backend.backend() == "jax":  # TensorFlow's own makes no array of ones and zeros
        patches.append((backend_ops.nn, "keras.src.backend.nn.sparse_categorical_crossentropy", _crossentropy))
    return patches


def _in_block(replacement: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Return what makes a patch of `replacement`, whose first argument is the function that it replaces."""

    @functools.wraps(replacement)
    def make(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Tensor:
            function = functools.partial(replacement, original) if computes_for_tpu() else original
            return function(*args, **kwargs)

        return call

    return make


@_in_block
def _dropout(
    original: Callable[..., Tensor],
    inputs: Tensor,
    rate: float,
    noise_shape: Sequence[int | None] | None = None,
    seed: Any = None,
) -> Tensor:
    if (
        not isinstance(rate, (int, float, np.floating))
        or not 0 < rate < 1
        or not isinstance(seed, (int, keras.random.SeedGenerator))
    ):
        return original(inputs, rate, noise_shape, seed)
    inputs, rate = ops.convert_to_tensor(inputs), float(rate)
    if len(inputs.shape) == 0:
        return original(inputs, rate, noise_shape, seed)
    sizes = list(ops.shape(inputs))
    if noise_shape is not None:  # it may be shorter, and then broadcasts
        sizes = [sizes[i] if wanted is None else wanted for i, wanted in enumerate(noise_shape)]
    keep = ops.cast(random_bits(seed_words(seed), sizes), "int32") >= first_kept(rate)
    # In float32: rounded to bfloat16, 1 / 0.9 would be 0.2 % off.
    scaled = ops.cast(ops.cast(inputs, _wide(inputs)) * (1 / (1 - rate)), inputs.dtype)
    return ops.where(keep, scaled, ops.zeros_like(inputs))


def seed_words(seed: Any) -> list[Any]:
    """Return the two words, of dtype `uint32`, of an integer or of the next call of a `SeedGenerator`."""
    return [np.uint32(seed % 2**32), np.uint32(0)] if isinstance(seed, int) else ops.unstack(_uint32(seed.next()), 2)


def first_kept(rate: float) -> np.int32:
    """Return the least random bits, read as a number with a sign, of what dropout keeps."""
    return np.int32(min(round(rate * 2**32), 2**32 - 1) - 2**31)


def random_bits(words: Sequence[Any], sizes: Sequence[Any]) -> Tensor:
    """Return random bits, of dtype `uint32`, for a tensor whose first dimension is the batch.

    They depend on the two words of the seed and the indices in the whole batch, by two rounds of a mixer, each with a
    key. In tests of Dieharder they do as well as the Mersenne Twister (benchmarks/results/dropout_bits.txt); pcg3d,
    which costs the same, fails two.

    Args:
        words: The seed and the number of the call, of dtype `uint32`.
        sizes: The shape; the first size may be a tensor, this replica's number of rows.
    """
    sizes = sizes or [1]
    rank = len(sizes)
    rows, first_key, second_key = row_words(words, sizes[0], math.prod(sizes[1:]))
    index = _along(rows, 0, rank)
    for axis in range(1, rank):
        stride = math.prod(sizes[axis + 1 :])
        index = index + _along(_uint32(ops.arange(sizes[axis], dtype="int32")), axis, rank) * np.uint32(stride)
    return _mix(ops.bitwise_xor(_mix(ops.bitwise_xor(index, _along(first_key, 0, rank))), second_key))


def row_words(words: Sequence[Any], rows: Any, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `random_bits` makes of the rows of a batch, of dtype `uint32`.

    Args:
        words: The seed and the number of the call, of dtype `uint32`.
        rows: This replica's number of rows.
        size: Numbers of a row.

    Returns:
        For each row the index of its first number in the whole batch and the first key; and the second key.
    """
    facts = _THREAD.facts
    assert facts is not None
    first, _ = facts.position_in_batch(rows)
    places = facts.respects_padding(lambda: _uint32(first + ops.arange(rows, dtype="int32")))()
    seed, call = words
    first_key = _mix(ops.bitwise_xor(_mix(seed), call))
    # An index has 32 bits: the rows of a larger tensor that would have the same one have different keys.
    before_repeat = max(2**32 // max(size, 1), 1)
    first_keys = first_key + places // np.uint32(min(before_repeat, 2**32 - 1)) * _GOLDEN_RATIO
    return places * np.uint32(size % 2**32), first_keys, _mix(first_key + _GOLDEN_RATIO)


def _mix(word: Tensor) -> Tensor:
    """Return a bijection of 32 bits: the finalizer of MurmurHash3.

    Source: Appleby, 2011, https://github.com/aappleby/smhasher/wiki/MurmurHash3.
    """
    word = ops.bitwise_xor(word, ops.bitwise_right_shift(word, np.uint32(16))) * np.uint32(0x85EBCA6B)
    word = ops.bitwise_xor(word, ops.bitwise_right_shift(word, np.uint32(13))) * np.uint32(0xC2B2AE35)
    return ops.bitwise_xor(word, ops.bitwise_right_shift(word, np.uint32(16)))


@_in_block
def _layer_normalization(
    original: Callable[..., Tensor],
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: int | Sequence[int] = -1,
    epsilon: float | None = None,
    **kwargs: Any,
) -> Tensor:
    rank = len(x.shape)
    axes = sorted(one % rank for one in ([axis] if isinstance(axis, int) else axis))
    if kwargs.get("rms_scaling") or axes != [rank - 1]:
        return original(x, gamma, beta, axis, epsilon, **kwargs)
    x, wide = ops.convert_to_tensor(x), _wide(x)
    epsilon = keras.config.epsilon() if epsilon is None else epsilon
    scale, offset = (one if one is None else ops.cast(one, wide) for one in (gamma, beta))

    # Autodiff would keep float32 arrays of the size of the inputs. This gradient is computed from the inputs
    # anew, of which XLA does the same things once, and can be differentiated again.
    @ops.custom_gradient
    def normalized(x: Tensor, *weights: Tensor) -> Any:
        given = iter(weights)
        outputs, _ = _normalized(x, wide, epsilon)
        outputs = outputs if scale is None else outputs * next(given)
        outputs = outputs if offset is None else outputs + next(given)

        def gradients(*args: Tensor, upstream: Tensor | None = None) -> Any:
            upstream = ops.cast(args[0] if upstream is None else upstream, wide)
            unscaled, inverse = _normalized(x, wide, epsilon)
            rows = tuple(range(rank - 1))
            of_weights = [] if scale is None else [ops.sum(upstream * unscaled, axis=rows)]
            of_weights += [] if offset is None else [ops.sum(upstream, axis=rows)]
            upstream = upstream if scale is None else upstream * weights[0]
            mean = ops.mean(upstream, axis=-1, keepdims=True)
            projection = ops.mean(upstream * unscaled, axis=-1, keepdims=True)
            of_x = ops.cast(inverse * (upstream - mean - unscaled * projection), x.dtype)
            return (of_x, *of_weights) if of_weights else of_x

        return ops.cast(outputs, x.dtype), gradients

    return normalized(x, *(one for one in (scale, offset) if one is not None))


def _normalized(x: Tensor, dtype: str, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return rows of mean 0 and variance 1, and what they were multiplied by."""
    values = ops.cast(x, dtype)
    # A plain mean of squares minus the square of the mean is wrong where the mean is large and the deviation small.
    # About an element of the row, the variance is off by at most the number of its elements, times float32's epsilon.
    centered = values - ops.stop_gradient(values[..., :1])
    mean = ops.mean(centered, axis=-1, keepdims=True)
    variance = ops.maximum(ops.mean(ops.square(centered), axis=-1, keepdims=True) - ops.square(mean), 0.0)
    inverse = ops.rsqrt(variance + epsilon)
    return (centered - mean) * inverse, inverse


@_in_block
def _gelu(original: Callable[..., Tensor], x: Tensor, approximate: bool = True) -> Tensor:
    x = ops.convert_to_tensor(x)
    if approximate or "float" not in keras.backend.standardize_dtype(x.dtype):
        return original(x, approximate)
    values = ops.cast(x, _wide(x))
    return ops.cast(0.5 * values * (1.0 + ops.erf(values * math.sqrt(0.5))), x.dtype)


@_in_block
def _crossentropy(
    original: Callable[..., Tensor], target: Tensor, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    output = ops.convert_to_tensor(output)
    rank = len(output.shape)
    label = ops.cast(target, "int32")
    if len(label.shape) == rank and label.shape[-1] == 1:
        label = ops.squeeze(label, -1)
    if not from_logits or axis % rank != rank - 1 or tuple(label.shape) != tuple(output.shape[:-1]):
        return original(target, output, from_logits, axis)
    classes = ops.arange(output.shape[-1], dtype="int32")
    is_label = ops.equal(ops.expand_dims(label, -1), classes)
    # The logit of the label is taken before anything is subtracted, in a pass over the logits that there is anyway.
    # Keras's row of ones and zeros has no one for a label that is no class, and its loss is 0.
    logit = ops.sum(ops.where(is_label, output, 0.0), axis=-1)
    is_class = ops.logical_and(label >= 0, label < output.shape[-1])
    return ops.where(is_class, ops.logsumexp(output, axis=-1) - logit, 0.0)


def _wide(x: Tensor) -> str:
    """Return the dtype to compute in: float32, or float64 for such inputs."""
    return keras.backend.result_type(x.dtype, "float32")


def _along(values: Tensor, axis: int, rank: int) -> Tensor:
    return ops.reshape(values, [-1 if i == axis else 1 for i in range(rank)])


def _uint32(values: Any) -> Tensor:
    return ops.cast(values, "uint32")
