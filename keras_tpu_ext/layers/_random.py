"""Random numbers that depend on a seed, a step and the number of an example, and on nothing else.

They come from Threefry-2x32 with 20 rounds, which is a function of a key and a counter, both of two words of 32 bits,
and has no state. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3,
https://doi.org/10.1145/2063384.2063405.

All of it is arithmetic of whole numbers, and so the same on every runtime and device to the last bit. What is made of
the words is so too, in `uniform`, `below` and `look_up`: no function is used that a device may round in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime

ops = _runtime.ops

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # added to the key in Threefry, as in Skein


def threefry(key: Sequence[Any], counter: Sequence[Any]) -> tuple[Any, Any]:
    """Return the two words for a key and a counter.

    Args:
        key: Two tensors of dtype `uint32`.
        counter: Two such tensors; all four broadcast to one shape.
    """
    keys = (key[0], key[1], ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _word(_PARITY)))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ops.bitwise_xor(_rotate(y, rotation), x)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + _word(group + 1)
    return x, y


def draw(key: Sequence[Any], examples: Any, first: int, count: int) -> list[Any]:
    """Return `count` words for each example, a list of tensors of dtype `uint32` with one number for each of them.

    Args:
        key: The seed and the number of the step: each a number, or a scalar tensor of dtype `int32`.
        examples: The number of each example in the whole batch, of dtype `int32`.
        first: Number of the first draw. It is even: two draws come of one counter.
        count: How many draws.
    """
    seed, step = (_word(part) if isinstance(part, int) else ops.cast(part, "uint32") for part in key)
    blocks = np.arange(first // 2, (first + count + 1) // 2, dtype="uint32")[:, None]
    # The examples are the last dimension, so that the words of each draw lie side by side.
    counter = ops.expand_dims(ops.cast(examples, "uint32"), 0), ops.convert_to_tensor(blocks)
    pairs = threefry((seed, step), counter)
    return [pairs[i % 2][i // 2] for i in range(count)]


def uniform(words: Any) -> Any:
    """Return a float32 number from 0 to below 1 for each word: its upper 24 bits, which float32 holds."""
    upper = ops.cast(ops.bitwise_right_shift(words, _word(8)), "int32")
    return ops.cast(upper, "float32") * np.float32(2**-24)


def below(words: Any, bound: Any) -> Any:
    """Return a whole number from 0 to below `bound`, of dtype `int32`, for each word: `words * bound / 2**32`.

    Args:
        words: Words.
        bound: A number, or a tensor of dtype `int32` that broadcasts to `words`; from 1 to 65536.
    """
    bound = _word(bound) if isinstance(bound, int) else ops.cast(bound, "uint32")
    sixteen = _word(16)
    lower = ops.bitwise_right_shift(ops.bitwise_and(words, _word(0xFFFF)) * bound, sixteen)
    # At most 65535 * 65536 + 65535, which is the largest that 32 bits hold.
    product = ops.bitwise_right_shift(words, sixteen) * bound + lower
    return ops.cast(ops.bitwise_right_shift(product, sixteen), "int32")


def look_up(table: Any, places: Any) -> Any:
    """Return the entry of a table for each place.

    It is a sum over the table in which one term counts: exact, and on a TPU faster than to gather single numbers.

    Args:
        table: NumPy array of one dimension.
        places: Places in it, a tensor of dtype `int32`, of one dimension.
    """
    chosen = ops.equal(ops.expand_dims(places, -1), ops.convert_to_tensor(np.arange(len(table), dtype="int32")))
    entries = ops.convert_to_tensor(table)
    return ops.sum(ops.where(chosen, entries, ops.zeros_like(entries)), axis=-1)


def _rotate(words: Any, bits: int) -> Any:
    left, right = ops.bitwise_left_shift(words, _word(bits)), ops.bitwise_right_shift(words, _word(32 - bits))
    return ops.bitwise_or(left, right)


def _word(number: int) -> Any:
    return ops.convert_to_tensor(np.uint32(number), "uint32")
