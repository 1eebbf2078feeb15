"""Operations that cost a TPU less: Keras's numbers up to rounding, and masks that are the same everywhere."""

from __future__ import annotations

import copy
import json
import zipfile

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras3_jax"), pytest.mark.gate_on("keras3_tf", "keras3_jax")]

RNG = np.random.default_rng(3)
ON_JAX = keras.backend.backend() == "jax"


def numpy(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float64" if "64" in str(tensor.dtype) else "float32")))


def gradient(function, x):
    """Return the gradient of the sum of `function(x) * c`, for numbers `c` that are all different."""
    weights = np.cos(np.arange(x.size)).reshape(x.shape).astype("float32")
    if ON_JAX:
        import jax

        return np.asarray(jax.grad(lambda value: ops.sum(function(value) * weights))(x))
    import tensorflow as tf

    value = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(value)
        total = tf.reduce_sum(function(value) * weights)
    return tape.gradient(total, value).numpy()


def for_tpu(function):
    """Return `function`, computed with the operations for a TPU."""

    def call(*args):
        with _runtime.tpu_operations():
            return function(*args)

    return call


# -- dropout --------------------------------------------------------------------------------------------------


def kept(shape, rate=0.5, seed=0, calls=1):
    """Return which elements of the last of some calls are kept."""
    layer = kte.layers.Dropout(rate, seed=seed)
    for _ in range(calls):
        dropped = layer(np.ones(shape, "float32"), training=True)
    return numpy(dropped) > 0


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_the_rate_is_the_rate(rate):
    shares = [1 - kept((512, 1024), rate, seed).mean() for seed in range(4)]
    deviation = np.sqrt(rate * (1 - rate) / (512 * 1024))
    assert np.abs(np.array(shares) - rate).max() < 4 * deviation


def correlation(one, other):
    return abs(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def test_masks_are_independent_of_neighbours_steps_and_seeds():
    first = kept((512, 1024), seed=7)
    bound = 4.5 / np.sqrt(first.size)
    pairs = {
        f"{rows} rows, {columns} columns away": (first[rows:, columns:], first[: 512 - rows, : 1024 - columns])
        for rows, columns in [(0, 1), (0, 2), (0, 8), (0, 128), (1, 0), (2, 0), (8, 0), (256, 0), (1, 1), (3, 5)]
    }
    pairs |= {f"{bits} bits of the seed": (first, kept((512, 1024), seed=7 ^ bits)) for bits in (1, 2, 3, 1 << 16)}
    pairs |= {f"{calls - 1} calls later": (first, kept((512, 1024), seed=7, calls=calls)) for calls in (2, 3, 9)}
    found = {name: correlation(*pair) for name, pair in pairs.items()}
    assert {name: value for name, value in found.items() if value > bound} == {}


def test_rows_and_columns_drop_as_often_as_a_binomial_says():
    mask = kept((1024, 1024), 0.25)
    for sums in (mask.sum(0), mask.sum(1)):
        squares = (sums - 768) ** 2 / (1024 * 0.25 * 0.75)
        assert abs(squares.sum() - 1024) < 5 * np.sqrt(2 * 1024)  # chi-squared with 1,024 degrees of freedom


def test_the_mean_stays_in_bfloat16():
    layer = kte.layers.Dropout(0.1, seed=1, dtype="bfloat16")
    values = numpy(layer(np.full((64, 64), 9.0, "float32"), training=True))
    assert set(np.unique(values)) == {0.0, 10.0}  # 9 / bfloat16(0.9) would be 10.0625


def test_a_noise_shape_is_kept():
    layer = kte.layers.Dropout(0.5, noise_shape=(None, 1, 8), seed=2)
    values = numpy(layer(np.ones((16, 5, 8), "float32"), training=True))
    assert (values == values[:, :1]).all()
    assert 0 < values.mean() < 2


@pytest.mark.parametrize(("shape", "noise_shape"), [((), None), ((6, 6), (6,)), ((6, 6), (None,)), ((6, 6), ())])
def test_scalars_and_short_noise_shapes_are_taken_as_keras_takes_them(shape, noise_shape):
    inputs = keras.ops.ones(shape)
    with _runtime.tpu_operations():
        found = keras.random.dropout(inputs, 0.5, noise_shape=noise_shape, seed=1)
    assert found.shape == shape
    if noise_shape is not None:
        assert (keras.ops.convert_to_numpy(found) == keras.ops.convert_to_numpy(found)[0]).all()


def test_a_mask_is_of_the_index_and_not_of_the_batch():
    assert (kept((64, 16))[:24] == kept((24, 16))).all()


def network(**options):
    inputs = keras.Input((12,))
    x = keras.layers.Dense(16, kernel_initializer=keras.initializers.GlorotUniform(1))(inputs)
    x = keras.layers.Dropout(0.4, seed=3)(x)
    x = keras.layers.LayerNormalization()(keras.layers.Dense(16, "gelu", kernel_initializer="identity")(x))
    return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(2))(x))


def trained(model, batch_size=20):
    x = np.random.default_rng(0).normal(size=(50, 12)).astype("float32")
    model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, np.arange(50) % 3, batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return [*history.history["loss"], *model.predict(x[:5], verbose=0).ravel()]


@pytest.mark.parametrize(
    "options", [{"replicas": 8}, {"replicas": 8, "shard": "fsdp"}] if ON_JAX else [{"replicas": 2}], ids=str
)
def test_replicas_drop_what_one_device_drops(options):
    alone = trained(kte.layers.for_tpu(network()))  # outside of the scope: Keras's own step, on one device
    with kte.strategy_scope(require="cpu", for_tpu=True, **options):
        together = trained(network())
    np.testing.assert_allclose(together, alone, rtol=2e-4, atol=2e-5)


# -- the others -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"center": False}, {"scale": False, "epsilon": 1e-12}])
def test_layer_normalization_is_that_of_keras(options):
    layer = keras.layers.LayerNormalization(**options)
    x = RNG.normal(2, 3, (6, 5, 16)).astype("float32")
    layer(x)
    layer.set_weights([RNG.normal(1, 0.3, weight.shape) for weight in layer.get_weights()])
    np.testing.assert_allclose(numpy(for_tpu(layer)(x)), numpy(layer(x)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient(for_tpu(layer), x), gradient(layer, x), rtol=1e-4, atol=1e-5)


def test_weights_of_layer_normalization_have_the_gradients_of_keras():
    x, values = RNG.normal(size=(6, 5, 8)).astype("float32"), RNG.normal(1, 0.3, (8,)).astype("float32")
    for which in ("gamma", "beta"):

        def normalize(value, which=which):
            weights = {"gamma": np.ones(8, "float32"), "beta": np.zeros(8, "float32"), which: value}
            y = ops.layer_normalization(x, **weights, axis=-1, epsilon=1e-3)
            return ops.sum(y * np.cos(x), axis=(0, 1))

        np.testing.assert_allclose(gradient(for_tpu(normalize), values), gradient(normalize, values), rtol=1e-4)


@pytest.mark.parametrize(("mean", "deviation"), [(30.0, 0.03), (-1e3, 1.0), (0.0, 1e-3)])
def test_layer_normalization_has_the_digits_of_float32(mean, deviation):
    x = (mean + deviation * RNG.normal(size=(64, 1024))).astype("float32")
    exact = x.astype("float64") - x.astype("float64").mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-12)
    found = numpy(for_tpu(keras.layers.LayerNormalization(epsilon=1e-12))(x))
    assert np.abs(found - exact).max() < 2e-3  # the inputs themselves have no more digits


def test_an_element_far_out_leaves_layer_normalization_right():
    x = RNG.normal(size=(8, 512)).astype("float32")
    x[:, 0] = 1e4  # the element about which the squares are summed
    exact = x.astype("float64") - x.astype("float64").mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(numpy(for_tpu(keras.layers.LayerNormalization())(x)), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.skipif(not ON_JAX, reason="one framework is enough for a second derivative")
def test_layer_normalization_has_second_derivatives():
    import jax

    layer = keras.layers.LayerNormalization()
    x = RNG.normal(size=(3, 8)).astype("float32")
    layer(x)

    def penalty(function):
        of_x = jax.grad(lambda value: ops.sum(function(value) ** 3))
        return np.asarray(jax.grad(lambda value: ops.sum(of_x(value) ** 2))(x))

    np.testing.assert_allclose(penalty(for_tpu(layer)), penalty(layer), rtol=1e-3, atol=1e-4)


def test_gelu_is_that_of_keras_and_nearer_to_the_truth_in_bfloat16():
    from scipy.special import erf

    x = np.linspace(-6, 6, 4001).astype("float32")
    gelu = keras.activations.gelu
    np.testing.assert_allclose(numpy(for_tpu(gelu)(x)), numpy(gelu(x)), atol=2e-6)
    np.testing.assert_allclose(gradient(for_tpu(gelu), x), gradient(gelu, x), atol=5e-6)
    rounded = ops.cast(x, "bfloat16")
    of = numpy(rounded).astype("float64")
    truth = 0.5 * of * (1 + erf(of / np.sqrt(2)))
    errors = [np.abs(numpy(function(rounded)) - truth).mean() for function in (for_tpu(gelu), gelu)]
    assert errors[0] <= errors[1]
    tanh = keras.ops.gelu  # whose default is the approximation
    np.testing.assert_array_equal(numpy(for_tpu(tanh)(x)), numpy(tanh(x)))


@pytest.mark.parametrize("from_logits", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_the_cross_entropy_is_that_of_keras(from_logits):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits, reduction="none")
    labels = np.array([[3], [0], [6]])
    x = RNG.normal(size=(3, 7)).astype("float32")
    x = x if from_logits else np.exp(x)
    np.testing.assert_allclose(numpy(for_tpu(loss)(labels, x)), numpy(loss(labels, x)), rtol=1e-5)

    def tile(function):
        return lambda value: ops.expand_dims(function(labels, value), -1) * np.ones((1, 7), "float32")

    np.testing.assert_allclose(gradient(tile(for_tpu(loss)), x), gradient(tile(loss), x), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not ON_JAX, reason="TensorFlow has NaN for such labels")
def test_a_label_that_is_no_class_has_the_loss_that_keras_gives_it():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    labels, x = np.array([-1, 7, 2]), RNG.normal(size=(3, 7)).astype("float32")
    np.testing.assert_allclose(numpy(for_tpu(loss)(labels, x)), numpy(loss(labels, x)), rtol=1e-5)


# -- models ---------------------------------------------------------------------------------------------------


class Block(keras.layers.Layer):
    """A layer of layers, as keras-hub has them."""

    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 8, dropout=0.1, seed=1)
        self.norm = keras.layers.LayerNormalization()
        self.wide, self.narrow = keras.layers.Dense(32, "gelu"), keras.layers.Dense(16)
        self.attention.build(shape, shape)
        self.norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 32))

    def call(self, x, training=None):
        x = self.norm(x + self.attention(x, x, training=training))
        return x + self.narrow(self.wide(x))


def transformer():
    inputs = keras.Input((6, 16))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.1)(Block()(Block()(inputs)))))


def test_a_transformer_predicts_what_it_did():
    model = transformer()
    x = RNG.normal(size=(4, 6, 16)).astype("float32")
    changed = kte.layers.for_tpu(model)
    np.testing.assert_allclose(changed.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)


def test_layers_within_layers_drop_by_the_hash():
    x = RNG.normal(size=(4, 6, 16)).astype("float32")

    def outputs(model, rows):
        for layer in model._flatten_layers():
            if getattr(layer, "seed_generator", None) is not None:
                layer.seed_generator.state.assign([5, 0])
        return numpy(model(x[:rows], training=True))

    model = kte.layers.for_tpu(transformer())
    # Keras's masks depend on the number of rows. Sums of numbers of about 1 are rounded, whatever is left of them.
    np.testing.assert_allclose(outputs(model, 2), outputs(model, 4)[:2], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not ON_JAX, reason="what is traced is looked at on JAX")
def test_no_random_numbers_of_jax_are_left():
    import jax

    def drawn(model):
        state = [
            [variable.value for variable in part]
            for part in (model.trainable_variables, model.non_trainable_variables)
        ]
        x = np.ones((2, 6, 16), "float32")
        return str(jax.make_jaxpr(lambda *parts: model.stateless_call(*parts, x, training=True))(*state))

    assert "random" in drawn(transformer())
    assert "random" not in drawn(kte.layers.for_tpu(transformer()))


def test_a_file_has_the_layers_of_keras(tmp_path):
    inputs = keras.Input((8,))
    x = keras.layers.LayerNormalization()(kte.layers.Dropout(0.5)(keras.layers.Dense(8, "gelu")(inputs)))
    model = kte.layers.for_tpu(keras.Model(inputs, x))
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        text = file.read("config.json").decode()
    assert "keras_tpu_ext" not in text
    assert '"class_name": "Dropout"' in json.dumps(json.loads(text))
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[2]) is keras.layers.Dropout
    x = RNG.normal(size=(4, 8)).astype("float32")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


def test_a_copy_of_a_layer_calls_itself():
    layer = kte.layers.for_tpu(keras.layers.Dense(3, "gelu"))
    x = np.ones((2, 4), "float32")
    layer(x)
    twin = copy.deepcopy(layer)
    twin.set_weights([weight + 1 for weight in layer.get_weights()])
    assert not np.allclose(numpy(twin(x)), numpy(layer(x)))


def test_outside_nothing_is_changed():
    before = keras.src.ops.nn._layer_normalization
    kte.layers.Dropout(0.5)(np.ones((2, 4), "float32"), training=True)
    assert keras.src.ops.nn._layer_normalization is before


def test_without_the_exact_step_it_is_refused():
    with pytest.raises(ArgumentError, match="for_tpu=True changes the exact step"):
        kte.strategy_scope(for_tpu=True, exact=False)
