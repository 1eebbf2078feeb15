"""`keras.backend` (`K.*`) on tracers, in functional models and in tf.data, against TensorFlow's numbers."""

import importlib

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import backend as K  # noqa: N812, as all programs call it

import keras_tpu_ext as kte
from dropin.keras_backend_cases import CASES, KERNEL, NO_FLOATS, X
from dropin.tiers import mostly_exhaustive
from keras_tpu_ext.dropin import OutOfReachError
from keras_tpu_ext.dropin.keras_backend import names

pytestmark = pytest.mark.runtimes("keras3_jax")

# Rounding, where sums are added up in another order.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def on_tensorflow(function, x=X):
    return tf.function(lambda x: function(K, x))(tf.constant(x)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_function_gives_tensorflows_numbers_in_a_trace(name):
    wanted = on_tensorflow(CASES[name])
    found = jax.jit(lambda x: CASES[name](K, x))(X)
    assert isinstance(found, jax.Array)
    assert found.shape == wanted.shape
    assert str(found.dtype) == str(wanted.dtype).replace("64", "32")
    np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize(
    "name", mostly_exhaustive(set(CASES) - set(NO_FLOATS), ["batch_dot", "ctc_batch_cost", "rnn"])
)
def test_its_gradient_is_tensorflows(name):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(CASES[name](K, x))
    wanted = tape.gradient(total, x)
    wanted = np.zeros_like(X) if wanted is None else np.asarray(tf.convert_to_tensor(wanted))
    found = jax.jit(jax.grad(lambda x: jax.numpy.sum(CASES[name](K, x))))(X)
    np.testing.assert_allclose(found, wanted, **CLOSE)


IN_MODELS = ["conv2d", "dot", "mean", "resize_images", "softmax", "switch, few axes", "rnn, backwards, masked"]


@pytest.mark.parametrize("name", mostly_exhaustive(CASES, IN_MODELS))
def test_it_runs_in_a_functional_model(name):
    inputs = keras.Input(batch_shape=X.shape)
    model = keras.Model(inputs, CASES[name](K, inputs))
    np.testing.assert_allclose(model(X), on_tensorflow(CASES[name]), **CLOSE)


def test_it_stays_tensorflows_in_a_pipeline():
    def both(x):
        found = [CASES[name](K, x) for name in ("clip", "dot", "mean", "cast", "constant", "softmax")]
        assert all(isinstance(one, tf.Tensor) for one in found)
        return found[1]

    batch = next(iter(tf.data.Dataset.from_tensors(X).map(both)))
    np.testing.assert_allclose(batch, on_tensorflow(CASES["dot"]), **CLOSE)


@pytest.mark.parametrize(
    "module",
    ["keras.backend", "tensorflow.keras.backend", "keras._tf_keras.keras.backend", "keras.src.legacy.backend"],
)
def test_all_names_are_in_all_spellings(module):
    module = importlib.import_module(module)
    assert not [name for name in names() if not hasattr(module, name)]
    assert float(jax.jit(lambda x: module.mean(x))(X)) == pytest.approx(X.mean(), abs=1e-6)
    assert keras.backend.epsilon() == K.epsilon()


def test_a_value_is_read_and_set():
    variable = K.variable(np.eye(2), name="a/b")
    assert isinstance(variable, keras.Variable)
    assert K.dtype(variable) == "float32"
    assert K.int_shape(variable) == (2, 2)
    K.set_value(variable, [[1, 2], [3, 4]])
    K.batch_set_value([(variable, K.get_value(variable) + 1)])
    np.testing.assert_array_equal(K.batch_get_value([variable])[0], [[2, 3], [4, 5]])
    assert type(K.get_value(K.variable(3))) is np.float32
    assert type(K.eval(K.sum(K.ones((2, 3))))) is np.float32
    assert K.get_value(0.5) == 0.5
    with pytest.raises(
        OutOfReachError, match=r"K\.set_value\(0\.5, 1\.0\).*momentum of an optimizer.*Write instead: nothing"
    ):
        K.set_value(0.5, 1.0)


def test_variables_are_used_in_a_trace():
    outside = K.variable([1.0, 2.0, 3.0])
    layer = keras.layers.Lambda(lambda x: x * outside + K.zeros((5, 3)) + K.eye(3)[0] + K.variable(1.0))
    found = jax.jit(layer)(X)
    np.testing.assert_allclose(found, X * [1, 2, 3] + [2, 1, 1], **CLOSE)
    assert K.random_normal_variable((2, 3), 0, 1, seed=1).shape == (2, 3)
    assert K.get_value(K.random_uniform_variable((50,), 2, 3)).min() >= 2


def test_variables_are_kernels():
    kernel = keras.Variable(KERNEL[0])
    wanted = on_tensorflow(lambda _, x: K.conv1d(x, tf.constant(KERNEL[0]), padding="causal"))
    np.testing.assert_allclose(jax.jit(lambda x: K.conv1d(x, kernel, padding="causal"))(X), wanted, **CLOSE)
    assert kernel.shape.as_list() == [3, 3, 2]


def test_a_variable_is_updated():
    variable = K.variable(1.0)
    K.update(variable, 2.0)
    K.update_add(variable, 3.0)
    K.update_sub(variable, 1.0)
    K.moving_average_update(variable, 0.0, 0.75)
    assert K.get_value(variable) == 3.0


class Annealed(keras.callbacks.Callback):
    """Sets a variable that the loss reads, as for the weight of a divergence."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def on_epoch_begin(self, epoch, logs=None):
        K.set_value(self.weight, float(epoch))


@pytest.mark.parametrize("replicas", [None, 8])
def test_a_loss_sees_the_value_that_a_callback_sets(replicas):
    weight = K.variable(7.0)
    inputs = keras.Input((3,))

    def fit():
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros", trainable=False)(inputs))
        model.compile("sgd", loss=lambda y, p: weight * K.mean(K.square(y - p), axis=-1))
        data = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
        return model.fit(*data, epochs=4, batch_size=8, verbose=0, callbacks=[Annealed(weight)]).history["loss"]

    if replicas is None:
        assert fit() == [0, 1, 2, 3]
    else:
        with kte.strategy_scope(require="cpu", replicas=replicas):
            assert fit() == [0, 1, 2, 3]


def test_a_variable_of_a_layer_is_trained():
    class Scale(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = K.variable(1.0)

        def call(self, x):
            return x * self.scale

    model = keras.Sequential([keras.Input((1,)), Scale()])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 1)), np.zeros((4, 1)), verbose=0)
    assert K.get_value(model.layers[0].scale) == pytest.approx(0.98)


def test_random_numbers_are_drawn_anew_in_each_step():
    def sample(z):
        return z + K.random_normal((K.shape(z)[0], K.int_shape(z)[1])) * K.random_uniform(K.shape(z))

    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Lambda(sample)(inputs))
    first, second = (model.predict(np.zeros((4, 3)), verbose=0) for _ in range(2))
    assert np.abs(first - second).min() > 0
    assert len(np.unique(first)) == 12


def test_the_phase_is_that_of_the_call():
    class Noise(keras.layers.Layer):
        def call(self, x, training=None):
            return K.in_train_phase(lambda: x * K.random_binomial(K.shape(x), p=0.5), x, training=training)

    class Asks(keras.layers.Layer):
        def call(self, x):
            return x + K.learning_phase() + K.in_test_phase(0.0, 10.0)

    noise, asks = Noise(), Asks()
    x = np.ones((50, 2), "float32")
    np.testing.assert_array_equal(noise(x), x)
    assert set(np.unique(noise(x, training=True))) == {0, 1}
    model = keras.Sequential([keras.Input((2,)), noise, asks])
    assert np.unique(model.predict(x, verbose=0)) == [1]
    assert set(np.unique(model(x, training=True))) == {11, 12}


def test_a_function_between_tensors_of_a_model():
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(2)(inputs)
    model = keras.Model(inputs, keras.layers.ReLU()(dense))
    function = K.function([model.input], [model.layers[1].output])
    (found,) = function([X[:, 0]])
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, model.layers[1](X[:, 0]), **CLOSE)
    with pytest.raises(OutOfReachError, match="training=False"):
        K.function([model.input, K.learning_phase()], [model.output])


def test_placeholders():
    x = K.placeholder((None, 4))
    assert K.int_shape(x) == (None, 4)
    assert K.is_keras_tensor(x)
    assert K.ndim(K.placeholder(ndim=3)) == 3
    np.testing.assert_allclose(jax.jit(lambda x: K.logsumexp(x, axis=-1))(X), np.log(np.exp(X).sum(-1)), **CLOSE)
    assert jax.jit(lambda x: K.print_tensor(x, "x is"))(X).shape == X.shape


@pytest.mark.parametrize("name", ["gradients", "get_session", "local_conv1d"])
def test_what_is_gone_says_what_to_write(name):
    with pytest.raises(OutOfReachError, match=rf"K\.{name} cannot run on JAX: Keras 3 has no.*Write instead"):
        getattr(K, name)(None, None)


def test_what_was_about_sessions_does_nothing():
    K.set_session(None)
    K.manual_variable_initialization(True)
    K.set_learning_phase(0)
    K.clear_session()


def test_labels_out_of_range_give_no_silent_number():
    loss = jax.jit(lambda x: K.sparse_categorical_crossentropy(np.array([0, 3, -1, 2]), K.softmax(x[:, 0])))(X)
    assert np.isnan(loss).tolist() == [False, True, True, False]


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="more axes than what it chooses"):
        jax.jit(lambda x: K.switch(x > 0, x[0], x[1]))(X)
    with pytest.raises(ValueError, match="batch"):
        jax.jit(lambda x: K.batch_dot(x, x[:2]))(X)
    with pytest.raises(ValueError, match="are incompatible"):
        jax.jit(lambda x: K.categorical_crossentropy(x, x[:, :2]))(X)
