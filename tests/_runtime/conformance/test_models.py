import keras
import numpy as np
import pytest

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.training.compile_options import expects_logits, output_activations

models = _runtime.models


def test_calls_are_those_of_the_graph(plain):
    calls = models.calls(plain)
    by_name = {call.layer.name: call for call in calls if call.inputs}
    assert by_name.keys() == {"hidden", "out"}
    assert by_name["out"].inputs[0] is by_name["hidden"].outputs[0]
    assert {call.training for call in calls} == {None}


def test_clone_takes_the_layers_that_it_is_given(plain):
    def copy_of(layer):
        return type(layer).from_config({**layer.get_config(), "name": f"{layer.name}_2"})

    copied = models.clone(plain, copy_of)
    assert [layer.name for layer in copied.layers if layer.weights] == ["hidden_2", "out_2"]
    assert copied.output_shape == plain.output_shape
    assert not models.is_compiled(copied)


@pytest.mark.parametrize(
    ("layer", "draws"), [(keras.layers.Dropout(0.5), True), (keras.layers.Dense(1), False)], ids=["Dropout", "Dense"]
)
def test_draws_random_numbers(layer, draws):
    assert models.draws_random_numbers(layer) is draws


@pytest.mark.parametrize("from_logits", [True, False])
def test_expects_logits(from_logits):
    assert expects_logits(keras.losses.BinaryCrossentropy(from_logits=from_logits)) is from_logits


def test_a_loss_without_logits_expects_none():
    assert not expects_logits(keras.losses.MeanSquaredError())


def test_flatten_layers_goes_into_models():
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="inside")], name="inner")
    outer = keras.Sequential([keras.Input((2,)), inner, keras.layers.Dense(1, name="outside")])
    names = [layer.name for layer in models.flatten_layers(outer)]
    assert {"inner", "inside", "outside"} <= set(names)
    assert outer.name not in names
    assert names.index("inside") < names.index("outside")


def test_inputs_and_outputs(plain):
    inputs, outputs = models.inputs_and_outputs(plain)
    assert (_runtime.tree.flatten(inputs)[0].shape[1:], _runtime.tree.flatten(outputs)[0].shape[1:]) == ((2,), (1,))

    class Subclassed(keras.Model):
        def call(self, x):
            return x

    assert models.inputs_and_outputs(Subclassed()) is None


def test_is_compiled(plain):
    assert models.is_compiled(plain)
    assert not models.is_compiled(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))


def test_losses_and_metrics(plain, rows):
    plain.evaluate(*rows, verbose=0)  # Keras 2 makes them when it first computes
    assert models.losses(plain) == [("out", "float32", "MeanSquaredError", "float32")]
    assert ("mae", "float32") in {(name, dtype) for name, _, dtype in models.metrics(plain)}


def test_output_activations_and_softmaxes():
    inputs = keras.Input((2,))
    hidden = keras.layers.Softmax(name="soft")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="sigmoid", name="last")(hidden))
    ((_, layer, activation),) = output_activations(model)
    assert (layer, activation) == ("last", "sigmoid")
    assert models.softmaxes(model) == [("soft", "Softmax", "float32")]


def test_path_of_names_the_layer(plain):
    paths = [models.path_of(variable) for variable in plain.trainable_variables]
    assert ["hidden" in path for path in paths] == [True, True, False, False]
    assert len(set(paths)) == 4


def test_weights_of_the_fixture_are_finite(trained):
    assert all(np.isfinite(weights).all() for weights in trained.get_weights())


def test_a_plain_model_is_keras_own():
    inputs = keras.Input((2,))
    made = models.plain_model(inputs, keras.layers.Dense(1)(inputs), "some")
    assert (made.name, isinstance(made, keras.Model), made.output_shape) == ("some", True, (None, 1))


def test_layers_of_keras_are_no_repeated_blocks(plain):
    assert models.repeated_blocks(plain) == []
