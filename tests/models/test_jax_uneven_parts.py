"""Batches whose parts have different numbers of rows, such as labelled and unlabelled examples."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")
RNG = np.random.default_rng(0)


class SemiSupervised(keras.Model):
    """A loss of the labelled examples, and a consistency loss of the others."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        labelled, others = inputs
        self.add_loss(keras.ops.mean(keras.ops.square(self.dense(others) - 1.0)))
        return self.dense(labelled)


def functional():
    """A model of layers that are known: its batches are padded."""
    labelled, others = keras.Input((3,)), keras.Input((3,))
    dense = keras.layers.Dense(1, name="out")
    return keras.Model([labelled, others], [dense(labelled), dense(others)])


class Zipped(keras.utils.PyDataset):
    def __init__(self, rows, has_two_targets):
        super().__init__()
        self.parts = [[RNG.normal(size=(count, 3)).astype("float32") for count in pair] for pair in rows]
        self.has_two_targets = has_two_targets

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        labelled, others = self.parts[index]
        targets = [part[:, :1] for part in (labelled, others)]
        return (labelled, others), tuple(targets) if self.has_two_targets else targets[0]


def trained(make, data, replicas):
    keras.utils.set_random_seed(2)
    if replicas is None:
        model = make()
        model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=True)
    else:
        with kte.strategy_scope(require="cpu", replicas=replicas):
            model = make()
            model.compile(keras.optimizers.Adam(0.1), "mse")
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    return history, evaluated, [np.asarray(one) for one in model.predict(data, verbose=0)]


LATER = pytest.mark.exhaustive


ROWS = [(4, 12), (4, 12)], [(12, 4), (12, 4), (5, 2)], [(4, 4), (2, 4)]


@pytest.mark.parametrize(
    ("rows", "replicas"),
    [
        (ROWS[1], 1),
        (ROWS[2], 3),
        *(pytest.param(ROWS[i], n, marks=LATER) for i, n in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 1), (2, 2))),
    ],
)
@pytest.mark.parametrize("make", [SemiSupervised, pytest.param(functional, marks=LATER)])
def test_each_part_keeps_its_rows(make, rows, replicas):
    data = Zipped(rows, has_two_targets=make is functional)
    expected, got = trained(make, data, None), trained(make, data, replicas)
    for one, other in zip(expected, got, strict=True):
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6), one, other)
