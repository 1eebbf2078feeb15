"""`OneHotEmbedding` against Keras's own lookup, and its gradient against NumPy's sums in float64."""

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and JAX is the fastest here; test_layers.py and some below run on TensorFlow.
pytestmark = pytest.mark.gate_on("keras3_jax")

ON_JAX = keras.backend.backend() == "jax"
POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
# Sums of some hundred float32 in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def articles(shared_data_or_none):
    """100 sequences of 40 ids below 1000 (Reuters' words, or digits' pixels where they are not there), and labels."""
    if shared_data_or_none is None:
        digits = load_digits()
        return digits.data[:100, :40].astype("int32"), digits.target[:100].astype("int32")
    with np.load(shared_data_or_none / "reuters.npz", allow_pickle=True) as file:
        texts, labels = file["x"][:100], file["y"][:100]
    ids = np.zeros((100, 40), "int32")
    for row, text in zip(ids, texts, strict=True):
        words = [word for word in text if word < 1000][:40]
        row[: len(words)] = words
    return ids, labels.astype("int32")


def array(values):
    return np.asarray(keras.ops.convert_to_numpy(values))


def both(policy="float32", **options):
    """Return Keras's layer and ours, with the same weights."""
    layers = [
        kind(10, 4, embeddings_initializer="normal", dtype=policy, **options)
        for kind in (keras.layers.Embedding, kte.layers.OneHotEmbedding)
    ]
    for layer in layers:
        layer(np.zeros((1, 1), "int32"))
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_an_output_has_the_bits_of_the_row(policy, dtype, shape):
    stock, ours = both(policy)
    ids = np.random.default_rng(0).integers(0, 10, shape).astype(dtype)
    expected, got = stock(ids), ours(ids)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(array(got).astype("float32"), array(expected).astype("float32"))


def test_float_ids_are_cut_as_keras_cuts_them():
    stock, ours = both("mixed_bfloat16")
    ids = np.array([[0.9, 3.0, 8.99]], "float32")
    np.testing.assert_array_equal(array(ours(ids)).astype("float32"), array(stock(ids)).astype("float32"))


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("outside", [-1, -10, 10, 11, 2**31 - 1, pytest.param(2**32 + 3, id="3 in int32")])
def test_an_id_outside_gives_a_row_of_zeros(dtype, outside):
    if outside >= 2**31 and (dtype == "int32" or ON_JAX):
        pytest.skip("there are no such numbers there")
    _, ours = both()
    got = array(ours(np.array([[3, outside]], dtype)))
    np.testing.assert_array_equal(got[0, 1], np.zeros(4))
    np.testing.assert_array_equal(got[0, 0], ours.get_weights()[0][3])


def test_mask_zero_is_that_of_keras():
    stock, ours = both(mask_zero=True)
    ids = np.array([[0, 3, 0], [4, 1, 2]], "int32")
    np.testing.assert_array_equal(array(ours.compute_mask(ids)), array(stock.compute_mask(ids)))
    pooled = [keras.layers.GlobalAveragePooling1D()(layer(ids)) for layer in (stock, ours)]
    np.testing.assert_array_equal(array(pooled[1]), array(pooled[0]))
    assert not np.allclose(array(pooled[1]), array(ours(ids)).mean(1))


def gradient(kind, ids, upstream, policy):
    """Return what a training step takes from a table of zeros with rate 1, where `upstream` comes back to it."""
    inputs = keras.Input(ids.shape[1:], dtype="int32")
    outputs = kind(10, upstream.shape[-1], embeddings_initializer="zeros", dtype=policy)(inputs)
    model = keras.Model(inputs, outputs)

    def loss(y, rows):
        return keras.ops.sum(keras.ops.cast(y, "float32") * keras.ops.cast(rows, "float32"))

    model.compile(keras.optimizers.SGD(1.0), loss)
    with kte.precision.policy_scope(policy):
        model.fit(ids, upstream, batch_size=len(ids), verbose=0)
    return -model.get_weights()[0].astype("float64")


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_gradient_is_the_sum_by_row(policy):
    rng = np.random.default_rng(0)
    ids = rng.integers(-2, 12, (8, 50)).astype("int32")
    upstream = rng.integers(-128, 128, (8, 50, 3)).astype("float32") / 256  # exact in bfloat16
    expected = np.zeros((10, 3))
    inside = (ids >= 0) & (ids < 10)
    np.add.at(expected, ids[inside], upstream[inside].astype("float64"))
    got = gradient(kte.layers.OneHotEmbedding, ids, upstream, policy)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_frequent_word_loses_no_addition():
    """4096 times the same word: sums in bfloat16 stop where an addition is below half the last bit of the sum."""
    ids, upstream = np.full((1, 4096), 3, "int32"), np.full((1, 4096, 2), 0.30078125, "float32")
    expected = 4096 * 0.30078125  # a number in bfloat16, 4096 of which have an exact sum in float32
    kinds = (kte.layers.OneHotEmbedding, keras.layers.Embedding)
    ours, stock = (gradient(kind, ids, upstream, "mixed_bfloat16")[3] for kind in kinds)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(stock, 128 if ON_JAX else expected)


def classifier(kind, model_class=keras.Model):
    ids = keras.Input((40,), dtype="int32")
    words = kind(1000, 8, embeddings_regularizer="l2", mask_zero=True)(ids)
    return model_class(ids, keras.layers.Dense(46)(keras.layers.GlobalAveragePooling1D()(words)))


def trained(model, start, data):
    model.set_weights(start)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(*data, batch_size=48, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 2, pytest.param(8, marks=pytest.mark.exhaustive)]
)
def test_training_on_replicas_is_that_of_keras_on_one(articles, replicas):
    plain = classifier(keras.layers.Embedding)
    start = plain.get_weights()
    expected, expected_loss = trained(plain, start, articles)
    with kte.strategy_scope(require="cpu", replicas=replicas):
        got, loss = trained(classifier(kte.layers.OneHotEmbedding, kte.TPUModel), start, articles)
    assert max(expected_loss) > 2  # it had something to learn
    np.testing.assert_allclose(loss, expected_loss, rtol=TOLERANCE)
    for ours, theirs in zip(got, expected, strict=True):  # Adam makes a step of the rate from the smallest gradient
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", POLICIES)
def test_it_trains_under_every_policy(articles, policy):
    with kte.strategy_scope(require="cpu", replicas=2, precision=policy):
        model = classifier(kte.layers.OneHotEmbedding, kte.TPUModel)
        _, loss = trained(model, model.get_weights(), articles)
    assert loss[1] < loss[0]


def test_a_model_is_saved_and_read(articles, tmp_path):
    model = classifier(kte.layers.OneHotEmbedding)
    model.save(tmp_path / "model.keras")
    read = keras.models.load_model(tmp_path / "model.keras")
    assert type(read.layers[1]) is kte.layers.OneHotEmbedding
    np.testing.assert_array_equal(read.predict(articles[0], verbose=0), model.predict(articles[0], verbose=0))


def test_configs_and_weights_go_both_ways():
    stock, ours = both(mask_zero=True, embeddings_constraint="non_neg", embeddings_regularizer="l2", name="words")
    assert isinstance(ours, keras.layers.Embedding)
    made = kte.layers.OneHotEmbedding.from_config(stock.get_config())
    assert made.get_config() == ours.get_config()
    back = keras.layers.Embedding.from_config(made.get_config())
    assert back.get_config() == stock.get_config()
    shown = [
        [(weight.name.split("/")[-1], tuple(weight.shape)) for weight in layer.weights] for layer in (stock, ours)
    ]
    assert shown[0] == shown[1]
    ours.set_weights([np.ones((10, 4))])
    stock.set_weights(ours.get_weights())
    np.testing.assert_array_equal(array(stock(np.array([[3]]))), np.ones((1, 1, 4)))


def test_sparse_outputs_are_refused():
    with pytest.raises(ArgumentError, match=r"sparse=True is not offered.*Write: OneHotEmbedding\(\.\.\.\) without"):
        kte.layers.OneHotEmbedding(10, 4, sparse=True)
