"""TensorFlow's functions on the tensors of a model: in layers, losses and functional models."""

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.tiers import mostly_exhaustive
from keras_tpu_ext.dropin import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")

X = np.random.default_rng(0).normal(size=(8, 5, 3)).astype("float32")


def in_a_layer(function):
    """Return what a layer that runs `function` gives in a functional model with open sizes, and by itself."""

    class Own(keras.layers.Layer):
        def call(self, inputs):
            return function(inputs)

    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, Own()(inputs))
    return np.asarray(model.predict(X, verbose=0)), np.asarray(Own()(X))


def in_a_functional_model(function):
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, function(inputs))
    return np.asarray(model.predict(X, verbose=0)), np.asarray(model(X))


TABLE = tf.constant(np.arange(3, dtype="float32"))
FUNCTIONS = {
    "constant first": lambda x: TABLE * x + (TABLE - x),
    "constant last": lambda x: x * TABLE - x / (TABLE + 1),
    "compared": lambda x: tf.cast(TABLE > x, tf.float32),  # noqa: SIM300, the constant comes first
    "newaxis and slices": lambda x: x[:, tf.newaxis, 1:, ::-1],
    "sizes of the batch": lambda x: tf.reshape(x, (tf.shape(x)[0], -1)),
    "sizes, joined": lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:2], [3, 1]], 0)),
    "sizes, multiplied": lambda x: tf.reshape(x, [tf.shape(x)[0] * tf.shape(x)[1], 3]),
    "sizes, as numbers": lambda x: x / tf.cast(tf.shape(x)[1], tf.float32),
    "a matrix of an open size": lambda x: tf.matmul(tf.linalg.band_part(tf.ones((tf.shape(x)[1],) * 2), -1, 0), x),
    "a range of an open size": lambda x: x + tf.cast(tf.range(tf.shape(x)[1])[:, tf.newaxis], tf.float32),
    "attention": lambda x: tf.matmul(
        tf.nn.softmax(tf.matmul(x, x, transpose_b=True) / tf.math.sqrt(tf.cast(tf.shape(x)[-1], tf.float32))), x
    ),
    "several results": lambda x: tf.concat(tf.split(x, 3, axis=-1)[::-1], axis=-1),
    "converted": lambda x: tf.convert_to_tensor(x) + tf.constant(1.0),
    "its shape, set": lambda x: x.set_shape([None, None, 3]) or x,
    "its shape as a list": lambda x: x if x.get_shape().as_list()[-1] == x.shape.as_list()[-1] == 3 else None,
    "sizes, taken apart": lambda x: tf.reshape(x, tf.stack([tf.unstack(tf.shape(x))[0], 1, -1])),
    "a product of sizes": lambda x: tf.reshape(x, (-1, tf.reduce_prod(tf.shape(x)[1:]))),
    "filled to an open size": lambda x: x + tf.fill([tf.shape(x)[0], tf.shape(x)[1], 1], 2.0),
    "zeros of an open size": lambda x: tf.concat([x, tf.zeros([tf.shape(x)[0], 1, 3])], axis=1),
    "up to an open size": lambda x: x[:, : tf.shape(x)[1] - 1],
    "from half of an open size": lambda x: x[:, tf.shape(x)[1] // 2 :, tf.newaxis],
    "a slice": lambda x: tf.slice(x, [0, 1, 0], [tf.shape(x)[0], tf.shape(x)[1] - 1, 2]),
    "the larger size": lambda x: x[:, : tf.maximum(tf.shape(x)[1] - 2, 1)],
    "an identity matrix": lambda x: tf.matmul(tf.eye(tf.shape(x)[1]), x),
    "repeated": lambda x: tf.tile(x, [1, tf.shape(x)[1], 1]),
    "sequence mask": lambda x: x * tf.sequence_mask(2, tf.shape(x)[1], dtype=tf.float32)[tf.newaxis, :, tf.newaxis],
    "the shape of another": lambda x: tf.reshape(tf.transpose(x, [0, 2, 1]), tf.shape(x)),
    "a range with a start": lambda x: x + tf.cast(tf.range(1, tf.shape(x)[1] + 1), x.dtype)[:, None],
    "last element": lambda x: tf.gather(x, tf.shape(x)[1] - 1, axis=1),
    "broadcast": lambda x: tf.broadcast_to(x[:, :1], tf.shape(x)),
    "an axis before": lambda x: tf.eye(tf.shape(x)[1])[None][:, :, :1] + x[None][0] * tf.cast(tf.rank(x), tf.float32),
    "its rank": lambda x: x * float(x.shape.rank + x.shape.ndims + len(x.shape)),
}


def check(build, name):
    wanted = FUNCTIONS[name](tf.constant(X)).numpy()
    for found in build(FUNCTIONS[name]):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_functional_model_computes_what_tensorflow_does(name):
    check(in_a_functional_model, name)


@pytest.mark.parametrize("name", mostly_exhaustive(FUNCTIONS, ["constant first", "attention", "a slice", "its rank"]))
def test_a_layer_computes_what_tensorflow_does(name):
    check(in_a_layer, name)


def test_a_functional_model_is_saved_with_its_functions(tmp_path):
    inputs = keras.Input((None, 3))
    flat = tf.reshape(tf.nn.relu(inputs), [tf.shape(inputs)[0] * tf.shape(inputs)[1], 3])
    model = keras.Model(inputs, tf.concat([flat, flat * TABLE], axis=-1))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


def test_a_file_cannot_name_another_function():
    from keras_tpu_ext.dropin.tensors import TensorFlowFunction

    with pytest.raises(TypeError, match=r"the drop-in knows no TensorFlow function .io\.read_file"):
        TensorFlowFunction.from_config({"function": "io.read_file", "name": "x"})


def test_a_loss_in_tensorflow_trains_as_on_numpy():
    def dice(y_true, y_pred):
        y_true = tf.cast(y_true, tf.float32)
        both = tf.reduce_sum(y_true * y_pred)
        return 1 - (2.0 * both + 1) / (tf.reduce_sum(y_true) + tf.reduce_sum(y_pred) + 1)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), dice)
    x, y = np.linspace(-1, 1, 32).reshape(8, 4).astype("float32"), np.arange(8)[:, None] % 2
    loss = model.fit(x, y, batch_size=8, verbose=0).history["loss"][0]
    p = 1 / (1 + np.exp(-x.sum(1, keepdims=True)))
    assert loss == pytest.approx(1 - (2 * (y * p).sum() + 1) / (y.sum() + p.sum() + 1), rel=1e-5)


def test_tf_data_gets_tensorflows_own():
    seen = []

    def function(x):
        seen.append(tf.reduce_sum(tf.cast(x, tf.float32) + tf.constant(1.0)))
        return seen[-1]

    assert float(next(iter(tf.data.Dataset.from_tensors(X).map(function)))) == pytest.approx(
        X.sum() + X.size, rel=1e-5
    )
    assert isinstance(seen[0], tf.Tensor)


def test_results_can_be_read():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    out = model(np.ones((4, 3), "float32"))
    assert out.numpy().shape == (4, 2)
    assert out.get_shape().as_list() == out.shape.as_list() == [4, 2]
    assert tf.reduce_mean(out).numpy() == pytest.approx(np.asarray(out).mean(), rel=1e-5)


def test_a_function_without_an_entry_is_named():
    text = r"tf\.strings\.length on a tensor of a model cannot run on JAX: .* Write instead: the same with keras\.ops"
    with pytest.raises(OutOfReachError, match=text):
        jax.jit(lambda x: tf.strings.length(x))(X)


def test_a_condition_on_an_open_size_is_an_error():
    with pytest.raises(OutOfReachError, match=r"keras\.Input with this size"):
        assert tf.shape(keras.Input((None, 3)))[1] - 2


def test_a_variable_of_tensorflow_is_not_taken_for_a_constant():
    variable = tf.Variable(2.0)
    with pytest.raises(OutOfReachError, match=r"self\.add_weight"):
        jax.jit(lambda x: tf.multiply(x, variable))(X)
