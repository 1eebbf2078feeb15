"""`layers.BatchNormalization` on one device: against formulas in float64, and beside the layer of Keras."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte
from keras_tpu_ext.parity import ParityRow
from keras_tpu_ext.tools.parity.inspection import findings, inspect_model
from kind_of_keras import IS_KERAS2
from layers.checks import array, call_and_differentiate, differentiate_twice, dtype_of, tensor
from layers.normalised import Weights, normalise

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

# Float32 rounds by 6e-8 of a value, and sums of some hundred values are off by some such steps; a variance is a
# difference of two such sums, and a gradient of three. A wrong number of examples is never below 1e-3.
TOLERANCE = 1e-5

SHAPES = {2: (12, 3), 3: (12, 4, 3), 4: (12, 4, 2, 3), 5: (12, 2, 3, 2, 3)}
GHOSTS = [None, 4, 5, 1, 12, 100]  # of 12: all, a divisor, no divisor, each by itself, again all, more than there are


def assert_close(got, expected, tolerance=TOLERANCE, what=""):
    """Check that values are equal, but for a part of each or of the largest of them."""
    expected = np.asarray(expected)
    atol = tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=atol, err_msg=what)


def some(shape, dtype="float32", mean=0.5, std=2.0):
    rng = np.random.default_rng(11)
    inputs = rng.normal(mean, std, size=shape).astype(dtype)
    return inputs, rng.normal(size=shape).astype("float32")


def built(shape, weights, **options):
    layer = kte.layers.BatchNormalization(**options)
    layer.build(shape)
    there = {name: options[name] for name in ("scale", "center") if name in options}
    layer.set_weights(weights.of(**there))
    return layer


def check(
    inputs, upstream, *, mask=None, training=True, trainable=True, compiled=False, tolerance=TOLERANCE, **options
):
    """Compare outputs, gradients and moving averages of a layer with those of `normalise`."""
    weights = Weights.some(inputs.shape[options.get("axis", -1)])
    layer = built(inputs.shape, weights, **options)
    layer.trainable = trainable
    expected = normalise(inputs, upstream, weights, mask=mask, training=training and trainable, **options)
    call = {} if mask is None else {"mask": tensor(mask)}
    outputs, gradients = call_and_differentiate(layer, inputs, upstream, compiled=compiled, training=training, **call)
    assert_close(array(outputs), expected.outputs, tolerance, "outputs")
    of_weights = [(expected.of_gamma, "scale"), (expected.of_beta, "center")]
    of_weights = [values for values, name in of_weights if trainable and options.get(name, True)]
    for got, values in zip(gradients, [expected.of_inputs, *of_weights], strict=True):
        assert_close(array(got), values, tolerance, "a gradient")
    assert_close(array(layer.moving_mean), expected.moving_mean, tolerance, "moving mean")
    assert_close(array(layer.moving_variance), expected.moving_variance, tolerance, "moving variance")


# -- the formulas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, np.arange(12) % 3 > 0])
@pytest.mark.parametrize("ghost_batch_size", [None, 5])
def test_the_reference_itself_has_the_slope_of_its_outputs(ghost_batch_size, mask):
    inputs, upstream = some((12, 3), "float64")
    options = {"ghost_batch_size": ghost_batch_size, "mask": mask}

    def total(inputs, gamma):
        weights = Weights(gamma, np.zeros(3), np.zeros(3), np.ones(3))
        return (normalise(inputs, upstream, weights, **options).outputs * upstream).sum()

    gamma, step = np.array([0.5, 1.0, 2.0]), 1e-6
    formula = normalise(inputs, upstream, Weights(gamma, np.zeros(3), np.zeros(3), np.ones(3)), **options)
    for index in np.ndindex(inputs.shape):
        moved = np.zeros_like(inputs)
        moved[index] = step
        slope = (total(inputs + moved, gamma) - total(inputs - moved, gamma)) / (2 * step)
        assert formula.of_inputs[index] == pytest.approx(slope, abs=1e-7)  # rounding of the total over the step
    for channel, of_gamma in enumerate(formula.of_gamma):
        moved = step * (np.arange(3) == channel)
        slope = (total(inputs, gamma + moved) - total(inputs, gamma - moved)) / (2 * step)
        assert of_gamma == pytest.approx(slope, abs=1e-7)


def combined(is_in_gate, *axes):
    """Return all combinations; those that are not in the gate have neighbours that are, by each of their values."""
    return [
        pytest.param(*case, marks=() if is_in_gate(*case) else pytest.mark.exhaustive)
        for case in itertools.product(*axes)
    ]


@pytest.mark.parametrize(
    ("rank", "ghost_batch_size", "compiled"),
    combined(lambda rank, _, compiled: rank == (4 if compiled else 2), (2, 3, 4, 5), GHOSTS, (False, True)),
)
def test_a_batch_is_normalised_part_by_part(rank, ghost_batch_size, compiled):
    check(*some(SHAPES[rank]), ghost_batch_size=ghost_batch_size, compiled=compiled)


@pytest.mark.parametrize(
    ("rank_and_axis", "ghost_batch_size"),
    combined(
        lambda rank_and_axis, ghosts: (ghosts is None) == (sum(rank_and_axis) % 2 == 1),
        ((2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (4, -2), (4, 3), (4, -3)),
        (None, 5),
    ),
)
def test_the_channels_may_be_on_any_axis_but_the_first(rank_and_axis, ghost_batch_size):
    rank, axis = rank_and_axis
    check(*some(SHAPES[rank]), axis=axis, ghost_batch_size=ghost_batch_size)


@pytest.mark.parametrize(
    ("axis", "kept", "ghost_batch_size"),
    combined(
        lambda axis, kept, ghosts: (axis == 1) == (ghosts is None), (1, -1), ("gamma", "beta", "neither"), (None, 5)
    ),
)
def test_without_gamma_or_beta(axis, kept, ghost_batch_size):
    center, scale = kept == "beta", kept == "gamma"
    check(*some(SHAPES[4]), axis=axis, center=center, scale=scale, ghost_batch_size=ghost_batch_size)


@pytest.mark.parametrize("ghost_batch_size", [None, 5])
def test_momentum_and_epsilon(ghost_batch_size):
    check(*some(SHAPES[3]), momentum=0.3, epsilon=0.5, ghost_batch_size=ghost_batch_size)
    check(*some(SHAPES[3]), momentum=0.0, epsilon=1e-5, ghost_batch_size=ghost_batch_size)
    check(*some(SHAPES[3]), momentum=1.0, ghost_batch_size=ghost_batch_size)


@pytest.mark.parametrize(
    ("axis", "case", "ghost_batch_size", "is_masked"),
    combined(
        lambda axis, case, ghosts, is_masked: (axis == 2) == (ghosts == 5) == is_masked,
        (2, -1),
        ("inference", "frozen", "inference, frozen"),
        (None, 5),
        (False, True),
    ),
)
def test_inference_and_a_frozen_layer_take_the_moving_averages(axis, case, ghost_batch_size, is_masked):
    training, trainable = "inference" not in case, "frozen" not in case
    mask = np.arange(48).reshape(12, 4) % 3 > 0 if is_masked else None
    check(
        *some(SHAPES[3]),
        axis=axis,
        training=training,
        trainable=trainable,
        ghost_batch_size=ghost_batch_size,
        mask=mask,
    )


# -- masks -------------------------------------------------------------------------------------------------------

MASKS = {
    "some steps": np.arange(48).reshape(12, 4) % 3 > 0,
    "whole rows": np.repeat(np.arange(12) % 4 < 2, 4).reshape(12, 4),
    "no step at all of the second part of five": np.repeat((np.arange(12) < 5) | (np.arange(12) > 9), 4).reshape(
        12, 4
    ),
    "all steps": np.ones((12, 4), bool),
    "one step": np.arange(48).reshape(12, 4) == 17,
}


@pytest.mark.parametrize(
    ("name", "ghost_batch_size", "compiled"),
    combined(
        lambda name, ghosts, compiled: name not in ("all steps", "whole rows") and compiled == (ghosts in (None, 5)),
        MASKS,
        (None, 4, 5, 1),
        (False, True),
    ),
)
def test_what_is_masked_does_not_count(name, ghost_batch_size, compiled):
    mask = MASKS[name]
    inputs, upstream = some(SHAPES[3])
    # A part without a value has no moments to be normalised with, so nothing is said of its outputs.
    size = ghost_batch_size or 12
    has_values = np.concatenate([np.full(size, mask[i : i + size].any()) for i in range(0, 12, size)])[:12]
    inputs, upstream, mask = inputs[has_values], upstream[has_values], mask[has_values]
    if size == 5 and name.startswith("no step"):
        pytest.skip("what is left are no parts of five")
    # The variance of one value is nought, and what float32 leaves of it instead weighs beside epsilon, 1e-3.
    tolerance = 1e-3 if name == "one step" else TOLERANCE
    check(inputs, upstream, mask=mask, ghost_batch_size=ghost_batch_size, compiled=compiled, tolerance=tolerance)


@pytest.mark.parametrize("ghost_batch_size", [None, 2, 5])
def test_the_channels_of_masked_images_may_come_first(ghost_batch_size):
    mask = np.arange(12 * 2 * 3).reshape(12, 2, 3) % 4 > 0
    check(*some((12, 3, 2, 3)), axis=1, mask=mask, ghost_batch_size=ghost_batch_size)


@pytest.mark.parametrize("ghost_batch_size", [None, 5])
def test_the_gradient_of_a_masked_value_is_that_of_its_own_output(ghost_batch_size):
    """It has no part in the moments, so no other output depends on it."""
    (inputs, _), mask = some((12, 3)), np.arange(12) % 3 > 0
    layer = built(inputs.shape, Weights.some(3), ghost_batch_size=ghost_batch_size)
    others = np.repeat(mask[:, None], 3, axis=1).astype("float32")
    _, (of_inputs, *_) = call_and_differentiate(layer, inputs, others, training=True, mask=tensor(mask))
    np.testing.assert_array_equal(array(of_inputs)[~mask], 0.0)
    _, (of_inputs, *_) = call_and_differentiate(layer, inputs, 1 - others, training=True, mask=tensor(mask))
    assert np.abs(array(of_inputs)[~mask]).min() > 0.1


@pytest.mark.parametrize("ghost_batch_size", [None, 4, 5])
def test_a_batch_without_a_single_value_leaves_the_moving_averages_alone(ghost_batch_size):
    inputs, upstream = some((12, 3))
    layer = built(inputs.shape, Weights.some(3), ghost_batch_size=ghost_batch_size, momentum=0.5)
    before = layer.get_weights()
    outputs, gradients = call_and_differentiate(
        layer, inputs, upstream, training=True, mask=tensor(np.zeros(12, bool))
    )
    assert all(np.isfinite(array(values)).all() for values in (outputs, *gradients))
    for got, expected in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_part_without_a_value_does_not_count_in_the_moving_averages():
    inputs, upstream = some((12, 3))
    mask = np.arange(12) // 4 != 1
    layers = [built(inputs.shape, Weights.some(3), ghost_batch_size=4, momentum=0.5) for _ in range(2)]
    call_and_differentiate(layers[0], inputs, upstream, training=True, mask=tensor(mask))
    call_and_differentiate(layers[1], inputs[mask], upstream[mask], training=True)
    for got, expected in zip(layers[0].get_weights(), layers[1].get_weights(), strict=True):
        assert_close(got, expected)


# -- dtypes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ghost_batch_size", [None, 16, 48])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_moments_of_bfloat16_are_right_to_float32(mean, ghost_batch_size):
    """The inputs are rounded to steps of 0.5 near 100; of what they then are, nothing more is lost."""
    inputs = array(tensor(some((64, 3), mean=mean, std=1.0)[0], "bfloat16"))
    moving = Weights(np.ones(3), np.zeros(3), np.zeros(3), np.ones(3))
    expected = normalise(inputs, inputs, moving, momentum=0.0, ghost_batch_size=ghost_batch_size)
    layer = kte.layers.BatchNormalization(momentum=0.0, ghost_batch_size=ghost_batch_size, dtype="mixed_bfloat16")
    outputs = layer(tensor(inputs), training=True)
    assert dtype_of(outputs) == "bfloat16"
    assert {dtype_of(weight) for weight in layer.weights} == {"float32"}
    # Squares near 1e4 are off by 6e-8 of their size in each of some sums, which is 1e-3 of a variance of 1.
    assert_close(array(layer.moving_mean), expected.moving_mean, 1e-6)
    assert_close(array(layer.moving_variance), expected.moving_variance, 1e-5 if mean == 0 else 3e-3)
    layer(tensor(inputs), training=True)  # around a moving mean that has followed
    assert_close(array(layer.moving_variance), expected.moving_variance, 1e-5)
    # An output of bfloat16 has 8 bits.
    assert_close(array(layer(tensor(inputs), training=True)), expected.outputs, 2.0**-8)


@pytest.mark.parametrize("ghost_batch_size", [None, 16, 48])
def test_inputs_far_from_nought(ghost_batch_size):
    """Around `moving_mean` nothing is lost but what float32 loses of the inputs, 3e-5 near 1000."""
    inputs, upstream = some((64, 3), mean=1e3, std=1.0)
    weights = Weights(np.ones(3), np.zeros(3), np.full(3, 1e3), np.ones(3))
    layer = built(inputs.shape, weights, ghost_batch_size=ghost_batch_size)
    expected = normalise(inputs, upstream, weights, ghost_batch_size=ghost_batch_size)
    outputs, (of_inputs, of_gamma, of_beta) = call_and_differentiate(layer, inputs, upstream, training=True)
    # The mean is a float32 near 1000, off by up to 6e-5, and so are all outputs.
    assert_close(array(outputs), expected.outputs, 1e-4)
    assert_close(array(of_inputs), expected.of_inputs, 1e-4)
    assert_close(array(of_gamma), expected.of_gamma, 1e-3)  # 64 products with outputs
    assert_close(array(of_beta), expected.of_beta)
    assert_close(array(layer.moving_variance), expected.moving_variance)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_a_variance_that_float32_has_lost_is_never_negative(mean):
    """In the first steps, before `moving_mean` has followed, it may be anything; the root of it must be a number."""
    layer = kte.layers.BatchNormalization()
    assert np.isfinite(array(layer(tensor(some((64, 8), mean=mean, std=0.1)[0]), training=True))).all()
    assert (array(layer.moving_variance) > 0).all()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_whole_numbers_are_normalised_as_keras_does_it(dtype, policy):
    inputs = np.random.default_rng(4).integers(0, 255, size=(12, 3)).astype(dtype)
    ours, stock = (cls(dtype=policy) for cls in (kte.layers.BatchNormalization, keras.layers.BatchNormalization))
    for training in (True, False):
        got, expected = (layer(tensor(inputs), training=training) for layer in (ours, stock))
        assert dtype_of(got) == dtype_of(expected)
        # Squares of some 1e4 around nought are off by 6e-8 of that, beside a variance of 5e3.
        assert_close(array(got), array(expected), 1e-5 if policy == "float32" else 2.0**-7)
    assert dtype_of(kte.layers.BatchNormalization(dtype=policy)(keras.Input((3,), dtype=dtype), training=True)) == (
        dtype_of(expected)
    )


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 unless it is told to at the start")
@pytest.mark.parametrize("ghost_batch_size", [None, 4, 5])
def test_float64_stays_float64(ghost_batch_size):
    """In a step whose batch has no static size, too."""
    inputs, _ = some((13, 3), mean=1e4)
    inputs = inputs.astype("float64")  # `fit` makes float32 of all floats on the way
    symbols = keras.Input((3,), dtype="float64")
    layer = kte.layers.BatchNormalization(momentum=0.0, ghost_batch_size=ghost_batch_size, dtype="float64")
    model = keras.Model(symbols, layer(symbols))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(inputs, inputs, batch_size=13, verbose=0, shuffle=False)
    weights = Weights(np.ones(3), np.zeros(3), np.zeros(3), np.ones(3))
    expected = normalise(inputs, inputs, weights, momentum=0.0, ghost_batch_size=ghost_batch_size)
    # The squares around nought are near 1e8, of which float64 loses 1e-8.
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected.moving_mean, rtol=1e-14)
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected.moving_variance, rtol=1e-7)


def test_the_gradient_of_a_gradient_is_refused():
    """It would be wrong without a word: the gradient takes the moments for constants."""
    inputs, upstream = some((12, 3))
    layer = built(inputs.shape, Weights.some(3))
    with pytest.raises(
        kte.errors.ArgumentError, match=r"cannot be differentiated again.*Write: keras\.layers\.Batch"
    ):
        differentiate_twice(layer, inputs, upstream, training=True)
    assert np.isfinite(array(differentiate_twice(layer, inputs, upstream, training=False))).all()


# -- beside the layer of Keras -----------------------------------------------------------------------------------


def digits_model(cls, **options):
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(8, 3, use_bias=False)(inputs)
    x = keras.layers.ReLU()(cls(**options)(x))
    x = keras.layers.Conv2D(8, 3, use_bias=False)(x)
    x = keras.layers.ReLU()(cls(momentum=0.9, scale=False, **options)(x))
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))


def stock_class():
    """Return Keras's layer as it is on a whole batch; that of Keras 2 corrects the variance in its fused kernel."""
    if not IS_KERAS2:
        return keras.layers.BatchNormalization
    return lambda **options: keras.layers.BatchNormalization(fused=False, **options)


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return (images[:600] / 16).reshape(-1, 8, 8, 1).astype("float32"), labels[:600]


@pytest.mark.exhaustive
def test_digits_are_learnt_as_with_the_layer_of_keras(digits):
    models = [digits_model(cls) for cls in (stock_class(), kte.layers.BatchNormalization)]
    models[1].set_weights(models[0].get_weights())
    histories = []
    for model in models:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        history = model.fit(*digits, batch_size=64, epochs=3, shuffle=False, verbose=0).history
        histories.append((history, model.evaluate(*digits, verbose=0), model.predict(digits[0], verbose=0)))
    # Over 30 steps rounding grows, through each step's moments, from 1e-7 to some 1e-5.
    keras.tree.map_structure(lambda got, expected: assert_close(got, expected, 1e-3), histories[1], histories[0])
    for got, expected in zip(models[1].get_weights(), models[0].get_weights(), strict=True):
        assert_close(got, expected, 1e-3)
    assert histories[1][0]["accuracy"][-1] > 0.4  # there was something to learn


def test_weights_go_both_ways(digits, tmp_path):
    ours, stock = (digits_model(cls) for cls in (kte.layers.BatchNormalization, keras.layers.BatchNormalization))
    for model in (ours, stock):
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(*digits, batch_size=100, verbose=0)
    expected = stock.predict(digits[0][:8], verbose=0)
    ours.set_weights(stock.get_weights())
    np.testing.assert_array_equal(ours.predict(digits[0][:8], verbose=0), expected)
    stock.set_weights([2 * weights for weights in ours.get_weights()])
    ours.set_weights(stock.get_weights())
    expected = stock.predict(digits[0][:8], verbose=0)
    for source, target in ((stock, ours), (ours, stock)):
        source.save_weights(tmp_path / "model.weights.h5")
        target.set_weights([0 * weights for weights in target.get_weights()])
        target.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(target.predict(digits[0][:8], verbose=0), expected)


def test_a_config_of_the_layer_of_keras_makes_one_of_ours():
    stock = keras.layers.BatchNormalization(
        axis=1,
        momentum=0.7,
        epsilon=0.02,
        center=False,
        gamma_initializer="zeros",
        gamma_regularizer="l2",
        name="norm",
    )
    ours = kte.layers.BatchNormalization.from_config(stock.get_config())
    assert isinstance(ours, keras.layers.BatchNormalization)
    assert ours.ghost_batch_size is None
    config = ours.get_config()
    same = {name: value for name, value in stock.get_config().items() if name in config}
    assert {name: config[name] for name in same} == same
    assert {"axis", "momentum", "epsilon", "center", "gamma_initializer", "gamma_regularizer", "name"} <= same.keys()


def test_initializers_regularizers_and_constraints_are_those_asked_for():
    layer = kte.layers.BatchNormalization(
        gamma_initializer=keras.initializers.Constant(3.0),
        beta_initializer=keras.initializers.Constant(4.0),
        moving_mean_initializer=keras.initializers.Constant(5.0),
        moving_variance_initializer=keras.initializers.Constant(6.0),
        gamma_regularizer=keras.regularizers.L2(0.5),
        beta_constraint="non_neg",
    )
    layer.build((None, 2))
    np.testing.assert_array_equal(layer.get_weights(), [[3.0, 3.0], [4.0, 4.0], [5.0, 5.0], [6.0, 6.0]])
    assert float(array(layer.losses[0])) == pytest.approx(9.0)
    assert layer.beta.constraint is not None


@pytest.mark.parametrize("ghost_batch_size", [None, 2, 3])
def test_sizes_that_are_not_known_before(ghost_batch_size):
    """Images of any size, in a step that does not know how many."""
    inputs, _ = some((7, 4, 5, 3))
    symbols = keras.Input((None, None, 3))
    layer = kte.layers.BatchNormalization(momentum=0.0, ghost_batch_size=ghost_batch_size)
    model = keras.Model(symbols, layer(symbols))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(inputs, inputs, batch_size=7, shuffle=False, verbose=0)
    weights = Weights(np.ones(3), np.zeros(3), np.zeros(3), np.ones(3))
    expected = normalise(inputs, inputs, weights, momentum=0.0, ghost_batch_size=ghost_batch_size)
    assert_close(array(layer.moving_mean), expected.moving_mean)
    assert_close(array(layer.moving_variance), expected.moving_variance)


def facts_of(cls, **options):
    inputs = keras.Input((3,))
    model = kte.TPUModel(inputs, keras.layers.Dense(1)(cls(name="norm", **options)(inputs)))
    return inspect_model(model, [])


def test_a_check_of_parity_has_nothing_to_say_of_it():
    """Of Keras's layer it has where that sees its replica only, which it does on TensorFlow."""
    assert facts_of(kte.layers.BatchNormalization).local_normalisations == ()
    assert facts_of(kte.layers.BatchNormalization, ghost_batch_size=8).local_normalisations == ()
    on_tensorflow = keras.backend.backend() == "tensorflow"
    facts = facts_of(keras.layers.BatchNormalization)
    assert facts.local_normalisations == (("'norm'",) if on_tensorflow else ())
    told = " ".join(findings(facts, [ParityRow("one step", "loss", 0.5, 1e-5, False)]))
    assert ("BatchNormalization 'norm' sees only its replica" in told) is on_tensorflow


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -3, 2.5, 8.0, True, "8"])
def test_a_ghost_batch_size_that_cannot_be(value):
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.layers.BatchNormalization(ghost_batch_size=value)
    assert str(error.value) == (
        f"BatchNormalization: `ghost_batch_size` must be an integer of at least 1; got {value!r}. "
        "Write ghost_batch_size=128."
    )


def test_a_whole_number_of_numpy_is_one():
    config = kte.layers.BatchNormalization(ghost_batch_size=np.int64(8)).get_config()
    assert type(config["ghost_batch_size"]) is int


def test_renorm_is_refused():
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.layers.BatchNormalization(renorm=True)
    assert str(error.value) == (
        "renorm=True is not offered: it corrects for small batches on each replica, and here the moments are those "
        "of the whole batch. Write: BatchNormalization() without it, or keras.layers.BatchNormalization(renorm=True)"
    )


def test_the_virtual_batches_of_keras_2_are_refused():
    with pytest.raises(kte.errors.ArgumentError) as error:
        kte.layers.BatchNormalization(virtual_batch_size=4)
    assert str(error.value) == (
        "virtual_batch_size=4 is not offered: Keras 2 takes it of each replica's part. Write: "
        "BatchNormalization(ghost_batch_size=4), which counts in the whole batch"
    )


def test_synchronized_makes_no_difference():
    for synchronized in (True, False):
        layer = kte.layers.BatchNormalization(synchronized=synchronized)
        assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


# Keras 3 wants one number already when the layer is made.
@pytest.mark.parametrize("axis", [0, -4, 4, *([[1, 2]] if IS_KERAS2 else [])])
def test_an_axis_that_cannot_be_that_of_the_channels(axis):
    layer = kte.layers.BatchNormalization(axis=axis)
    with pytest.raises(kte.errors.ArgumentError) as error:
        layer.build((None, 5, 6, 3))
    assert str(error.value) == (
        "BatchNormalization: `axis` must be the one axis of the channels, from 1 to 3 or -1 for inputs of shape "
        f"(None, 5, 6, 3); got {axis!r}. Write axis=-1."
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4,), (4, 5, 3)])
def test_a_mask_of_another_rank(shape, training):
    layer = kte.layers.BatchNormalization()
    with pytest.raises(kte.errors.ArgumentError) as error:
        layer(tensor(np.ones((4, 5, 3), "float32")), training=training, mask=tensor(np.ones(shape, bool)))
    assert f"`mask` must be of the shape of the inputs without axis 2; got shape {shape}" in str(error.value)
    assert "for inputs of shape (4, 5, 3). Write layer(x, mask=keep) with one value for every place of x" in str(
        error.value
    )
