"""Rates over several epochs of a `tf.data.Dataset` of unknown length, which no other data can have."""

import math

import pytest

from timed_fits import BETWEEN, SAMPLES, dataset, model_of, run

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.runtimes(
    "keras3_tf", "keras3_jax", reason="Keras 2: which does not end an epoch of unknown length as this test has it"
)
@pytest.mark.parametrize("k", [1, 2])
def test_warmup_over_several_epochs_of_unknown_length(k):
    per_epoch = [4.0, 2.0, 1.0, 3.0][: 4 // k]
    history, _, _ = run(
        model_of(steps_per_execution=k), dataset(14, 4, known=False), 3 * [*per_epoch, BETWEEN], 3, warmup=5
    )
    measured = {1: [[], [1, 2, 3], [0, 1, 2, 3]], 2: [[], [], [1]]}[k]
    times = [sum(per_epoch[i] for i in chosen) for chosen in measured]
    sizes = [4, 4, 4, 2] if k == 1 else [8, 6]
    examples = [sum(sizes[i] for i in chosen) for chosen in measured]
    expected = [n / t if t else math.nan for n, t in zip(examples, times, strict=True)]
    assert history[SAMPLES] == pytest.approx(expected, nan_ok=True)
