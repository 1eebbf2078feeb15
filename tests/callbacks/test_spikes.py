import numpy as np
import pytest

from keras_tpu_ext.callbacks._spikes import SpikeFinder

pytestmark = pytest.mark.gate_on("keras3_jax")


def spikes_of(losses, *, is_mean=False, **options):
    finder = SpikeFinder(**{"window": 100, "threshold": 7.0, **options, "is_mean": is_mean})
    shown = np.cumsum(losses) / np.arange(1, len(losses) + 1) if is_mean else losses
    found = [finder.add(0, i + 1, float(value)) for i, value in enumerate(shown)]
    return [spike.batch for spike in found if spike is not None]


def noisy(count, spread=0.1, level=2.0, seed=0):
    return level * np.exp(np.random.default_rng(seed).normal(0, spread, count))


@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_a_spike_is_found_once_where_it_begins(is_mean, length):
    losses = noisy(400)
    losses[250 : 250 + length] *= 10
    losses[340] *= 10
    assert spikes_of(losses, is_mean=is_mean) == [250, 340]


def test_a_level_that_stays_is_one_spike():
    losses = noisy(600)
    losses[200:] *= 10
    assert spikes_of(losses) == [200]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", ["falling", "heavy", "constant", "negative", "warm-up"])
def test_noise_is_no_spike(shape, seed):
    rng, n = np.random.default_rng(seed), 2000
    losses = {
        "falling": noisy(n, 0.2, seed=seed) * np.linspace(1, 0.001, n) ** 2,
        "heavy": np.exp(rng.normal(0, 1.5, n)),  # batches of one example
        "constant": 0.6931 + rng.normal(0, 1e-6, n),
        "negative": -5 + rng.normal(0, 0.05, n),
        "warm-up": noisy(n, 0.05, seed=seed)
        * np.concatenate([np.linspace(1, 1.1, 200), np.linspace(1.1, 0.2, n - 200)]),
    }[shape]
    assert spikes_of(losses) == []


def test_a_negative_loss_can_spike():
    losses = -5 + np.random.default_rng(0).normal(0, 0.05, 300)
    losses[200] = 0
    assert spikes_of(losses) == [200]


def test_too_few_losses_are_not_judged():
    losses = noisy(30)
    losses[10] *= 100
    assert spikes_of(losses) == []
