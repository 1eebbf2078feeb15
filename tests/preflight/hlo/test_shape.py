"""Shapes as XLA prints them, and what they take in memory by the tiles of their layout."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tpu_ext.preflight._hlo.shape import Shape, parse_shape

pytestmark = pytest.mark.gate_on("keras3_jax")


def taken(sizes, order, tiles):
    """Return the elements in memory: https://openxla.org/xla/tiled_layout, each tile cutting up what is before it."""
    memory = [sizes[i] for i in reversed(order)]
    for tile in tiles:
        memory = [1] * (len(tile) - len(memory)) + memory
        inner = memory[-len(tile) :]
        counts = [math.ceil(size / length) for size, length in zip(inner, tile, strict=True)]
        memory = [*memory[: -len(tile)], *counts, *tile]
    return int(np.prod(memory))


def test_an_array_is_read_whole():
    shape = parse_shape("bf16[128,26,26,64]{0,3,2,1:T(8,128)(2,1)S(1)}")
    assert shape == Shape("bf16", (128, 26, 26, 64), (0, 3, 2, 1), ((8, 128), (2, 1)), memory_space=1)
    assert str(shape) == "bf16[128,26,26,64]"


@pytest.mark.parametrize(
    ("text", "size", "padded"),
    [
        ("f32[3,5]", 60, 60),
        ("f32[3,5]{1,0}", 60, 60),
        ("f32[3,5]{1,0:T(8,128)}", 60, 8 * 128 * 4),
        ("f32[43264,10]{0,1:T(8,128)S(1)}", 43264 * 10 * 4, 43264 * 16 * 4),  # the 10 is padded, and not the 43264
        ("f32[43264,10]{1,0:T(8,128)}", 43264 * 10 * 4, 43264 * 128 * 4),
        ("bf16[3,3,1,64]{3,2,1,0:T(2,128)(2,1)}", 1152, 3 * 3 * 2 * 128 * 2),
        ("bf16[64]{0:T(256)(128)(2,1)}", 128, 512),
        ("f32[]{:T(128)}", 4, 512),
        ("f32[10]{0:T(8,128)}", 40, 8 * 128 * 4),
        ("pred[128,28]{1,0:T(8,128)(4,1)}", 128 * 28, 128 * 128),
        ("s4[3,5]{1,0:E(4)}", 8, 8),
        ("u4[3]", 2, 2),
        ("f8e4m3fn[6]", 6, 6),
        ("c64[2]", 16, 16),
        ("f32[<=10]", 40, 40),
        ("f32[0,128]{1,0:T(8,128)}", 0, 0),
        ("token[]", 0, 0),
        ("opaque[]", 0, 0),
    ],
)
def test_bytes_with_and_without_padding(text, size, padded):
    shape = parse_shape(text)
    assert (shape.bytes, shape.padded_bytes) == (size, padded)


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    tiles=st.sampled_from([(), ((128,),), ((8, 128),), ((8, 128), (2, 1)), ((256,), (128,), (2, 1)), ((1, 128),)]),
    data=st.data(),
)
def test_padding_is_that_of_tiles_cut_one_after_the_other(sizes, tiles, data):
    order = data.draw(st.permutations(range(len(sizes))))
    text = "".join(f"({','.join(map(str, tile))})" for tile in tiles)
    layout = ",".join(map(str, order)) + (f":T{text}" if tiles else "")
    shape = parse_shape(f"f32[{','.join(map(str, sizes))}]{{{layout}}}")
    assert shape.bytes == 4 * math.prod(sizes)
    assert shape.padded_bytes == 4 * taken(sizes, order, tiles)


def test_a_tuple_is_as_large_as_its_parts():
    shape = parse_shape("(f32[64]{0:T(128)}, /*index=1*/(bf16[8,10]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}), token[])")
    assert shape.bytes == 256 + 160 + 4
    assert shape.padded_bytes == 512 + 2048 + 4
    assert [str(array) for array in shape.leaves()] == ["f32[64]", "bf16[8,10]", "u32[]", "token[]"]
    assert [array.memory_space for array in shape.leaves()] == [0, 0, 2, 0]
    assert str(shape) == "(f32[64], (bf16[8,10], u32[]), token[])"


def test_an_empty_tuple_takes_nothing():
    shape = parse_shape("()")
    assert (shape.bytes, shape.padded_bytes, list(shape.leaves()), str(shape)) == (0, 0, [], "()")


@pytest.mark.parametrize("text", ["", "f32", "32[4]", "%fusion.1", "f32[4] x"])
def test_what_is_no_shape_is_named(text):
    with pytest.raises(ValueError, match="is no shape") as caught:
        parse_shape(text)
    assert repr(text) in str(caught.value)
