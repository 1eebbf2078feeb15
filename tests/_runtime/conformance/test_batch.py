"""The batch of the step that runs: asked by a layer on one device, and on three replicas of which one has nothing."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext import _runtime


def test_without_a_step_a_batch_is_what_there_is():
    first, rows = _runtime.batch.position_in_batch(5)
    assert (int(first), int(rows)) == (0, 5)
    values = _runtime.ops.convert_to_tensor(np.array([2.0, 3.0], "float32"))
    assert _runtime.batch.row_weights(values) is None
    (summed,) = _runtime.batch.sum_over_replicas([values])
    np.testing.assert_array_equal(_runtime.ops.convert_to_numpy(summed), [2, 3])


class Asks(keras.layers.Layer):
    """Keeps what the verbs say of the last batch: rows that count, the sum of their places, rows of the batch."""

    def __init__(self):
        super().__init__()
        self.said = self.add_weight(name="said", shape=(3,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            ops, rows = _runtime.ops, _runtime.ops.shape(x)[0]
            first, total = _runtime.batch.position_in_batch(rows)
            places = _runtime.batch.respects_padding(lambda: first + ops.arange(rows, dtype="int32"))()
            places = ops.reshape(ops.cast(places, "float32"), (-1, 1))
            weights = _runtime.batch.row_weights(x)
            # They broadcast: it may be one weight for all rows of a replica.
            weights = ops.ones_like(places) * (1.0 if weights is None else ops.reshape(weights, (-1, 1)))
            counted, places = _runtime.batch.sum_over_replicas([ops.sum(weights), ops.sum(weights * places)])
            said = [ops.reshape(ops.cast(value, "float32"), (1,)) for value in (counted, places, total)]
            self.said.assign(ops.concatenate(said, axis=0))
        return x


def asked(replicas, data, **options):
    with kte.strategy_scope(require="cpu", replicas=replicas):
        layer = Asks()
        inputs = keras.Input((2,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile("sgd", "mse")
    model.fit(data, shuffle=False, verbose=0, **options)
    return [float(value) for value in np.asarray(layer.get_weights()[0])]


@pytest.mark.parametrize("replicas", [1, 3])
def test_every_row_counts_once_and_has_its_place(rows, replicas):
    """Of four rows on three replicas two have two, and one has none."""
    x, y = rows
    counted, places, total = asked(replicas, sources.batched((x[:4], y[:4]), 4))
    assert (counted, places) == (4, 0 + 1 + 2 + 3)
    assert total >= 4  # with what fills the batch up, or stands in for no row


@pytest.mark.parametrize("replicas", [1, 3])
def test_rows_that_fill_a_batch_up_do_not_count(rows, replicas):
    x, y = rows
    padded = kte.data.pad_batches(sources.batched((x[:4], y[:4]), 6), 6)
    counted, places, _ = asked(replicas, padded)
    assert (counted, places) == (4, 0 + 1 + 2 + 3)


class Statistics(keras.layers.Layer):
    """Keeps sum and mean of the last batch."""

    def __init__(self):
        super().__init__()
        self.kept = self.add_weight(name="kept", shape=(2, 2), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            both = (kte.batch_sum(x), kte.batch_mean(x))
            self.kept.assign(_runtime.ops.concatenate([_runtime.ops.reshape(one, (1, 2)) for one in both], axis=0))
        return x


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("space", [4, 6])
def test_sum_and_mean_are_those_of_the_examples(rows, replicas, space):
    """Of four rows on three replicas two have two, and one has none; or they are padded to six."""
    x, y = rows
    data = sources.batched((x[:4], y[:4]), 4)
    with kte.strategy_scope(require="cpu", replicas=replicas):
        layer, inputs = Statistics(), keras.Input((2,))
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile("sgd", "mse")
    model.fit(data if space == 4 else kte.data.pad_batches(data, space), shuffle=False, verbose=0)
    np.testing.assert_allclose(layer.get_weights()[0], [x[:4].sum(0), x[:4].mean(0)], rtol=1e-5)


def test_a_mark_changes_nothing():
    assert _runtime.batch.respects_padding(lambda values: values + 1)(2) == 3


def test_statistics_are_those_of_a_replica_where_nobody_joins_them():
    on_tensorflow = keras.backend.backend() == "tensorflow"
    assert _runtime.batch.has_local_statistics(keras.layers.BatchNormalization()) is on_tensorflow
    if on_tensorflow:
        assert not _runtime.batch.has_local_statistics(keras.layers.BatchNormalization(synchronized=True))


def test_outside_of_a_step_the_batch_is_what_is_given():
    values = np.arange(6, dtype="float32").reshape(3, 2)
    got = _runtime.batch.batch_sum(values), _runtime.batch.batch_mean(values)
    np.testing.assert_array_equal(_runtime.ops.convert_to_numpy(got[0]), [6, 9])
    np.testing.assert_array_equal(_runtime.ops.convert_to_numpy(got[1]), [2, 3])
