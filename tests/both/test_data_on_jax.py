"""On JAX `fit` takes the data of other libraries, where they are installed: `tf.data` and Grain."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

grain = pytest.importorskip("grain")
tf = pytest.importorskip("tensorflow")

ROWS, SIZE = 103, 32  # the last batch has 7 rows: no number of replicas above 1 divides it


def arrays():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6)).astype("float32")
    return x, x[:, :1] ** 2, rng.uniform(0.1, 3.0, ROWS).astype("float32")


class Rows:
    """Rows by number, as Grain takes them."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows[0])

    def __getitem__(self, number):
        return tuple(array[number] for array in self.rows)


def tf_data(rows):
    return tf.data.Dataset.from_tensor_slices(rows).batch(SIZE)


def tf_data_of_unknown_length(rows):
    return tf_data(rows).filter(lambda *_: True)


def map_dataset(rows):
    return grain.MapDataset.source(Rows(rows)).batch(SIZE)


def iter_dataset(rows):
    return grain.MapDataset.source(Rows(rows)).to_iter_dataset().batch(SIZE)


def data_loader(rows):
    sampler = grain.samplers.SequentialSampler(ROWS, grain.sharding.NoSharding())
    return grain.DataLoader(
        data_source=Rows(rows), sampler=sampler, operations=[grain.transforms.Batch(SIZE, drop_remainder=False)]
    )


def build(model_class, **options):
    inputs = keras.Input((6,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(5, activation="tanh")(inputs))
    model = model_class(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], weighted_metrics=["mse"], **options)
    start = np.random.default_rng(1)
    model.set_weights([start.uniform(0.1, 0.9, value.shape).astype("float32") for value in model.get_weights()])
    return model


def numbers(model, history, evaluated, predicted):
    return [*model.get_weights(), *history.values(), evaluated, predicted]


# Keras says so at the end of any data whose length it does not know.
@pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training:UserWarning")
@pytest.mark.parametrize(
    ("source", "steps_per_execution"),
    [
        (tf_data, "auto"),
        (tf_data_of_unknown_length, 3),
        (map_dataset, 3),
        (iter_dataset, 1),
        (data_loader, "auto"),
    ],
)
def test_replicas_train_on_it_as_one_device_does_on_arrays(scope8, source, steps_per_execution):
    x, y, w = arrays()
    plain = build(keras.Model)
    history = plain.fit(x, y, sample_weight=w, batch_size=SIZE, epochs=2, shuffle=False, verbose=0).history
    evaluated = plain.evaluate(x, y, sample_weight=w, batch_size=SIZE, verbose=0)
    expected = numbers(plain, history, evaluated, plain.predict(x, batch_size=SIZE, verbose=0))
    with scope8:
        model = build(kte.TPUModel, steps_per_execution=steps_per_execution)
    data = source(arrays())
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    predicted = model.predict(source((x,)), verbose=0)
    ours = numbers(model, history, model.evaluate(data, verbose=0), predicted)
    for one, other in zip(expected, ours, strict=True):
        # float32 adds in another order on replicas
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


def test_padded_tf_data_counts_no_padded_row(scope8):
    x, y, _ = arrays()
    plain = build(keras.Model)
    expected = plain.fit(x, y, batch_size=SIZE, epochs=2, shuffle=False, verbose=0).history
    with scope8:
        model = build(kte.TPUModel)
    padded = kte.data.pad_batches(tf_data((x, y)), SIZE)
    history = model.fit(padded, epochs=2, shuffle=False, verbose=0).history
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-5)
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
    assert model.predict(padded, verbose=0).shape == (ROWS, 1)
