"""The local losses of all replicas add up to what Keras makes of the whole batch, for any split."""

import contextlib

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from keras.src.losses.loss import apply_mask, reduce_weighted_values

from keras_tpu_ext._runtime.training.denominator import loss_sum

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")

REDUCTIONS = ["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight"]


class Replica:
    """The facts about a batch of one replica: `totals` are the sums over replicas; without, it notes its own."""

    def __init__(self, totals=None):
        self.totals, self.asked = totals, []

    def sum_over_replicas(self, values):
        self.asked += values
        return values if self.totals is None else self.totals

    def valid_fraction(self):
        return 1.0

    def zero_invalid_rows(self, values):
        return values

    def respects_padding(self, function):
        return function


def local_losses(reduction, parts):
    """Return the local loss of each replica; `parts` holds its values, weights and mask."""

    def of_each(totals=None):
        for values, weights, mask in parts:
            weighted = values * (1 if weights is None else weights) * (1 if mask is None else mask)
            tensors = [None if one is None else ops.convert_to_tensor(one) for one in (weighted, mask, weights)]
            replica = Replica(totals)
            yield replica, loss_sum(reduction, *tensors, replica).local()

    with float64():
        asked = [replica.asked for replica, _ in of_each()]
        return [float(local) for _, local in of_each([sum(column) for column in zip(*asked, strict=True)])]


def float64():
    """Return a block in which the framework computes in float64, which JAX does only when told."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.enable_x64(True)
    return contextlib.nullcontext()


def of_keras(reduction, values, weights, mask):
    with float64():
        loss = reduce_weighted_values(values, weights, mask, reduction, "float64")
        return float(np.sum(loss))  # of an empty batch Keras returns the empty array


@st.composite
def batches(draw):
    """Draw a batch of losses, weights and mask, and where it is cut."""
    size = draw(st.integers(1, 20))
    shape = draw(st.sampled_from([(size,), (size, 3)]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = random.normal(size=shape)
    weights = draw(st.sampled_from([None, "some", "zeros"]))
    mask = draw(st.sampled_from([None, "some", "nothing", "all"]))
    if weights is not None:
        weights = random.uniform(size=shape) * (weights == "some")
    if mask is not None:
        mask = random.uniform(size=shape) < {"some": 0.5, "nothing": -1, "all": 2}[mask]
    cuts = sorted(draw(st.lists(st.integers(0, size), min_size=0, max_size=8)))
    return values, weights, mask, cuts


@pytest.mark.gate_on("keras3_tf")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(batch=batches())
@settings(max_examples=60, deadline=None)
def test_shares_of_any_split_add_up_to_the_loss_of_the_whole_batch(reduction, batch):
    *arrays, cuts = batch
    split = [[None] * (len(cuts) + 1) if array is None else np.split(array, cuts) for array in arrays]
    total = sum(local_losses(reduction, list(zip(*split, strict=True))))
    # Keras sums the mask in the loss's dtype, here float64: what is left is the order of the additions.
    assert total == pytest.approx(of_keras(reduction, *arrays), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("reduction", ["none", None, "sum"])
def test_what_is_not_a_mean_has_no_denominator_and_costs_no_communication(reduction):
    replica = Replica()
    assert loss_sum(reduction, ops.ones((3,)), None, None, replica).denominator is None
    assert not replica.asked


def test_a_batch_without_any_weight_gives_zero_and_not_nan():
    nothing = (np.ones(4), np.zeros(4), None)
    assert local_losses("mean_with_sample_weight", [nothing, nothing]) == [0.0, 0.0]
    masked = (np.ones(4), None, np.zeros(4, bool))
    assert local_losses("mean", [masked, masked]) == [0.0, 0.0]


def test_the_table_in_the_docstring_is_what_keras_computes():
    values, mask = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, True, False])
    weights = np.array([1.0, 2.0, 1.0, 5.0])
    assert of_keras("sum", values, weights, mask) == pytest.approx(8.0)
    assert of_keras("mean", values, weights, mask) == pytest.approx(8.0 / 4 * (4 / 3))
    assert of_keras("mean_with_sample_weight", values, weights, mask) == pytest.approx(8.0 / 4)
    with float64():
        assert np.asarray(apply_mask(None, mask, "float64", "sum")).sum() == 3
