"""Threefry, and the distributions that are made of its bits."""

import keras
import numpy as np
import pytest
import scipy.stats

import plain_augmentation as plain
from keras_tpu_ext.layers import _random

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

# Random123's kat_vectors: threefry2x32 20; counter, key, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def words(*numbers):
    return keras.ops.convert_to_tensor(np.asarray(numbers, "uint32"))


def numpy_of(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


def drawn(key, examples, first=0, count=2):
    examples = keras.ops.convert_to_tensor(np.asarray(examples, "int32"))
    return np.stack([numpy_of(one) for one in _random.random_bits(key, examples, first, count)])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_threefry_gives_the_known_answers(counter, key, expected):
    got = _random.threefry([words(part) for part in key], [words(part) for part in counter])
    assert tuple(int(numpy_of(part)[0]) for part in got) == expected
    assert plain.threefry(key, counter) == expected


def test_draws_are_words_of_the_seed_the_step_the_example_and_the_draw():
    rng = np.random.default_rng(0)
    for seed, step, first in ((0, 0, 0), (2**32 - 1, 7, 65536), (12345, 2**31 - 1, 131072)):
        examples = rng.integers(0, 2**20, 5)
        expected = [
            [plain.threefry((seed, step), (int(n), (first + i) // 2))[i % 2] for n in examples] for i in range(3)
        ]
        np.testing.assert_array_equal(drawn((seed, step), examples, first, 3), expected)


def test_an_example_draws_the_same_in_any_batch():
    np.testing.assert_array_equal(drawn((1, 2), range(100))[:, 40:43], drawn((1, 2), [40, 41, 42]))


def test_words_are_all_different_over_seeds_steps_examples_and_draws():
    all_drawn = [drawn((seed, step), range(50), count=4) for seed in range(5) for step in range(5)]
    assert len(np.unique(all_drawn)) == 5 * 5 * 50 * 4


@pytest.mark.parametrize("bound", [1, 2, 3, 33, 224, 4096, 65535, 65536])
def test_below_is_the_product_of_64_bits(bound):
    rng = np.random.default_rng(bound)
    numbers = [0, 1, 2**16 - 1, 2**16, 2**31, WORD_MAX, *map(int, rng.integers(0, 2**32, 200))]
    expected = [plain.below(number, bound) for number in numbers]
    np.testing.assert_array_equal(numpy_of(_random.randint(words(*numbers), bound)), expected)
    bounds = keras.ops.convert_to_tensor(np.full(len(numbers), bound, "int32"))
    np.testing.assert_array_equal(numpy_of(_random.randint(words(*numbers), bounds)), expected)


WORD_MAX = 2**32 - 1


def test_below_is_uniform():
    counts = np.bincount(numpy_of(_random.randint(words(*drawn((5, 0), range(5000)).ravel()), 33)), minlength=33)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_uniform_is_from_nought_to_below_one():
    got = numpy_of(_random.uniform(words(0, 255, 256, WORD_MAX)))
    np.testing.assert_array_equal(got, np.asarray([0, 0, 2**-24, 1 - 2**-24], "float32"))
    assert got.dtype == np.float32
    many = numpy_of(_random.uniform(words(*drawn((5, 0), range(5000)).ravel())))
    assert scipy.stats.kstest(many, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_look_up_returns_entries_to_the_last_bit(dtype):
    table = (np.random.default_rng(0).normal(size=300) * 1e6).astype(dtype)
    places = np.random.default_rng(1).integers(0, 300, 50).astype("int32")
    got = numpy_of(_random.one_hot_lookup(table, keras.ops.convert_to_tensor(places)))
    np.testing.assert_array_equal(got, table[places])


ALPHAS = [0.01, 0.2, 0.5, 1.0, 2.0, 8.0, 300.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantiles_of_beta_are_those_of_scipy(alpha):
    probabilities = np.asarray([2**-32, *np.arange(1, 1024) / 1024, 1 - 2**-32])
    expected = scipy.stats.beta.ppf(probabilities, alpha, alpha)
    np.testing.assert_allclose(_random.beta_quantiles(alpha, probabilities), expected, atol=2e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_draws_have_the_beta_distribution(alpha):
    bits = _random.random_bits((1, 0), keras.ops.convert_to_tensor(np.arange(4000, dtype="int32")), 0, 1)[0]
    got = numpy_of(_random.beta(bits, alpha)).astype("float64")
    probabilities = (numpy_of(bits) + 0.5) / 2**32
    low, high = (
        scipy.stats.beta.ppf(np.clip(probabilities + off, 0, 1), alpha, alpha) for off in (-1 / 1024, 1 / 1024)
    )
    assert np.all((low - 2e-6 <= got) & (got <= high + 2e-6))  # what quantiles are off, and float32 rounds
    assert got.min() >= 0
    assert got.max() <= 1
    if alpha >= 0.2:  # else float32 holds too few numbers near nought; near 1 it holds fewer, so one half is taken
        half = scipy.stats.kstest(got[got < 0.5], lambda x: 2 * scipy.stats.beta.cdf(x, alpha, alpha))
        assert half.pvalue > 1e-3
        assert scipy.stats.binomtest(int(np.sum(got < 0.5)), len(got)).pvalue > 1e-3
