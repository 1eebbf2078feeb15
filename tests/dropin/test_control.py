"""Control flow, `tf.function` and own gradients on JAX values, against TensorFlow's numbers."""

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.tiers import mostly_exhaustive
from keras_tpu_ext.dropin import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


@tf.custom_gradient
def reversed_gradient(x):
    return x * 1.0, lambda upstream: -2.0 * upstream


@tf.custom_gradient
def clipped_product(x, y):
    def gradient(upstream):
        return tf.clip_by_value(upstream * y, -0.5, 0.5), upstream * x

    return x * y, gradient


@tf.function
def squared(x, power=2):
    return x**power


@tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)], jit_compile=True)
def doubled(x):
    return tf.reduce_sum(x, axis=-1) * 2


def nested_loop(x):
    found = tf.while_loop(lambda i, total: i < 3, lambda i, total: (i + 1, total * x), (0, x))
    return found[1]


CASES = {
    "map_fn": lambda x: tf.map_fn(lambda row: row * tf.reduce_sum(row), x),
    "map_fn, several": lambda x: tf.map_fn(
        lambda pair: pair[0] + pair[1], (x, x * 2), fn_output_signature=tf.float32
    ),
    "map_fn, another type": lambda x: tf.map_fn(lambda row: tf.cast(row > 0, tf.int32), x, dtype=tf.int32),
    "map_fn, a structure": lambda x: tf.map_fn(
        lambda row: (row, tf.reduce_max(row)), x, fn_output_signature=(tf.float32, tf.float32)
    )[1],
    "vectorized_map": lambda x: tf.vectorized_map(lambda row: tf.linalg.matvec(tf.ones((2, 3)), row), x),
    "while_loop, counted": nested_loop,
    "while_loop, a list of one": lambda x: tf.while_loop(
        lambda x: tf.constant(True), lambda x: [x * 2], [x], maximum_iterations=3
    )[0],
    "cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x * 3),
    "cond, otherwise": lambda x: tf.cond(tf.reduce_sum(x) > 100, lambda: x * 2, lambda: tf.ones_like(x)),
    "cond, known": lambda x: tf.cond(tf.constant(True), lambda: x * 2, lambda: x * 3),
    "case": lambda x: tf.case(
        [(tf.reduce_sum(x) > 100, lambda: x), (tf.reduce_max(x) > 0, lambda: x * 5)], default=lambda: x * 7
    ),
    "switch_case": lambda x: tf.switch_case(tf.cast(tf.reduce_max(x) > 0, tf.int32), [lambda: x, lambda: x * 9]),
    "switch_case, default": lambda x: tf.switch_case(
        tf.cast(tf.reduce_max(x) > 0, tf.int32) + 5, {0: lambda: x, 1: lambda: x * 9}, default=lambda: x * 11
    ),
    "scan": lambda x: tf.scan(lambda total, row: total * 0.5 + row, x),
    "scan, from a state": lambda x: tf.scan(lambda total, row: total + row, x, initializer=tf.ones(3)),
    "scan, backwards": lambda x: tf.scan(lambda total, row: total * 0.5 + row, x, reverse=True),
    "scan, two states": lambda x: tf.scan(lambda s, row: (s[0] + row, s[1] * row), x, (tf.zeros(3), tf.ones(3)))[1],
    "foldl": lambda x: tf.foldl(lambda total, row: total * 0.5 + row, x),
    "foldr": lambda x: tf.foldr(lambda total, row: total * 0.5 + row, x, tf.ones(3)),
    "function": squared,
    "function with a signature": doubled,
    "custom_gradient": reversed_gradient,
    "custom_gradient, two": lambda x: clipped_product(x, x + 1.0),
    "recompute_grad": lambda x: tf.recompute_grad(lambda x: tf.nn.relu(x) * 2)(x),
    "scopes": lambda x: scoped(x),
}


def scoped(x):
    with tf.name_scope("a"), tf.compat.v1.name_scope("b"), tf.device("/CPU:0"), tf.control_dependencies([x]):
        return x + 1


@pytest.mark.parametrize("name", CASES)
def test_it_gives_tensorflows_numbers_and_gradients(name):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        wanted = CASES[name](x)
        total = tf.reduce_sum(tf.cast(wanted, tf.float32))
    gradient = tape.gradient(total, x)
    found = jax.jit(lambda x: CASES[name](x))(X)
    assert isinstance(found, jax.Array)
    assert found.dtype == wanted.dtype.name
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    found = jax.jit(jax.grad(lambda x: jax.numpy.sum(CASES[name](x).astype("float32"))))(X)
    np.testing.assert_allclose(found, np.zeros_like(X) if gradient is None else gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", mostly_exhaustive(CASES, ["map_fn", "cond", "switch_case", "custom_gradient"]))
def test_it_runs_in_a_functional_model(name):
    inputs = keras.Input(batch_shape=(4, 3))
    model = keras.Model(inputs, CASES[name](inputs))
    np.testing.assert_allclose(model(X), CASES[name](tf.constant(X)), rtol=1e-5, atol=1e-6)


def test_a_layer_and_a_loss_may_be_functions():
    class Own(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(3, 1), initializer="ones")

        @tf.function
        def call(self, x):
            return tf.matmul(x, self.scaled())

        @tf.function(jit_compile=True)
        def scaled(self):
            return self.kernel * 2.0

    @tf.function
    def loss(y, p):
        return tf.reduce_mean(tf.square(y - p))

    model = keras.Sequential([keras.Input((3,)), Own()])
    model.compile("sgd", loss)
    history = model.fit(X, np.ones((4, 1)), epochs=2, verbose=0).history["loss"]
    assert history[0] == pytest.approx(np.mean((2 * X.sum(-1) - 1) ** 2), rel=1e-5)
    assert history[1] < history[0]


def test_it_stays_tensorflows_on_its_tensors():
    @tf.function
    def pipeline(x):
        assert isinstance(x, tf.Tensor)
        if tf.reduce_sum(x) > 100:  # AutoGraph's
            x = x * 2
        return tf.map_fn(lambda row: tf.cond(row[0] > 0, lambda: row, lambda: -row), x)

    wanted = X * np.where(X[:, :1] > 0, 1, -1)
    np.testing.assert_allclose(pipeline(tf.constant(X)), wanted)
    batch = next(iter(tf.data.Dataset.from_tensors(X).map(pipeline)))
    assert isinstance(batch, tf.Tensor)
    np.testing.assert_allclose(batch, wanted)


def test_a_loop_whose_end_the_numbers_decide():
    def halved(x, most=None):
        return tf.while_loop(
            lambda x: tf.reduce_max(x) > 0.1, lambda x: (x / 2.0,), (tf.abs(x),), maximum_iterations=most
        )[0]

    wanted = halved(tf.constant(X))
    np.testing.assert_allclose(jax.jit(halved)(X), wanted, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: halved(x, 20))(X), wanted, rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: halved(x, 20).sum()))(X)
    np.testing.assert_allclose(gradient, np.asarray(wanted) / X, rtol=1e-5)
    with pytest.raises(ValueError, match=r"[Rr]everse-mode differentiation does not work"):
        jax.jit(jax.grad(lambda x: halved(x).sum()))(X)


def test_a_condition_in_python_says_what_to_write():
    class Own(keras.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0:
                x = x * 2
            return x

    with pytest.raises(OutOfReachError, match=r"AutoGraph.*Write instead: tf.where\(condition"):
        jax.jit(lambda x: Own()(x))(X)


def test_a_variable_of_tensorflow_in_a_layer_is_trained():
    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable(1.0, name="scopes/scale")
            self.shifts = [tf.Variable([0.0]), tf.Variable([0.0], trainable=False)]

        def call(self, x):
            return tf.exp(self.scale) * x + self.shifts[0] + self.shifts[1]

    class Late(Own):
        def build(self, shape):  # within a call of the outer layer
            self.order = tf.Variable(tf.reverse(tf.range(shape[-1]), [0]), trainable=False)

        def call(self, x):
            return tf.gather(super().call(x), self.order, axis=1)

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.late = Late()

        def call(self, x):
            return self.late(x)

    late = keras.Sequential([keras.Input((3,)), Outer()])
    np.testing.assert_allclose(late.predict(X, verbose=0), np.e * X[:, ::-1], rtol=1e-5)
    model = keras.Sequential([keras.Input((3,)), Own()])
    assert model.trainable_weights[0].name == "scopes_scale"
    assert len(model.trainable_weights) == 2
    model.compile("sgd", "mse")
    model.fit(X, X, verbose=0)
    assert 0.5 < float(model.layers[0].scale) < 1.0


@pytest.mark.parametrize(
    "use",
    [
        lambda x, v: x * v,
        lambda x, v: v * x,
        lambda x, v: tf.multiply(x, v),
        lambda x, v: keras.ops.multiply(x, v),
        lambda x, v: x + v.assign_add(1.0),
    ],
)
def test_another_variable_of_tensorflow_in_a_model_says_what_to_write(use):
    variable = tf.Variable(2.0, name="scale")
    with pytest.raises(OutOfReachError, match=r"(?s)tf.Variable 'scale.*self.add_weight"):
        jax.jit(keras.layers.Lambda(lambda x: use(x, variable)))(X)
    assert float(variable.assign_add(1.0)) == 3
    assert float(jax.numpy.asarray(variable)) == 3


def test_a_variable_that_a_function_of_tensorflow_reads_is_told(capsys):
    variable = tf.Variable(2.0, name="alone")
    with pytest.raises(RuntimeError, match="encountered when calling Lambda"):  # Keras loses TensorFlow's text
        jax.jit(keras.layers.Lambda(lambda x: x + tf.exp(variable)))(X)
    assert "'alone:0' in a model cannot run on JAX -> write self.add_weight" in capsys.readouterr().out
    assert float(tf.exp(variable)) == pytest.approx(np.exp(2.0))


@pytest.mark.parametrize(
    "draw",
    [
        lambda shape: tf.random.normal(shape),
        lambda shape: tf.random.uniform(shape, 1, 2),
        lambda shape: tf.random.truncated_normal(shape, stddev=0.1),
        lambda shape: tf.compat.v1.random_normal(shape),
    ],
)
def test_a_random_function_draws_anew_in_each_step(draw):
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + draw((4, 3))

    model = keras.Sequential([keras.Input(batch_shape=(4, 3)), Noise()])
    first, second = (model.predict(X, verbose=0) for _ in range(2))
    assert np.abs(first - second).min() > 0
    assert isinstance(draw((2,)), tf.Tensor)
    assert isinstance(next(iter(tf.data.Dataset.range(1).map(lambda _: draw((2,))))), tf.Tensor)
