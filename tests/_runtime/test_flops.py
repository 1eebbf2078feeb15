"""FLOPs of a training step, found in a real `fit`, against what they are by hand."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.flops import UncountableError, flops_of_einsum, flops_of_sizes
from keras_tpu_ext.callbacks import Throughput
from own_steps import OwnStep

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf221")

BATCH = 16


def counted(model, x_shape, y_shape, examples=40, **fit):
    throughput = Throughput(peak_flops=1e30)
    x, y = (np.ones((examples, *shape), "float32") for shape in (x_shape, y_shape))
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[throughput], **fit)
    return throughput.counted_flops


def built(shape, make, kind=keras.Model, **options):
    inputs = keras.Input(shape)
    model = kind(inputs, make(inputs))
    model.compile("sgd", "mse", **options)
    return model


def dense(x):
    return keras.layers.Dense(3)(keras.layers.Dense(5, activation="relu")(x))


def convolutions(x):
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(x)
    x = keras.layers.DepthwiseConv2D(3)(x)
    return keras.layers.Conv2D(2, 2, activation="relu")(x)


# Forward, and backward as often again for the weights and for what comes in, but for the first layer's input.
DENSE = 2 * (6 * 5 * 2 + 5 * 3 * 3)
CASES = {
    "dense": ((6,), (3,), dense, DENSE),
    # 9x9 to 5x5 of stride 2, to 3x3 without a rim, to 2x2.
    "convolutions": (
        (9, 9, 3),
        (2, 2, 2),
        convolutions,
        2 * (5 * 5 * 4 * 3 * 3 * 3 * 2 + 3 * 3 * 4 * 3 * 3 * 3 + 2 * 2 * 2 * 2 * 2 * 4 * 3),
    ),
    "transposed convolution": (
        (4, 4, 3),
        (8, 8, 2),
        lambda x: keras.layers.Conv2DTranspose(2, 3, strides=2, padding="same")(x),
        2 * (4 * 4 * 3 * 3 * 3 * 2 * 2),
    ),
    # Two heads of three: query, key and value; scores and their use, of both of which both factors are learned; out.
    "attention": (
        (7, 8),
        (7, 8),
        lambda x: keras.layers.MultiHeadAttention(2, 3)(x, x),
        2 * (3 * 7 * 8 * 6 * 2 + 2 * 2 * 7 * 7 * 3 * 3 + 7 * 6 * 8 * 3),
    ),
    # Four gates, of the input and of what is remembered, which has a gradient.
    "recurrent": ((7, 8), (3,), lambda x: keras.layers.LSTM(3)(x), 2 * 7 * (8 * 12 * 2 + 3 * 12 * 3)),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.gate_on("keras3_tf"))
        if case in ("transposed convolution", "recurrent")
        else case
        for case in CASES
    ],
)
def test_layers(case):
    x, y, make, flops = CASES[case]
    kind = kte.TPUModel if case in ("dense", "recurrent") else keras.Model
    assert counted(built(x, make, kind), x, y) == (pytest.approx(flops, rel=1e-12), BATCH)


@pytest.mark.parametrize(
    ("kind", "k"),
    [
        pytest.param(keras.Model, 8, marks=pytest.mark.exhaustive),
        pytest.param(kte.TPUModel, 1, marks=pytest.mark.exhaustive),
        pytest.param(kte.TPUModel, 8, marks=pytest.mark.gate_on("keras3_tf", "keras3_jax")),
    ],
)
def test_on_replicas_and_with_steps_per_execution_they_are_the_same(scope8, kind, k):
    with scope8:
        model = built((6,), dense, kind, steps_per_execution=k, metrics=["mae"])
    assert counted(model, (6,), (3,), examples=8 * BATCH) == (DENSE, BATCH)


def test_a_layer_that_is_not_trained_has_a_forward_pass_only():
    frozen = keras.layers.Dense(5, trainable=False)
    model = built((6,), lambda x: keras.layers.Dense(3)(frozen(x)))
    assert counted(model, (6,), (3,)).per_sample == 2 * (6 * 5 + 5 * 3 * 2)


@pytest.mark.filterwarnings("ignore:.*gradient.*:UserWarning")
def test_what_the_loss_does_not_depend_on_has_no_backward_pass():
    def make(x):
        before = keras.layers.Dense(5)(x)
        stopped = keras.layers.Lambda(stop_gradient)(before)
        return keras.layers.Dense(3)(stopped)

    model = built((6,), make)
    assert counted(model, (6,), (3,)).per_sample == 2 * (6 * 5 + 5 * 3 * 2)


def stop_gradient(x):
    if hasattr(keras, "ops"):
        return keras.ops.stop_gradient(x)
    import tensorflow as tf

    return tf.stop_gradient(x)


class OwnDense(OwnStep):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)

    def call(self, x, training=None):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore:Throughput shows no samples per second:UserWarning")
def test_a_train_step_of_the_users_own():
    model = OwnDense()
    model.compile("sgd", "mse")
    assert counted(model, (6,), (3,)).per_sample == DENSE


def test_nothing_is_trained_and_nothing_is_left_behind():
    def weights(**options):
        keras.utils.set_random_seed(3)
        model = built((6,), dense, kte.TPUModel, metrics=["mae"])
        x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
        throughput = Throughput(**options)
        history = model.fit(x, x[:, :3], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=[throughput])
        assert not hasattr(model.train_function, "by")
        kept = {name: values for name, values in history.history.items() if "/" not in name}
        return kept, [np.asarray(value) for value in model.get_weights()]

    (logs, expected), (logs_counting, found) = weights(), weights(peak_flops=1e30)
    assert logs == logs_counting
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sizes_that_nobody_knows():
    assert flops_of_sizes(2, 3, 4) == 48.0
    with pytest.raises(UncountableError, match="dimensions of unknown size beside the number of examples"):
        flops_of_sizes(2, None)


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ab,bc->ac", [(2, 3), (3, 4)], 48),
        ("abc,cde->abde", [(2, 7, 8), (8, 2, 3)], 2 * 2 * 7 * 8 * 6),
        ("...a, ab -> ...b", [(5, 6, 2), (2, 3)], 2 * 5 * 6 * 2 * 3),
        ("...ab,...bc->...ac", [(1, 4, 2, 3), (5, 1, 3, 6)], 2 * 5 * 4 * 2 * 3 * 6),
        ("aab->b", [(2, 2, 3)], 0),
    ],
)
def test_einstein_sums(equation, shapes, flops):
    assert flops_of_einsum(equation, shapes) == flops
