"""Existing models with our layers: the same predictions, the same training, and nothing touched that must stay."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

# A layer computes the same everywhere, and JAX is the fastest here; test_layers.py and some below run on TensorFlow.
pytestmark = pytest.mark.gate_on("keras3_jax")

RNG = np.random.default_rng(7)
IMAGES = (load_digits().images[:64, ..., None] / 16).astype("float32")
LABELS = load_digits().target[:64].astype("int32")
# Two float32 programs that add in another order.
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def unlike_new(model):
    """Return `model` with biases and moving averages as after some training."""
    model.set_weights([w + 0.3 * np.abs(RNG.normal(size=w.shape)).astype(w.dtype) for w in model.get_weights()])
    return model


def of(*layers, shape=(8, 8, 1)):
    """Return a functional model of layers in a row."""
    inputs = keras.Input(shape)
    x = inputs
    for layer in layers:
        x = layer(x)
    return unlike_new(keras.Model(inputs, x))


def classifier():
    """Return a small network with all that `for_tpu` changes."""
    return of(
        keras.layers.Conv2D(6, 3, strides=2),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Conv2D(6, 2),
        keras.layers.BatchNormalization(scale=False),
        keras.layers.Flatten(),
        keras.layers.Dense(12),
        keras.layers.BatchNormalization(center=False),
        keras.layers.Dense(10),
    )


def biases(model):
    return [layer.name for layer in model.layers if getattr(layer, "use_bias", False)]


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_predictions_are_those_of_the_model():
    model = classifier()
    changed = kte.layers.for_tpu(model)
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)
    kinds = [type(layer) for layer in changed.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert kinds == [kte.layers.BatchNormalization] * 3
    assert biases(changed) == [model.layers[-1].name]


def test_training_is_that_of_the_model():
    def history(model):
        model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(IMAGES, LABELS, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]

    model = classifier()
    changed = kte.layers.for_tpu(model)
    np.testing.assert_allclose(history(changed), history(model), rtol=1e-3)  # three epochs let rounding grow


def test_predictions_in_bfloat16_are_those_of_the_model():
    with kte.precision.policy_scope("mixed_bfloat16"):
        model = classifier()
        changed = kte.layers.for_tpu(model)
    expected = model.predict(IMAGES, verbose=0).astype("float32")
    found = changed.predict(IMAGES, verbose=0).astype("float32")
    # bfloat16 has 8 bits, and each of six layers rounds.
    np.testing.assert_allclose(found, expected, rtol=6 * 2**-8, atol=6 * 2**-8 * np.abs(expected).max())


def test_the_model_itself_stays_as_it_was():
    model = classifier()
    before = model.get_weights()
    changed = kte.layers.for_tpu(model)
    changed.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    changed.fit(IMAGES, LABELS, verbose=0)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


@pytest.mark.parametrize(
    "kind",
    [
        lambda: keras.layers.Conv2DTranspose(3, 2),
        lambda: keras.layers.SeparableConv2D(3, 2),
        lambda: keras.layers.DepthwiseConv2D(2),
        lambda: keras.layers.Dense(3),
        lambda: keras.layers.Conv2D(3, 2, activation="linear"),
    ],
)
def test_every_kind_of_bias_before_a_normalisation_goes(kind):
    model = of(kind(), keras.layers.BatchNormalization())
    changed = kte.layers.for_tpu(model)
    assert not biases(changed)
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


def frozen():
    layer = keras.layers.BatchNormalization()
    layer.trainable = False
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [keras.layers.Conv2D(3, 2, activation="relu"), keras.layers.BatchNormalization()],
        lambda: [keras.layers.Conv2D(3, 2), keras.layers.ReLU(), keras.layers.BatchNormalization()],
        lambda: [keras.layers.Conv2D(3, 2, bias_regularizer="l2"), keras.layers.BatchNormalization()],
        lambda: [keras.layers.Conv2D(3, 2, bias_constraint="non_neg"), keras.layers.BatchNormalization()],
        lambda: [keras.layers.Conv2D(3, 2, activity_regularizer="l2"), keras.layers.BatchNormalization()],
        lambda: [keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization(axis=1)],
        lambda: [keras.layers.Conv2D(3, 2), frozen()],
    ],
    ids=["activation", "a layer between", "regulariser", "constraint", "activity", "other axis", "frozen"],
)
def test_a_bias_that_matters_stays(layers):
    model = of(*layers())
    changed = kte.layers.for_tpu(model)
    assert len(biases(changed)) == 1
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


class NeverLearns(keras.layers.BatchNormalization):
    """A subclass may do anything: this one has its moving averages always."""

    def call(self, inputs, **kwargs):
        return super().call(inputs, training=False)


def test_a_bias_before_a_normalisation_of_the_users_own_stays():
    assert len(biases(kte.layers.for_tpu(of(keras.layers.Conv2D(3, 2), NeverLearns())))) == 1


def test_a_bias_before_a_normalisation_that_is_called_for_inference_stays():
    inputs = keras.Input((8, 8, 1))
    seen = keras.layers.Conv2D(3, 2)(inputs)
    model = keras.Model(inputs, keras.layers.BatchNormalization()(seen, training=False))
    assert len(biases(kte.layers.for_tpu(model))) == 1


def test_biases_of_a_model_inside_that_is_called_for_inference_stay():
    inner = of(keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization())
    inputs = keras.Input((8, 8, 1))
    model = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs, training=False)))
    assert len(kte.layers.for_tpu(model).weights) == len(model.weights)


def test_an_adapted_normalisation_of_images_is_kept():
    adapted = keras.layers.Normalization(axis=None)
    adapted.adapt(IMAGES * 3 + 5)
    model = of(adapted, keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization())
    adapted.adapt(IMAGES * 3 + 5)
    changed = kte.layers.for_tpu(model)
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


def test_a_mask_that_reaches_a_normalisation_does_no_harm():
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Dense(8)(keras.layers.Embedding(10, 4, mask_zero=True)(ids))
    model = unlike_new(keras.Model(ids, keras.layers.BatchNormalization()(x)))
    changed = kte.layers.for_tpu(model)
    assert not biases(changed)
    some = RNG.integers(0, 10, (5, 6))
    np.testing.assert_allclose(changed.predict(some, verbose=0), model.predict(some, verbose=0), **ROUNDING)


def test_a_lambda_is_kept():
    model = of(keras.layers.Lambda(lambda x: 2 * x), keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization())
    changed = kte.layers.for_tpu(model)
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


def test_a_bias_with_another_user_stays():
    inputs = keras.Input((8, 8, 1))
    seen = keras.layers.Conv2D(3, 2)(inputs)
    outputs = keras.layers.Add()([keras.layers.BatchNormalization()(seen), seen])
    assert len(biases(kte.layers.for_tpu(keras.Model(inputs, outputs)))) == 1


def test_a_bias_that_is_an_output_stays():
    inputs = keras.Input((8, 8, 1))
    seen = keras.layers.Conv2D(3, 2)(inputs)
    model = keras.Model(inputs, [keras.layers.BatchNormalization()(seen), seen])
    assert len(biases(kte.layers.for_tpu(model))) == 1


def test_layers_that_are_shared_stay_shared():
    inputs = [keras.Input((8, 8, 1)), keras.Input((8, 8, 1))]
    convolution, normalisation = keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization()
    model = keras.Model(inputs, keras.layers.Add()([normalisation(convolution(one)) for one in inputs]))
    unlike_new(model)
    changed = kte.layers.for_tpu(model)
    assert len(changed.weights) == len(model.weights)
    pair = [IMAGES, IMAGES[::-1]]
    np.testing.assert_allclose(changed.predict(pair, verbose=0), model.predict(pair, verbose=0), **ROUNDING)


def test_models_inside_models_are_changed_too():
    inner = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization()], name="inner"
    )
    model = of(inner, keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization())
    changed = kte.layers.for_tpu(model)
    assert len(model.weights) - len(changed.weights) == 2
    np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


def test_names_stay_so_that_data_in_a_dict_finds_its_input():
    inputs = {"left": keras.Input((4,), name="left"), "right": keras.Input((4,), name="right")}
    outputs = keras.layers.Subtract(name="gap")([inputs["left"], inputs["right"]])
    model = keras.Model(inputs, keras.layers.BatchNormalization(name="scaled")(outputs), name="difference")
    changed = kte.layers.for_tpu(model)
    assert changed.name == "difference"
    assert [layer.name for layer in changed.layers] == [layer.name for layer in model.layers]
    data = {"right": np.ones((2, 4)), "left": 3 * np.ones((2, 4))}
    np.testing.assert_allclose(changed.predict(data, verbose=0), model.predict(data, verbose=0), rtol=1e-6)


def test_a_tpu_model_and_a_sequential_come_back_as_models_that_from_model_takes():
    model = classifier()
    for one in (kte.TPUModel.from_model(model), keras.Sequential([keras.Input((8, 8, 1)), *model.layers[1:]])):
        changed = kte.TPUModel.from_model(kte.layers.for_tpu(one, ghost_batch_size=8))
        sizes = [
            layer.ghost_batch_size for layer in changed.layers if isinstance(layer, keras.layers.BatchNormalization)
        ]
        assert sizes == [8, 8, 8]
        np.testing.assert_allclose(changed.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), **ROUNDING)


def test_a_layer_of_the_users_own_is_left_to_the_user():
    class Mine(keras.layers.BatchNormalization):
        """A subclass may do anything."""

    changed = kte.layers.for_tpu(of(Mine()))
    assert type(changed.layers[-1]) is Mine


def test_what_was_done_is_logged_in_one_line(caplog):
    with caplog.at_level(logging.INFO, logger="keras_tpu_ext"):
        kte.layers.for_tpu(classifier())
    assert caplog.messages == ["for_tpu: 3 BatchNormalization replaced, 3 biases left out"]


def test_what_is_no_layer_is_refused():
    with pytest.raises(ArgumentError, match=r"`model` must be a Keras layer, or .*got list\. Write keras\.Seq"):
        kte.layers.for_tpu([])
    with pytest.raises(ArgumentError, match="got 'open', which is not built"):
        kte.layers.for_tpu(keras.Sequential([keras.layers.Dense(1)], name="open"))


class Forgetful(keras.layers.Dense):
    """A layer whose config has what its `__init__` does not take."""

    def get_config(self):
        return {**super().get_config(), "size": 3}


class WithConfig(keras.Model):
    """A functional model with a config of its own."""

    def __init__(self, units, **options):
        self.units = units
        inputs = keras.Input((5,))
        super().__init__(inputs, Forgetful(units)(inputs), **options)

    def get_config(self):
        return {"units": self.units, "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def test_a_layer_that_its_config_cannot_make_is_named():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, Forgetful(2, name="mine")(inputs))
    with pytest.raises(
        ArgumentError, match=r"'mine', a Forgetful: .*size.*Write with kte\.strategy_scope\(for_tpu=True\)"
    ):
        kte.layers.for_tpu(model)


def test_a_model_whose_config_is_not_all_is_copied_layer_by_layer():
    class Partial(keras.Model):
        def __init__(self, units, **options):
            inputs = keras.Input((5,))
            super().__init__(inputs, keras.layers.Dense(units)(inputs), **options)

        def get_config(self):
            return {}

        @classmethod
        def from_config(cls, config):
            return cls(**config)

    model, x = unlike_new(Partial(3)), RNG.normal(size=(4, 5)).astype("float32")
    np.testing.assert_allclose(
        kte.layers.for_tpu(model).predict(x, verbose=0), model.predict(x, verbose=0), **ROUNDING
    )


def test_a_model_with_a_config_of_its_own_keeps_its_class():
    model = unlike_new(WithConfig(3, name="whole"))
    found = kte.layers.for_tpu(model)
    assert type(found).__name__ == "WithConfig"
    assert (found.name, found is model) == ("whole", False)
    x = RNG.normal(size=(4, 5)).astype("float32")
    np.testing.assert_allclose(found.predict(x, verbose=0), model.predict(x, verbose=0), **ROUNDING)


def test_what_is_frozen_stays_frozen():
    model = of(keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(2), shape=(4,))
    model.layers[-1].trainable = False
    trained = [weight.shape for weight in kte.layers.for_tpu(model).trainable_weights]
    assert trained == [(4, 3), (3,), (3,)]  # of the first layer no bias


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 has no LoRA")
def test_lora_comes_along():
    model = of(keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(2), shape=(4,))
    for layer in (model.layers[1], model.layers[3]):
        layer.enable_lora(2)
    model = unlike_new(model)
    found, x = kte.layers.for_tpu(model), RNG.normal(size=(4, 4)).astype("float32")
    assert [weight.shape for weight in found.trainable_weights] == [
        *((4, 2), (2, 3), (3,), (3,)),
        *((2,), (3, 2), (2, 2)),
    ]
    np.testing.assert_allclose(found.predict(x, verbose=0), model.predict(x, verbose=0), **ROUNDING)


@pytest.mark.runtimes("keras2_tf")
@pytest.mark.gate_on("keras2_tf221")
def test_a_layer_and_dropout_need_keras_3():
    with pytest.raises(ArgumentError, match=r"for_tpu of a layer.*needs Keras 3; this is Keras 2\. Write: kte"):
        kte.layers.for_tpu(keras.layers.Dense(1))
    with pytest.raises(ArgumentError, match=r"Dropout needs Keras 3.*Write: keras\.layers\.Dropout"):
        kte.layers.Dropout(0.5)
    with pytest.raises(ArgumentError, match=r"for_tpu=True\) needs Keras 3"):
        kte.strategy_scope(require="cpu", for_tpu=True)


def test_a_size_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match=r"for_tpu: `ghost_batch_size` must be an integer.*Write ghost"):
        kte.layers.for_tpu(classifier(), ghost_batch_size=0)
