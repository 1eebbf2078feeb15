"""RandomFlipCrop beside the same thing done by loops, with the same drawn numbers."""

import keras
import numpy as np
import pytest
import scipy.stats

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

RandomFlipCrop = kte.layers.RandomFlipCrop


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


def where_from(size, count=4000, **options):
    """For each of many images whose pixels are their numbers: the pixels that came out."""
    numbers = np.arange(1, size * size + 1, dtype="float32").reshape(1, size, size, 1)
    layer = RandomFlipCrop(seed=11, **options)
    return numpy_of(layer(np.repeat(numbers, count, axis=0), training=True))[..., 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 2},
        {"height": 5, "width": 6},
        {"height": 5, "padding": 1, "horizontal": False},
        {"width": 3, "vertical": True},
        {"height": 11, "width": 9, "padding": 3, "vertical": True, "horizontal": False},
    ],
)
def test_it_is_what_loops_make_of_digits(options):
    images, _ = plain.digits(12)
    layer = RandomFlipCrop(seed=2**32 - 1, **options)
    for step in range(2):
        np.testing.assert_array_equal(numpy_of(layer(images, training=True)), plain.flip_crop(layer, images, step))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "bfloat16"])
def test_it_keeps_the_dtype_and_every_bit_of_photographs(dtype):
    parts = plain.photograph_parts(6)
    values = parts if dtype == "uint8" else parts / np.float32(255.7) - np.float32(0.3)
    values = numpy_of(keras.ops.cast(keras.ops.convert_to_tensor(values), dtype))
    layer = RandomFlipCrop(height=33, width=30, padding=2, seed=4)
    got = layer(keras.ops.convert_to_tensor(values), training=True)
    assert getattr(got.dtype, "name", str(got.dtype)) == dtype
    expected = plain.flip_crop(layer, values, 0)
    np.testing.assert_array_equal(numpy_of(got).astype("float64"), expected.astype("float64"))


def test_numbers_of_24_bits_and_of_all_sizes_come_through_to_the_last_bit():
    rng = np.random.default_rng(0)
    images = (rng.normal(size=(4, 9, 7, 2)) * 10.0 ** rng.integers(-20, 20, size=(4, 9, 7, 2))).astype("float32")
    layer = RandomFlipCrop(padding=1, seed=4)
    np.testing.assert_array_equal(numpy_of(layer(images, training=True)), plain.flip_crop(layer, images, 0))


@pytest.mark.parametrize("training", [False, None])
def test_without_training_it_cuts_the_middle_out(training):
    images, _ = plain.digits(3)
    layer = RandomFlipCrop(height=5, width=4, seed=0)
    np.testing.assert_array_equal(numpy_of(layer(images, training=training)), images[:, 1:6, 2:6])
    same = RandomFlipCrop(padding=2, vertical=True, seed=0)
    np.testing.assert_array_equal(numpy_of(same(images, training=training)), images)
    larger = RandomFlipCrop(height=10, padding=2, seed=0)
    np.testing.assert_array_equal(
        numpy_of(larger(images, training=training)), np.pad(images, [(0, 0), (1, 1), (0, 0), (0, 0)])
    )
    assert int(numpy_of(layer.calls)) == 0


def test_every_place_and_flip_is_as_probable_as_any_other():
    out = where_from(5, height=3, width=4, vertical=True)
    flipped = out[:, :, 0] > out[:, :, -1]
    upside_down = out[:, 0] > out[:, -1]
    assert np.all(flipped == flipped[:, :1])
    outcomes = [out.min(axis=(1, 2)).astype(int), flipped[:, 0], upside_down[:, 0]]
    _, counts = np.unique(np.stack(outcomes), axis=1, return_counts=True)
    assert len(counts) == 3 * 2 * 2 * 2
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_padding_moves_an_image_by_that_much_each_way():
    out = where_from(4, padding=2, horizontal=False)
    rows, columns = (np.array([np.nonzero(one.any(axis=axis))[0] for one in out], dtype=object) for axis in (1, 0))
    for places in (rows, columns):
        assert {(place.min(), place.max()) for place in places} == {(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)}


def test_gradients_go_where_the_pixels_came_from():
    if keras.backend.backend() == "jax":
        import jax

        layer = RandomFlipCrop(height=3, width=3, seed=1)
        layer.build((None, 5, 5, 1))
        calls = [variable.value for variable in layer.non_trainable_variables]
        images = np.ones((2, 5, 5, 1), "float32")
        gradient = jax.grad(lambda x: layer.stateless_call([], calls, x, training=True)[0].sum())(images)
    else:
        import tensorflow as tf

        layer = RandomFlipCrop(height=3, width=3, seed=1)
        images = tf.ones((2, 5, 5, 1))
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(layer(images, training=True))
        gradient = tape.gradient(loss, images)
    gradient = numpy_of(gradient)
    assert set(gradient.ravel()) == {0.0, 1.0}
    assert gradient.sum() == 2 * 9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"height": 0},
            "RandomFlipCrop: `height` must be an integer of at least 1; got 0. Write height=224.",
        ),
        ({"width": 2.5}, "`width` must be an integer of at least 1; got 2.5"),
        (
            {"padding": -1},
            "`padding` must be an integer of at least 0; got -1. Write padding",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, text):
    with pytest.raises(ArgumentError) as raised:
        RandomFlipCrop(**options)
    assert text in str(raised.value)


def test_images_smaller_than_the_crop_are_refused():
    with pytest.raises(
        ArgumentError, match=r"`height` must be at most that of the images with their padding, 8 \+ 2 \*"
    ):
        RandomFlipCrop(height=11, padding=1)(np.zeros((2, 8, 8, 1), "float32"), training=True)
    with pytest.raises(ArgumentError, match=r"Write width=8, or padding=2"):
        RandomFlipCrop(width=11)(keras.Input((16, 8, 1)))
