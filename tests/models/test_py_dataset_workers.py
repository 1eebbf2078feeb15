"""A `PyDataset` with workers: each epoch has every batch once, in the order that is drawn for it."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras3_jax"), pytest.mark.gate_on("keras3_jax")]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.eye(12, dtype="float32")[index : index + 1], np.full((1, 1), index, "float32")


def weights_after(workers):
    """Return what a model has after two epochs in which each batch moves a weight of its own."""
    keras.utils.set_random_seed(0)
    with kte.strategy_scope(require="cpu", replicas=2):
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(Batches(workers=workers, max_queue_size=5), epochs=2, verbose=0)
    return model.get_weights()[0].ravel()


@pytest.mark.parametrize("workers", [2, 4])
def test_it_trains_as_without_workers(workers):
    np.testing.assert_array_equal(weights_after(workers), weights_after(1))
