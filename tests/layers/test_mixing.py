"""MixUp and CutMix beside the same things done by loops, with the same drawn numbers."""

import itertools

import keras
import numpy as np
import pytest
import scipy.stats

import keras_tpu_ext as kte
import plain_augmentation as plain
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

MixUp, CutMix = kte.layers.MixUp, kte.layers.CutMix


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


# Both take the quantiles in their own way, and are off by up to 1e-6; digits go up to 16.
@pytest.mark.parametrize(
    ("alpha", "count"),
    [
        *((0.2, 13), (1.0, 12), (4.0, 1)),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((0.2, 12), (0.2, 1), (1.0, 13), (1.0, 1), (4.0, 12), (4.0, 13))
        ),
    ],
)
def test_mix_up_is_what_loops_make_of_digits(count, alpha):
    images, classes = plain.digits(count)
    labels = plain.one_hot(classes)
    layer = MixUp(alpha=alpha, seed=9)
    for step in range(2):
        got, got_labels = layer((images, labels), training=True)
        expected, expected_labels = plain.mix_up(layer, images, labels, step)
        np.testing.assert_allclose(numpy_of(got), expected, atol=1e-4)
        np.testing.assert_allclose(numpy_of(got_labels), expected_labels, atol=1e-5)


def test_whole_numbers_are_rounded_and_dtypes_kept():
    images, labels = plain.photograph_parts(8), plain.one_hot(np.arange(8))
    layer = MixUp(alpha=1.0, seed=9)
    got, got_labels = layer((images, labels), training=True)
    expected, _ = plain.mix_up(layer, images, labels, 0)
    assert numpy_of(got).dtype == "uint8"
    assert numpy_of(got_labels).dtype == "float32"
    assert np.abs(numpy_of(got) - expected).max() < 0.501  # half a level, and what the quantiles are off


def test_a_mixed_policy_does_not_round_labels():
    images, classes = plain.digits(8)
    labels = plain.one_hot(classes)
    pairs = [
        MixUp(alpha=1.0, seed=9, **how)((images, labels), training=True) for how in ({"dtype": "mixed_bfloat16"}, {})
    ]
    for rounded, exact in zip(*pairs, strict=True):
        np.testing.assert_array_equal(numpy_of(rounded), numpy_of(exact))


def test_every_example_has_a_part_of_its_own():
    _, labels = MixUp(alpha=1.0, seed=3)(
        (np.zeros((64, 2, 2, 1), "float32"), np.eye(64, dtype="float32")), training=True
    )
    parts = np.diag(numpy_of(labels))
    assert len(np.unique(parts)) == 64
    np.testing.assert_allclose(numpy_of(labels).sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("layer_class", [MixUp, CutMix])
@pytest.mark.parametrize("training", [False, None])
def test_without_training_it_returns_its_inputs(layer_class, training):
    images, classes = plain.digits(4)
    got = layer_class()((images, plain.one_hot(classes)), training=training)
    for have, want in zip(got, (images, plain.one_hot(classes)), strict=True):
        np.testing.assert_array_equal(numpy_of(have), want)


def test_symbols_have_the_shapes_and_dtypes_of_the_inputs():
    images, labels = MixUp()((keras.Input((8, 8, 1), dtype="uint8"), keras.Input((10,))))
    assert (tuple(images.shape), tuple(labels.shape)) == ((None, 8, 8, 1), (None, 10))
    assert "uint8" in str(images.dtype)
    assert "float32" in str(labels.dtype)


@pytest.mark.parametrize("alpha", [0, -1.0, "much", float("inf"), True])
def test_an_alpha_that_cannot_work_is_refused(alpha):
    with pytest.raises(ArgumentError, match=r"MixUp: `alpha` must be a number above 0; got .*\. Write alpha=0.2\."):
        MixUp(alpha=alpha)


@pytest.mark.parametrize("layer_class", [MixUp, CutMix])
def test_inputs_that_are_no_pair_of_images_and_soft_labels_are_refused(layer_class):
    images, classes = plain.digits(4)
    owner = layer_class.__name__
    with pytest.raises(
        ArgumentError, match=rf"{owner}: `labels` must be floats of shape \(batch, classes\).*one_hot"
    ):
        layer_class()((images, classes), training=True)
    with pytest.raises(ArgumentError, match=r"got int32 of shape \(4, 10\)"):
        layer_class()((images, plain.one_hot(classes).astype("int32")), training=True)
    with pytest.raises(ArgumentError, match=rf"{owner}: `inputs` must be a pair of images and labels"):
        layer_class()(images, training=True)
    with pytest.raises(
        ArgumentError, match=rf"{owner}: `inputs` must be images of shape \(batch, height, width, channels\)"
    ):
        layer_class()((images[..., 0], plain.one_hot(classes)), training=True)


@pytest.mark.parametrize(
    ("layer_class", "rows", "examples"),
    [
        *((MixUp, 8, 5), (MixUp, 7, 3), (CutMix, 8, 5)),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((MixUp, 8, 6), (CutMix, 8, 6), (CutMix, 7, 3))
        ),
    ],
)
def test_an_example_beside_a_row_that_fills_the_batch_up_is_not_mixed(layer_class, rows, examples, monkeypatch):
    images, classes = plain.digits(rows)
    labels = plain.one_hot(classes)
    weights = (np.arange(rows) < examples).astype("float32").reshape(-1, 1, 1, 1)
    monkeypatch.setattr(_runtime.batch, "row_weights", lambda inputs: keras.ops.convert_to_tensor(weights))
    layer = layer_class(alpha=1.0, seed=9)
    got, got_labels = layer((images, labels), training=True)
    function = plain.mix_up if layer_class is MixUp else plain.cut_mix
    expected, expected_labels = function(layer, images[:examples], labels[:examples], 0)
    np.testing.assert_allclose(numpy_of(got)[:examples], expected, atol=1e-4)
    np.testing.assert_allclose(numpy_of(got_labels)[:examples], expected_labels, atol=1e-5)


CUT_MIX_IN_GATE = ((0.3, 13, "uint8"), (1.0, 13, "float32"), (1.0, 1, "uint8"))


@pytest.mark.parametrize(
    ("alpha", "count", "dtype"),
    [
        pytest.param(
            *case,
            marks=()
            if case in ((0.3, 13, "uint8"), (1.0, 13, "float32"), (1.0, 1, "uint8"))
            else pytest.mark.exhaustive,
        )
        for case in itertools.product((0.3, 1.0), (12, 13, 1), ("uint8", "float32"))
    ],
)
def test_cut_mix_is_what_loops_make_of_photographs(count, alpha, dtype):
    images = plain.photograph_parts(count, size=24)[:, 5:].astype(dtype)
    labels = plain.one_hot(np.arange(count) % 10)
    layer = CutMix(alpha=alpha, seed=21)
    for step in range(2):
        got, got_labels = layer((images, labels), training=True)
        expected, expected_labels = plain.cut_mix(layer, images, labels, step)
        assert numpy_of(got).dtype == dtype
        np.testing.assert_array_equal(numpy_of(got), expected)
        np.testing.assert_allclose(numpy_of(got_labels), expected_labels, atol=1e-6)  # a few steps of float32


def test_labels_of_cut_mix_have_the_part_of_the_pixels():
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


def test_an_alpha_of_cut_mix_that_cannot_work_is_refused():
    with pytest.raises(ArgumentError, match=r"CutMix: `alpha` must be a number above 0; got 0\. Write alpha=0.2\."):
        CutMix(alpha=0)
