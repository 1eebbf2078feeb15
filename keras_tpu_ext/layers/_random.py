"""Random numbers that depend only on a seed, a step and the index of an example.

They come from Threefry-2x32 with 20 rounds, which is a function of a key and a counter, both of two words of 32 bits,
and has no state. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3,
https://doi.org/10.1145/2063384.2063405.

It is all integer arithmetic, and so bitwise identical on every runtime and device. So are the numbers made from the
bits by `uniform`, `randint`, `one_hot_lookup` and `beta`: they use no function that devices may round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime

ops = _runtime.ops

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # added to the key in Threefry, as in Skein

BETA_LEVELS = 1024  # equally probable quantiles of a Beta distribution
_INTEGRATION_STEPS = 2**16


def threefry(key: Sequence[Any], counter: Sequence[Any]) -> tuple[Any, Any]:
    """Return two words of random bits for a key and a counter."""
    keys = (key[0], key[1], ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _uint32(_PARITY)))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ops.bitwise_xor(_rotate(y, rotation), x)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + _uint32(group + 1)
    return x, y


def random_bits(key: Sequence[Any], examples: Any, first: int, count: int) -> list[Any]:
    """Return `count` tensors of random bits, of dtype `uint32`, with one number for each index in `examples`.

    The key is the seed and the number of the step. `first` is the number of the first draw, and even: one counter
    gives two draws.
    """
    seed, step = (_uint32(part) if isinstance(part, int) else ops.cast(part, "uint32") for part in key)
    blocks = np.arange(first // 2, (first + count + 1) // 2, dtype="uint32")[:, None]
    # The examples are the last dimension, so that the bits of each draw lie side by side.
    counter = ops.expand_dims(ops.cast(examples, "uint32"), 0), ops.convert_to_tensor(blocks)
    pairs = threefry((seed, step), counter)
    return [pairs[i % 2][i // 2] for i in range(count)]


def uniform(bits: Any) -> Any:
    """Return a float32 number in [0, 1) for each number of `bits`: its upper 24 bits, which float32 holds."""
    upper = ops.cast(ops.bitwise_right_shift(bits, _uint32(8)), "int32")
    return ops.cast(upper, "float32") * np.float32(2**-24)


def randint(bits: Any, maxval: Any) -> Any:
    """Return an `int32` integer in [0, maxval) for each number of `bits`: `bits * maxval / 2**32`."""
    maxval = _uint32(maxval) if isinstance(maxval, int) else ops.cast(maxval, "uint32")
    sixteen = _uint32(16)
    lower = ops.bitwise_right_shift(ops.bitwise_and(bits, _uint32(0xFFFF)) * maxval, sixteen)
    # At most 65535 * 65536 + 65535, the largest number that 32 bits hold.
    product = ops.bitwise_right_shift(bits, sixteen) * maxval + lower
    return ops.cast(ops.bitwise_right_shift(product, sixteen), "int32")


def beta(bits: Any, alpha: float) -> Any:
    """Return a float32 number from Beta(alpha, alpha) for each number of `bits`.

    It interpolates linearly between equally probable quantiles, so the distribution function is nowhere off by more
    than 1/1024, except for float32 rounding.
    """
    # The ends are not 0 and 1, which for a large `alpha` are far from everything that is ever drawn.
    levels = np.clip(np.linspace(0, 1, BETA_LEVELS + 1), 2**-32, 1 - 2**-32)
    table = beta_quantiles(alpha, levels).astype("float32")
    level = randint(bits, BETA_LEVELS)
    rest = uniform(ops.bitwise_left_shift(bits, _uint32(10)))
    return one_hot_lookup(table[:-1], level) + rest * one_hot_lookup(np.diff(table), level)


def beta_quantiles(alpha: float, probabilities: np.ndarray) -> np.ndarray:
    """Return quantiles of Beta(alpha, alpha), accurate to about 1e-6, by integrating the density from 0 to 1/2."""
    power = min(alpha, 1.0)  # integrated over `x**alpha`, the density has no pole
    powers = np.linspace(0.0, 0.5**power, _INTEGRATION_STEPS + 1)
    x = powers ** (1 / power)
    density = (1 - x) ** (alpha - 1) if alpha < 1 else (4 * x * (1 - x)) ** (alpha - 1)
    integral = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    tail = np.minimum(probabilities, 1 - probabilities)
    lower = np.interp(tail, integral / (2 * integral[-1]), powers) ** (1 / power)
    return np.where(probabilities <= 0.5, lower, 1 - lower)


def one_hot_lookup(table: Any, indices: Any) -> Any:
    """Return the entry of a table for each index, as a sum with one nonzero term: faster on a TPU than a gather."""
    one_hot = ops.equal(ops.expand_dims(indices, -1), ops.convert_to_tensor(np.arange(len(table), dtype="int32")))
    entries = ops.convert_to_tensor(table)
    return ops.sum(ops.where(one_hot, entries, ops.zeros_like(entries)), axis=-1)


def _rotate(bits: Any, count: int) -> Any:
    left, right = ops.bitwise_left_shift(bits, _uint32(count)), ops.bitwise_right_shift(bits, _uint32(32 - count))
    return ops.bitwise_or(left, right)


def _uint32(number: int) -> Any:
    return ops.convert_to_tensor(np.uint32(number), "uint32")
