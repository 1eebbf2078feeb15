"""CutMix beside the same thing done by loops, with the same drawn numbers."""

import keras
import numpy as np
import pytest
import scipy.stats

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

CutMix = kte.layers.CutMix


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("count", [pytest.param(12, marks=pytest.mark.exhaustive), 13, 1])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_it_is_what_loops_make_of_photographs(count, alpha, dtype):
    images = plain.photograph_parts(count, size=24)[:, 5:].astype(dtype)
    labels = plain.one_hot(np.arange(count) % 10)
    layer = CutMix(alpha=alpha, seed=21)
    for step in range(2):
        got, got_labels = layer((images, labels), training=True)
        expected, expected_labels = plain.cut_mix(layer, images, labels, step)
        assert numpy_of(got).dtype == dtype
        np.testing.assert_array_equal(numpy_of(got), expected)
        np.testing.assert_allclose(numpy_of(got_labels), expected_labels, atol=1e-6)  # a few steps of float32


def test_labels_have_the_part_of_the_pixels():
    images = np.broadcast_to(np.arange(64, dtype="float32")[:, None, None, None], (64, 20, 30, 1))
    got, labels = CutMix(seed=2)((images, np.eye(64, dtype="float32")), training=True)
    own = (numpy_of(got) == images).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(np.diag(numpy_of(labels)), own, atol=1e-6)


def test_rectangles_have_the_sizes_of_the_paper_and_their_middle_anywhere():
    count, size = 4000, 16
    images = np.zeros((count, size, size, 1), "float32")
    images[1::2] = 1
    changed = numpy_of(CutMix(seed=2)((images, np.zeros((count, 1), "float32")), training=True)[0]) != images
    rows = changed.any(axis=(2, 3))
    # A rectangle of less than half the image that has a middle row was cut off by no edge.
    whole = rows[:, size // 2] & (rows.sum(axis=1) < size // 2)
    counts = np.bincount(rows[whole].sum(axis=1), minlength=size // 2)[2::2]
    # Its side is size * sqrt(1 - part), of parts that are spread evenly: by a chance of ((k + 2)**2 - k**2) / size**2
    # it is from k to k + 2, and then covers the middle row by one of k / size.
    expected = np.array([side * ((side + 2) ** 2 - side**2) for side in (2, 4, 6)], "float64")
    assert scipy.stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("training", [False, None])
def test_without_training_it_returns_its_inputs(training):
    images, classes = plain.digits(4)
    got = CutMix()((images, plain.one_hot(classes)), training=training)
    for have, want in zip(got, (images, plain.one_hot(classes)), strict=True):
        np.testing.assert_array_equal(numpy_of(have), want)


def test_an_alpha_that_cannot_work_is_refused():
    with pytest.raises(ArgumentError, match=r"CutMix: `alpha` must be a number above 0; got 0\. Write alpha=0.2\."):
        CutMix(alpha=0)
