"""RandomErasing beside the same thing done by loops, with the same drawn numbers."""

import keras
import numpy as np
import pytest
import scipy.stats

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

RandomErasing = kte.layers.RandomErasing


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"probability": 1, "value": 17},
        {"probability": 0.9, "scale": (0.5, 1.0), "ratio": (0.5, 2.0)},
        {"probability": 1, "scale": (0.01, 0.02), "ratio": (1, 1), "value": (1, 2, 3)},
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_it_is_what_loops_make_of_photographs(options, dtype):
    images = plain.photograph_parts(16, size=24)[:, :, 1:].astype(dtype)
    layer = RandomErasing(seed=77, **options)
    for step in range(2):
        got = numpy_of(layer(images, training=True))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, plain.erasing(layer, images, step))


@pytest.mark.parametrize("training", [False, None])
def test_without_training_it_returns_its_inputs(training):
    images, _ = plain.digits(4)
    np.testing.assert_array_equal(numpy_of(RandomErasing(probability=1)(images, training=training)), images)


def test_one_half_is_erased_in_areas_and_ratios_that_were_asked_for():
    images = np.ones((4000, 32, 32, 1), "float32")
    erased = numpy_of(RandomErasing(seed=5)(images, training=True))[..., 0] == 0
    assert scipy.stats.binomtest(int(erased.any(axis=(1, 2)).sum()), 4000).pvalue > 1e-3
    erased = erased[erased.any(axis=(1, 2))]
    heights, widths = erased.any(axis=2).sum(axis=1), erased.any(axis=1).sum(axis=1)
    np.testing.assert_array_equal(erased.sum(axis=(1, 2)), heights * widths)  # they are rectangles
    # Sides are whole pixels, so that small rectangles are off by up to half a pixel on each side.
    assert (heights * widths).min() >= (0.02**0.5 * 32 * 0.55 - 0.5) * (0.02**0.5 * 32 / 0.55 - 0.5) * 0.9
    assert 0.15 < np.mean(heights * widths) / 1024 < 0.2  # (0.02 + 0.33) / 2
    assert abs(np.mean(np.log(heights / widths))) < 0.05  # as many upright ones as lying ones
    assert (heights > widths).any()
    assert (heights < widths).any()


def test_the_rectangle_is_anywhere_where_it_fits():
    layer = RandomErasing(probability=1, scale=(0.25, 0.25), ratio=(1, 1), seed=3)
    erased = numpy_of(layer(np.ones((3000, 4, 4, 1), "float32"), training=True))[..., 0] == 0
    places = erased.reshape(3000, -1).argmax(axis=1)
    values, counts = np.unique(places, return_counts=True)
    assert list(values) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_never_and_always():
    images, _ = plain.digits(64)
    np.testing.assert_array_equal(numpy_of(RandomErasing(probability=0, seed=1)(images, training=True)), images)
    always = numpy_of(RandomErasing(probability=1, value=-1, seed=1)(images, training=True))
    assert (always == -1).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"probability": 1.5},
            "RandomErasing: `probability` must be a probability from 0 to 1; got 1.5. Write prob",
        ),
        ({"probability": "often"}, "got 'often'. Write probability=0.5."),
        (
            {"scale": (0.3, 0.1)},
            "`scale` must be a smallest and a largest of parts of the area, above 0 and at most 1; ",
        ),
        ({"scale": (0.3, 1.1)}, "got (0.3, 1.1). Write scale=(0.02, 0.33)."),
        ({"scale": 0.3}, "got 0.3."),
        (
            {"ratio": (0, 1)},
            "`ratio` must be a smallest and a largest of heights by widths, above 0; got (0, 1)",
        ),
        ({"ratio": (1, float("nan"))}, "Write ratio=(0.3, 3.3)."),
        (
            {"value": "black"},
            "`value` must be a number, or one for each channel; got 'black'. Write value=0.0.",
        ),
        ({"value": ()}, "`value` must be a number, or one for each channel; got ()"),
    ],
)
def test_options_that_cannot_work_are_refused(options, text):
    with pytest.raises(ArgumentError) as raised:
        RandomErasing(**options)
    assert text in str(raised.value)


def test_what_does_not_fit_the_images_is_refused():
    images = np.zeros((2, 8, 8, 3), "uint8")
    with pytest.raises(ArgumentError, match="one for each of the 3 channels"):
        RandomErasing(value=(1, 2))(images, training=True)
    with pytest.raises(ArgumentError, match=r"an integer from 0 to 255 for images of dtype uint8; got 0.5"):
        RandomErasing(value=0.5)(images, training=True)
    with pytest.raises(ArgumentError, match="a rectangle fits in an image of 8 x 8 pixels"):
        RandomErasing(scale=(0.9, 1.0), ratio=(3, 4))(images, training=True)
