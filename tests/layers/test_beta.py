"""Draws from Beta(alpha, alpha) by a table, beside SciPy's."""

import keras
import numpy as np
import pytest
import scipy.stats

from keras_tpu_ext.layers import _random

ALPHAS = [0.01, 0.2, 0.5, 1.0, 2.0, 8.0, 300.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantiles_are_those_of_scipy(alpha):
    probabilities = np.asarray([2**-32, *np.arange(1, 1024) / 1024, 1 - 2**-32])
    expected = scipy.stats.beta.ppf(probabilities, alpha, alpha)
    np.testing.assert_allclose(_random.beta_quantiles(alpha, probabilities), expected, atol=2e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_draws_have_the_distribution(alpha):
    words = _random.random_bits((1, 0), keras.ops.convert_to_tensor(np.arange(4000, dtype="int32")), 0, 1)[0]
    got = np.asarray(keras.ops.convert_to_numpy(_random.beta(words, alpha))).astype("float64")
    probabilities = (np.asarray(keras.ops.convert_to_numpy(words)) + 0.5) / 2**32
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
