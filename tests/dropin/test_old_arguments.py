"""Arguments, attributes and methods of layers, models, losses and metrics of old Keras."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.old_keras_cases import EXPECTED, assert_same, cases
from keras_tpu_ext import strategy_scope
from keras_tpu_ext.dropin import OutOfReachError, report

pytestmark = pytest.mark.runtimes("keras3_jax")
layers = tf.keras.layers


@pytest.mark.parametrize("name", ["regularizers", "activations", "layers"])
def test_same_numbers_as_then(name):
    assert_same(getattr(cases, f"{name}_case")(), EXPECTED[name])


@pytest.mark.parametrize("name", cases.LOSSES)
def test_losses_train_as_then(name):
    assert_same(cases.loss_case(name), EXPECTED[f"loss {name}"])


def test_embedding_of_a_matrix_builds_the_sequential():
    matrix = cases.values(7, 3)
    model = tf.keras.Sequential([layers.Embedding(7, 3, weights=[matrix], input_length=5, trainable=False)])
    assert model.built
    assert model.input_shape == (None, 5)
    assert model.output_shape == (None, 5, 3)
    np.testing.assert_array_equal(model.predict(np.array([[1, 2, 3, 4, 0]]), verbose=0)[0], matrix[[1, 2, 3, 4, 0]])
    model = tf.keras.Sequential([layers.Embedding(np.int64(7), 3)])
    assert model.built
    model.build((None, 5))  # is nothing then
    assert model.input_shape == (None, None)


def test_weights_of_any_layer():
    kernel, bias = cases.values(4, 2), cases.values(2)
    layer = layers.Dense(2, weights=[kernel, bias], input_dim=4)
    assert tf.keras.Sequential([layer]).built
    np.testing.assert_array_equal(layer.get_weights()[0], kernel)
    np.testing.assert_array_equal(layer.get_weights()[1], bias)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Dense(2, batch_input_shape=(None, 4)),
        lambda: layers.Dense(2, input_dim=4),
        lambda: layers.Dense(2, input_shape=(4)),
        lambda: layers.Dense(2, input_shape=[4]),
        lambda: layers.LSTM(2, implementation=1, input_shape=(3, 4)),
        lambda: layers.BatchNormalization(axis=[1], fused=True, input_shape=(4,)),
        lambda: layers.Dropout(p=0.5, input_shape=(4,)),
        lambda: layers.LeakyReLU(alpha=0.1, input_shape=(4,)),
        lambda: layers.Lambda(lambda x: tf.cast(x, tf.float32) / 255.0, input_shape=[4]),
        lambda: layers.CuDNNLSTM(2, input_shape=(3, 4)),
        lambda: layers.CuDNNGRU(2, input_shape=(3, 4)),
    ],
)
def test_old_arguments_of_a_first_layer(make):
    model = tf.keras.Sequential()
    model.add(make())
    assert model.built
    model.predict(np.ones((2, *model.input_shape[1:])), verbose=0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: layers.LSTM(2, time_major=True), r"LSTM\(time_major=True\) cannot run on JAX"),
        (lambda: layers.BatchNormalization(virtual_batch_size=4), r"virtual_batch_size=4\) cannot run on JAX"),
        (lambda: layers.BatchNormalization(axis=[1, 2]), r"axis=\[1, 2\]\).*a Reshape that joins the axes"),
    ],
)
def test_what_would_change_numbers_is_refused(make, text):
    with pytest.raises(OutOfReachError, match=text):
        make()


def test_unknown_arguments_are_refused_still():
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        layers.Dense(2, nothing=1)
    with pytest.raises(TypeError, match="nothing"):
        keras.regularizers.L2(nothing=1)


def test_slash_in_names():
    inputs = layers.Input(shape=4, name="in/put")
    model = tf.keras.Model(inputs, layers.Dense(2, name="block/dense")(inputs), name="my/model")
    assert model.get_layer("block/dense").name == "block_dense"
    assert model.name == "my_model"
    assert "block/dense" in report.summary()


def test_model_of_input_and_output():
    x = layers.Input((4,))
    model = tf.keras.models.Model(input=x, output=layers.Dense(2)(x))
    assert model.output_shape == (None, 2)

    class Own(tf.keras.Model):
        pass

    assert Own(input=x, output=layers.Dense(3)(x)).output_shape == (None, 3)
    assert tf.keras.Sequential([layers.Dense(2)], "name").name == "name"


def test_shapes_of_layers():
    model = cases.conv_model()
    assert model.get_layer("conv").input_shape == (None, 8, 8, 3)
    assert model.layers[1].output_shape == (None, 8, 8, 4)
    assert model.get_layer("gap").output.shape == (None, 4)
    with pytest.raises(AttributeError, match="never been called"):
        _ = layers.Dense(2).output_shape

    class Own(layers.Layer):
        def __init__(self):
            super().__init__()
            self.output_shape = 3

    assert Own().output_shape == 3


class Attention(layers.Layer):
    """The layer that text kernels have."""

    def __init__(self, step_dim, **kwargs):
        self.supports_masking = True
        self.step_dim = step_dim
        super().__init__(**kwargs)

    def build(self, input_shape):
        assert len(input_shape) == 3
        size = input_shape.as_list()[-1]
        self.W = self.add_weight("W", (size,), initializer="glorot_uniform" if size == 1 else "uniform")
        self.b = self.add_weight(name="b", shape=input_shape[1], initializer="zero", use_resource=True)
        self.built = True
        super().build(input_shape)

    def call(self, x, mask=None):
        scores = tf.squeeze(tf.matmul(x, tf.expand_dims(self.W, -1)), -1) + self.b
        weights = tf.exp(scores)
        if mask is not None:
            weights *= tf.cast(mask, tf.float32)
        weights /= tf.reduce_sum(weights, axis=1, keepdims=True) + 1e-7
        return tf.reduce_sum(x * tf.expand_dims(weights, -1), axis=1)

    def compute_mask(self, inputs, mask=None):
        return None


def test_own_layer_as_written_then():
    model = tf.keras.Sequential(
        [layers.Embedding(9, 4, input_length=5, mask_zero=True), Attention(5), layers.Dense(1, activation="sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", ["acc"])
    history = model.fit(np.arange(40).reshape(8, 5) % 9, np.arange(8) % 2, epochs=1, verbose=0)
    assert set(history.history) == {"loss", "acc"}


class Own(layers.Layer):
    """A layer with losses of its own."""

    def call(self, x):
        self.add_loss(lambda: 0.5 * tf.reduce_mean(x))
        self.add_update([])
        return x


def test_own_losses_of_a_layer():
    model = tf.keras.Sequential([Own(input_shape=(4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.full((8, 4), 3.0, "float32")
    history = model.fit(x, np.zeros(8), batch_size=4, epochs=1, verbose=0).history
    assert history["loss"][0] > 1.5


def test_states_have_the_batch_size_of_the_input():
    model = tf.keras.Sequential([layers.Embedding(9, 4, batch_input_shape=[2, None]), layers.GRU(3, stateful=True)])
    assert model.input_shape == (2, None)
    x = np.arange(8).reshape(2, 4)
    count = len(model.get_weights())
    first, second = (model.predict(x, verbose=0) for _ in range(2))
    assert np.abs(first - second).max() > 1e-6
    model.reset_states()
    np.testing.assert_allclose(model.predict(np.tile(x, (2, 1)), batch_size=2, verbose=0)[2:], second, rtol=1e-6)
    assert len(model.get_weights()) == count == 4


@pytest.mark.parametrize(("fused", "below"), [({}, 15), ({"fused": False}, 16)])
def test_moving_variance_of_images_is_of_samples(fused, below):
    x = cases.values(4, 2, 2, 3)
    layer = layers.BatchNormalization(momentum=0.75, **fused)
    layer(x, training=True)
    expected = 0.75 + 0.25 * np.var(x, axis=(0, 1, 2)) * 16 / below  # `fused` in Keras 2.15, which is its default
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("activation", "loss", "target"),
    [
        ("softmax", "categorical_crossentropy", [[0, 1]]),
        ("softmax", "sparse_categorical_crossentropy", [1]),
        ("sigmoid", "binary_crossentropy", [[0, 1]]),
        # Of what is no logits; Keras 2.15 warns, and takes the logits that it has.
        ("softmax", keras.losses.CategoricalCrossentropy(from_logits=True), [[0, 1]]),
        ("softmax", keras.losses.SparseCategoricalCrossentropy(from_logits=True), [1]),
        ("sigmoid", keras.losses.BinaryCrossentropy(from_logits=True), [[0, 1]]),
    ],
)
@pytest.mark.filterwarnings("ignore:The output of layer:UserWarning")  # programs do not see it: quiet.py
def test_losses_are_of_logits(activation, loss, target, exact):
    with strategy_scope(require="cpu", exact=exact):
        dense = layers.Dense(2, activation=activation, use_bias=False, weights=[np.diag([30.0, -30.0])], input_dim=2)
        model = tf.keras.Sequential([dense])
        model.compile(tf.keras.optimizers.SGD(0.1), loss)
    x, y = np.ones((8, 2)), np.repeat(target, 8, axis=0)
    # Keras 2.15 gives 60 and 30; clipped probabilities would give 16.1, and a kernel that stays.
    assert model.evaluate(x, y, verbose=0) == pytest.approx(60 if activation == "softmax" else 30, rel=1e-5)
    model.fit(x, y, batch_size=8, verbose=0)
    assert dense.get_weights()[0][1, 1] == pytest.approx(-30 + (0.1 if activation == "softmax" else 0.05), rel=1e-5)


def test_custom_objects_by_name():
    def own(*values):
        return tf.reduce_mean(sum(values)) + 0 * values[0]  # a constraint keeps the shape

    with tf.keras.utils.custom_object_scope({"own": own, "mish": layers.Activation(lambda x: x * 3)}):
        layer = layers.Dense(2, activation="mish", kernel_regularizer="own", bias_constraint="own", input_shape=(4,))
        model = tf.keras.Sequential([layer])
        model.compile("sgd", "own", metrics=["own"])
        x = np.ones((8, 4))
        assert set(model.fit(x, np.zeros((8, 2)), verbose=0).history) == {"loss", "own"}
    kernel, bias = layer.get_weights()
    np.testing.assert_allclose(model.predict(x, verbose=0), 3 * (x @ kernel + bias), rtol=1e-5)


@pytest.mark.parametrize(
    ("of", "old", "today"),
    [
        ("regularizers", "l1_l2", keras.regularizers.L1L2(0.01, 0.01)),
        ("constraints", "maxnorm", keras.constraints.MaxNorm()),
        ("constraints", "nonneg", keras.constraints.NonNeg()),
        ("constraints", "unitnorm", keras.constraints.UnitNorm()),
        ("losses", "logcosh", keras.losses.log_cosh),
        ("losses", "huber_loss", keras.losses.huber),
        ("losses", "kullback_leibler_divergence", keras.losses.kl_divergence),
    ],
)
def test_old_identifiers(of, old, today):
    found = importlib.import_module(f"keras.src.{of}").get(old)
    assert found is today or (type(found), found.get_config()) == (type(today), today.get_config())


class Noise(layers.Layer):
    """A layer that draws, and says of its shape what was never read."""

    def call(self, x):
        return x + tf.random.normal(tf.shape(x))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 17)


@pytest.mark.parametrize(
    "layer", [Noise(), layers.Lambda(lambda x: x + tf.keras.backend.random_normal(tf.shape(x)), output_shape=(4,))]
)
def test_layers_that_say_their_shape_are_called_all_the_same(layer):
    inputs = layers.Input((4,))
    outputs = layer(inputs)
    assert outputs.shape == (None, 4)
    model = tf.keras.Model(inputs, layers.Dense(1)(outputs))
    model.compile("sgd", "mse")
    x = np.zeros((8, 4))
    model.fit(x, np.zeros(8), verbose=0)
    assert np.abs(model.predict(x, verbose=0) - model.predict(x, verbose=0)).min() > 0


def test_policies_of_experimental_mixed_precision():
    policy = tf.keras.mixed_precision.experimental.Policy("mixed_bfloat16", loss_scale="dynamic")
    assert (policy.compute_dtype, policy.variable_dtype) == ("bfloat16", "float32")
    try:
        tf.keras.mixed_precision.experimental.set_policy(policy)
        assert layers.Dense(2).compute_dtype == "bfloat16"
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("name", ["intersection", "floating", "mixed"])
def test_a_metric_may_be_named_like_a_dtype(name):
    assert type("Own", (tf.keras.metrics.Metric,), {})(name).name == name


class F1(tf.keras.metrics.Metric):
    """A metric as kernels wrote it."""

    def __init__(self, name="f1", **kwargs):
        super().__init__(name, **kwargs)
        self.hits = self.add_weight("hits", initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), aggregation=tf.VariableAggregation.SUM)

    def update_state(self, y_true, y_pred, sample_weight=None):
        assert len(y_true.shape) == len(y_pred.shape)
        same = tf.cast(tf.equal(tf.cast(y_true, tf.float32), tf.round(y_pred)), tf.float32)
        self.hits.assign_add(tf.reduce_sum(same))
        self.count.assign_add(tf.cast(tf.size(same), tf.float32))

    def result(self):
        return self.hits / self.count

    def reset_states(self):
        self.hits.assign(0.0)
        self.count.assign(0.0)


def test_own_metric():
    metric = F1()
    model = cases.small_model("sigmoid")
    model.compile("sgd", "binary_crossentropy", [metric, "acc"])
    history = model.fit(cases.values(8, 4), np.arange(8) % 2, epochs=2, verbose=0).history
    np.testing.assert_allclose(history["f1"], history["acc"])
    metric.reset_states()
    assert float(metric.count) == 0
    mean = tf.keras.metrics.Mean("name")
    mean.update_state(3.0)
    mean.reset_states()
    assert mean.name == "name"
    assert float(mean.result()) == 0


def test_reductions():
    for reduction in ("AUTO", "NONE", "SUM", "SUM_OVER_BATCH_SIZE"):
        value = getattr(tf.keras.losses.Reduction, reduction)
        assert value == getattr(keras.losses.Reduction, reduction)
        loss = tf.keras.losses.MeanSquaredError(reduction=value)
        assert np.shape(loss(np.ones((3, 2)), np.zeros((3, 2)))) == ((3,) if reduction == "NONE" else ())
    with pytest.raises(ValueError, match="Invalid value for argument `reduction`"):
        tf.keras.losses.MeanSquaredError(reduction="nothing")


def test_ordinary_layers_are_as_before():
    for layer in (
        keras.layers.Dense(2, "relu", name="a"),
        keras.layers.Embedding(3, 2),
        keras.layers.BatchNormalization(1, momentum=0.9),
        keras.layers.AveragePooling2D(3),
        keras.layers.Dropout(0.2),
        keras.layers.ConvLSTM2D(2, 3, recurrent_activation="sigmoid"),
        keras.layers.LSTM(3, recurrent_activation="hard_sigmoid"),
    ):
        config = layer.get_config()
        assert type(layer).from_config(config).get_config() == config
    assert keras.regularizers.L1L2(0.1).get_config() == {"l1": pytest.approx(0.1), "l2": 0.0}
