"""RandomAffine beside the same thing done by loops, and beside the matrices that it stands for."""

import keras
import numpy as np
import pytest
import scipy.stats

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here: JAX compiles long for this one.
pytestmark = pytest.mark.gate_on("keras3_tf")

RandomAffine = kte.layers.RandomAffine
STILL = {"rotation": 0.0, "zoom": 0.0, "translation": 0.0, "horizontal": False}


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


def matrices_of(layer, count, height=40, width=30):
    """For many images the matrices that say where pixels came from, from the middle, and how far off these are."""
    y, x = np.mgrid[:height, :width].astype("float32")
    x, y = x - (width - 1) / 2, y - (height - 1) / 2
    image = np.stack([x, y, np.ones_like(x)], axis=-1)
    out = numpy_of(layer(np.repeat(image[None], count, axis=0), training=True))
    matrices, off = [], 0.0
    for one in out:
        inside = one[..., 2] > 0.9999
        places = np.stack([x[inside], y[inside], np.ones(inside.sum())], axis=1)
        matrix, *_ = np.linalg.lstsq(places, one[inside][:, :2], rcond=None)
        matrices.append(matrix.T)
        off = max(off, np.abs(places @ matrix - one[inside][:, :2]).max())
    return np.array(matrices), off


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.exhaustive),
        {"rotation": 0.5, "vertical": True, "translation": 0.3},
        pytest.param({"rotation": 0.125, "shear": 0.4, "zoom": 0.3}, marks=pytest.mark.exhaustive),
        pytest.param({"rotation": 0.0, "shear": 1.0, "zoom": 0.9, "horizontal": False}, marks=pytest.mark.exhaustive),
        pytest.param({"rotation": 0.0, "zoom": 0.2}, marks=pytest.mark.exhaustive),
    ],
)
def test_it_is_what_loops_make_of_photographs(options):
    layer = RandomAffine(seed=2**32 - 1, **options)
    images = plain.photograph_parts(6, size=10)
    for step in range(2):
        got, expected = numpy_of(layer(images, training=True)), plain.affine(layer, images, step)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-7), ("bfloat16", 2e-2), ("float16", 2e-3)])
@pytest.mark.parametrize("size", [(9, 11), pytest.param((11, 8), marks=pytest.mark.exhaustive)])
def test_it_is_what_loops_make_of_floats(dtype, tolerance, size):
    layer = RandomAffine(rotation=0.1, shear=0.2, seed=5)
    values = plain.photograph_parts(4, size=11)[:, : size[0], : size[1]] / np.float32(255.7) - np.float32(0.3)
    values = numpy_of(keras.ops.cast(keras.ops.convert_to_tensor(values), dtype))
    got = layer(keras.ops.convert_to_tensor(values), training=True)
    assert getattr(got.dtype, "name", str(got.dtype)) == dtype
    expected = plain.affine(layer, values.astype("float32"), 0)
    np.testing.assert_allclose(numpy_of(got).astype("float64"), expected, rtol=0, atol=tolerance)


@pytest.mark.exhaustive  # as what all together do
def test_a_rotation_is_one_by_every_angle_alike_and_to_either_side():
    matrices, off = matrices_of(RandomAffine(**{**STILL, "rotation": 0.1}, seed=3), 400)
    assert off < 0.02
    np.testing.assert_allclose(matrices[:, 0, 0], matrices[:, 1, 1], atol=2e-3)
    np.testing.assert_allclose(matrices[:, 0, 1], -matrices[:, 1, 0], atol=2e-3)
    np.testing.assert_allclose(np.linalg.det(matrices[:, :, :2]), 1, atol=4e-3)
    np.testing.assert_allclose(matrices[:, :, 2], 0, atol=0.01)  # about the middle
    turns = np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0]) / (2 * np.pi)
    assert scipy.stats.kstest(turns, scipy.stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-3


@pytest.mark.exhaustive
def test_half_a_turn_to_either_side_is_every_angle():
    matrices, off = matrices_of(RandomAffine(**{**STILL, "rotation": 0.5}, seed=3), 400, 30, 30)
    assert off < 0.02
    np.testing.assert_allclose(np.linalg.det(matrices[:, :, :2]), 1, atol=5e-3)
    np.testing.assert_allclose(matrices[:, 0, 0], matrices[:, 1, 1], atol=3e-3)
    turns = np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0]) / (2 * np.pi)
    assert scipy.stats.kstest(turns, scipy.stats.uniform(-0.5, 1).cdf).pvalue > 1e-3


@pytest.mark.exhaustive  # as what all together do
def test_zoom_translation_and_shear_go_as_far_as_they_were_asked_for():
    for name, most, value in (
        ("zoom", 0.3, lambda matrix: matrix[:, 0, 0] - 1),
        ("shear", 0.25, lambda matrix: matrix[:, 0, 1]),
        ("translation", 0.2, lambda matrix: matrix[:, 0, 2] / 30),
        ("translation", 0.2, lambda matrix: matrix[:, 1, 2] / 40),
    ):
        matrices, off = matrices_of(RandomAffine(**{**STILL, name: most}, seed=3), 300)
        assert off < 0.02
        drawn = value(matrices)
        assert scipy.stats.kstest(drawn, scipy.stats.uniform(-most, 2 * most).cdf).pvalue > 1e-3
        if name == "zoom":
            np.testing.assert_allclose(matrices[:, 1, 1], matrices[:, 0, 0], atol=1e-3)


def matrix_of(layer, example, height, width):
    """The matrix of what an example draws: a shear, a rotation, flips and a zoom, of what was moved."""
    drawn = plain.words(layer, 0, example, 7)
    angle = 2 * np.pi * layer.rotation * (2 * (plain.below(drawn[0], 1024) + 0.5) / 1024 - 1)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    is_flipped = [layer.horizontal and drawn[2] >= 2**31, layer.vertical and drawn[1] >= 2**31]
    zoom, shear, down, right = (2 * plain.uniform(word) - 1 for word in drawn[3:])
    linear = np.array([[1, layer.shear * shear], [0, 1]]) @ rotation
    linear = linear * np.where(is_flipped, -1, 1) * (1 + layer.zoom * zoom)
    return np.column_stack([linear, linear @ [layer.translation * width * right, layer.translation * height * down]])


def test_all_together_are_the_product_of_a_shear_a_rotation_flips_a_zoom_and_a_translation():
    layer = RandomAffine(rotation=0.5, zoom=0.2, shear=0.3, translation=0.1, vertical=True, seed=9)
    matrices, off = matrices_of(layer, 40, 36, 36)
    assert off < 0.02
    for n, matrix in enumerate(matrices):
        assert np.all(np.abs(matrix - matrix_of(layer, n, 36, 36)) < [4e-3, 4e-3, 0.02])


def test_places_are_right_to_a_twentieth_of_a_pixel():
    layer = RandomAffine(seed=9)
    matrices, off = matrices_of(layer, 8, 224, 224)
    corner = np.array([111.5, 111.5, 1])
    for n, matrix in enumerate(matrices):
        assert np.abs((matrix - matrix_of(layer, n, 224, 224)) @ corner).max() + off < 1 / 20


def test_flips_alone_and_nothing_at_all_keep_every_bit():
    images = plain.photograph_parts(16, size=12)
    for values in (images, images.astype("float32") / 255.7):
        np.testing.assert_array_equal(numpy_of(RandomAffine(**STILL, seed=1)(values, training=True)), values)
        layer = RandomAffine(**{**STILL, "horizontal": True}, vertical=True, seed=1)
        out = numpy_of(layer(values, training=True))
        kinds = [
            [np.array_equal(one, kind) for kind in (image, image[::-1], image[:, ::-1], image[::-1, ::-1])]
            for one, image in zip(out, values, strict=True)
        ]
        assert np.sum(kinds) == 16
        assert np.all(np.sum(kinds, axis=0) > 0)


@pytest.mark.parametrize("training", [False, None])
def test_without_training_it_returns_its_inputs(training):
    images, _ = plain.digits(4)
    layer = RandomAffine(seed=1)
    np.testing.assert_array_equal(numpy_of(layer(images, training=training)), images)
    assert int(numpy_of(layer.calls)) == 0


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_gradients_go_where_the_pixels_came_from():
    layer = RandomAffine(rotation=0.1, seed=1)
    layer.build((None, 6, 6, 1))
    images = plain.digits(2)[0][:, :6, :6]
    if keras.backend.backend() == "jax":
        import jax

        calls = [variable.value for variable in layer.non_trainable_variables]
        total = lambda x: (layer.stateless_call([], calls, x, training=True)[0] ** 2).sum() / 2  # noqa: E731
        gradient = jax.jit(jax.grad(total))(images)
    else:
        import tensorflow as tf

        images = tf.constant(images)
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(layer(images, training=True) ** 2) / 2
        gradient = tape.gradient(loss, images)
    # What comes out is linear in what goes in, so that this is true of the sum of its squares.
    out = numpy_of(RandomAffine(rotation=0.1, seed=1)(images, training=True))
    np.testing.assert_allclose(np.sum(numpy_of(gradient) * numpy_of(images)), np.sum(out**2), rtol=1e-5)
    assert np.sum(out**2) > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"rotation": 18},
            "RandomAffine: `rotation` must be a fraction of a full turn from 0 to 0.5; got 18. Write rotation=0.05.",
        ),
        (
            {"zoom": 1.0},
            "`zoom` must be a part of the height and width from 0 to 0.99; got",
        ),
        ({"shear": -0.1}, "`shear` must be a part of the distance from the middle from 0 to 1; got"),
        ({"translation": (0.1, 0.1)}, "`translation` must be a part of the height and width from 0 to 1;"),
        ({"rotation": float("nan")}, "got nan. Write rotation=0.05."),
        (
            {"rotation": 10**400},
            "`rotation` must be a fraction of a full turn from 0 to 0.5; got 1000",
        ),
        ({"zoom": True}, "got True. Write zoom=0.1."),
    ],
)
def test_options_that_cannot_work_are_refused(options, text):
    with pytest.raises(ArgumentError) as raised:
        RandomAffine(**options)
    assert text in str(raised.value)


def test_images_that_cannot_be_turned_so_far_are_refused():
    with pytest.raises(ArgumentError) as raised:
        RandomAffine(rotation=0.2)(np.zeros((2, 8, 9, 1), "float32"), training=True)
    assert (
        "RandomAffine: `inputs` must be square images for a rotation above 0.125, an eighth of a turn; got height 8, "
        "width 9 and rotation=0.2. Write rotation=0.125, or cut them square first."
    ) in str(raised.value)
    assert RandomAffine(rotation=0.125)(np.zeros((2, 8, 9, 1), "float32"), training=True).shape == (2, 8, 9, 1)
    layer = RandomAffine(rotation=0.2)
    layer(np.zeros((2, 8, 8, 1), "float32"))
    with pytest.raises(ArgumentError, match="must be square images"):  # also when it was built for others
        layer(np.zeros((2, 8, 1, 1), "float32"), training=True)
    with pytest.raises(ArgumentError, match="`inputs` must be below 4096 pixels high and wide; got height 8"):
        RandomAffine()(keras.Input((8, 4096, 1)))


def test_places_of_the_largest_images_fit_32_bits():
    from keras_tpu_ext.layers.random_affine import _ONE, _angle_table, _max_offset, _slope_offsets

    largest = 4095
    steepest = int(2**0.5 * 1.99 * _ONE)  # the largest zoom of the largest angle; slopes are at most 2
    size = largest + 2 * _max_offset(_ONE, largest)
    places = numpy_of(_slope_offsets(keras.ops.convert_to_tensor(np.array([steepest, -steepest], "int32")), size))
    exact = np.array([[steepest], [-steepest]], "int64") * (2 * np.arange(size) - (size - 1)) // 128
    np.testing.assert_array_equal(places, exact)
    layer = RandomAffine(rotation=0.125, shear=1.0, zoom=0.99, translation=1.0, seed=2)
    layer.build((None, largest, largest, 1))
    drawn = layer._draw(_angle_table(0.125), 50, largest, largest)
    for n in range(50):
        rows, _, moves, columns, _ = plain.affine_numbers(layer, plain.words(layer, 0, n, 7), largest, largest)
        got = [int(numpy_of(values)[n]) for values in (drawn.rows, *drawn.moves, drawn.columns)]
        assert got == [rows, *moves, columns]
