"""How a `TPUModel` is made, compiled, saved and loaded."""

import contextlib
import copy
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError, FromLogitsWarning
from kind_of_keras import IMPORT_KERAS

pytestmark = [
    pytest.mark.gate_on("keras3_tf", "keras3_jax"),
    pytest.mark.filterwarnings(
        # Keras 3.15 hands its variables to np.array when it saves; numpy 2 wants one more keyword of them.
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
]

EPOCH = {"batch_size": 100, "verbose": 0, "shuffle": False}


@keras.saving.register_keras_serializable("tests")
class Subclassed(kte.TPUModel):
    def __init__(self, units=5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {"units": self.units, "name": self.name}


@keras.saving.register_keras_serializable("tests")
class SubclassedWithGraph(kte.TPUModel):
    def __init__(self, units=5, **kwargs):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(units, activation="tanh")(inputs)
        super().__init__(inputs, keras.layers.Dense(1)(hidden), **kwargs)
        self.units = units

    def get_config(self):
        return {"units": self.units, "name": self.name}


@keras.saving.register_keras_serializable("tests")
class Plain(keras.Model):
    def __init__(self, units=5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {"units": self.units, "name": self.name}


def functional(model_class=kte.TPUModel):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return model_class(inputs, keras.layers.Dense(1)(hidden))


def sequential(*layers):
    return keras.Sequential([keras.Input((6,)), *(layers or (keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)))])


def of_nested_models():
    inputs = keras.Input((6,))
    return kte.TPUModel(inputs, keras.layers.Dense(1)(functional()(inputs)))


def by_keywords():
    inputs = keras.Input((6,))
    return kte.TPUModel(inputs=inputs, outputs=keras.layers.Dense(1)(inputs), name="by_keywords")


KINDS = {
    "functional": functional,
    "by keywords": by_keywords,
    "subclassed": Subclassed,
    "subclassed, with inputs and outputs": SubclassedWithGraph,
    "from a Sequential": lambda: kte.TPUModel.from_model(sequential()),
    "from a functional model": lambda: kte.TPUModel.from_model(functional(keras.Model)),
    "from a subclassed model": lambda: kte.TPUModel.from_model(Plain()),
    "of nested models": of_nested_models,
}
IN_GATE = {
    "functional": pytest.mark.gate_on("keras3_jax"),
    "subclassed": pytest.mark.gate_on("keras3_tf", "keras3_jax"),
    "from a Sequential": pytest.mark.gate_on("keras3_jax"),
    "of nested models": pytest.mark.gate_on("keras3_jax"),
}


# -- making ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=IN_GATE.get(kind, pytest.mark.exhaustive)) for kind in KINDS]
)
def test_every_kind_trains_on_replicas_as_one_device_does(scope3, data, kind):
    with scope3:
        ours = KINDS[kind]()
        ours.compile(keras.optimizers.SGD(0.3), "mse")
    assert isinstance(ours, kte.TPUModel)
    assert _runtime.devices.num_replicas(ours) == 3
    ours.predict(data.x[:8], verbose=0)  # builds the subclassed ones
    plain = keras.Sequential([keras.Input((6,)), *[copy_of(layer) for layer in dense_layers(ours)]])
    plain.compile(keras.optimizers.SGD(0.3), "mse")
    plain.set_weights(ours.get_weights())
    expected = plain.fit(data.x[:100], data.y[:100], **EPOCH).history["loss"]
    assert ours.fit(data.x[:100], data.y[:100], **EPOCH).history["loss"] == pytest.approx(expected, rel=1e-5)
    for want, got in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)  # single small weights: 1e-5 of the whole norm


def dense_layers(model):
    """Return the layers in the order in which data passes: that of their weights' creation."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    order = [id(weight) for weight in model.weights]
    return sorted(layers, key=lambda layer: order.index(id(layer.kernel)))


def copy_of(layer):
    return keras.layers.Dense.from_config(layer.get_config())


@pytest.mark.parametrize("order", [("functional", "subclassed"), ("subclassed", "functional")])
def test_functional_use_and_subclassing_do_not_disturb_each_other(order):
    bases = [cls.__bases__ for cls in kte.TPUModel.__mro__]

    class Mine(kte.TPUModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    for kind in order * 2:
        model = functional() if kind == "functional" else Mine()
        assert model(np.ones((3, 6), "float32")).shape == (3, 1 if kind == "functional" else 2)
    assert [cls.__bases__ for cls in kte.TPUModel.__mro__] == bases
    assert isinstance(Mine(), kte.TPUModel)


@pytest.mark.gate_on("keras3_jax")
def test_dicts_of_inputs_and_outputs(scope3, data):
    def build(model_class):
        a, b = keras.Input((6,), name="a"), keras.Input((1,), name="b")
        hidden = keras.layers.Concatenate()([a, b])
        return model_class({"a": a, "b": b}, {"p": keras.layers.Dense(1, name="p")(hidden), "q": a[:, :1] + b})

    plain = build(keras.Model)
    with scope3:
        ours = build(kte.TPUModel)
    ours.set_weights(plain.get_weights())
    x = {"a": data.x[:100], "b": data.y[:100]}
    y = {"p": data.y[:100], "q": data.y[:100]}
    results = []
    for model in (plain, ours):
        model.compile("sgd", {"p": "mse", "q": "mae"})
        results.append((model.fit(x, y, **EPOCH).history["loss"], model.predict(x, verbose=0)["q"]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-6)


@pytest.mark.parametrize("make", [sequential, lambda: functional(keras.Model), Plain])
def test_from_model_shares_the_weights(make, data):
    model = make()
    ours = kte.TPUModel.from_model(model)
    ours.predict(data.x[:8], verbose=0)  # builds the subclassed ones
    assert ours.name == model.name
    assert [id(v) for v in ours.trainable_variables] == [id(v) for v in model.trainable_variables]
    ours.compile("sgd", "mse")
    ours.fit(data.x, data.y, **EPOCH)
    np.testing.assert_allclose(model.predict(data.x, verbose=0), ours.predict(data.x, verbose=0), rtol=1e-5)


def test_from_model_takes_a_sequential_that_was_built_by_shape():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 6))
    assert kte.TPUModel.from_model(model).output_shape == (None, 1)


def test_from_model_says_what_is_missing():
    with pytest.raises(ArgumentError) as error:
        kte.TPUModel.from_model(keras.Sequential([keras.layers.Dense(1)], name="mine"))
    assert str(error.value) == (
        "from_model: `model` must be a model that knows its input shape; got 'mine', which is not built. "
        "Write keras.Sequential([keras.Input((28, 28, 1)), ...]), or call model.build(shape) first."
    )
    with pytest.raises(ArgumentError) as error:
        kte.TPUModel.from_model(3)
    assert str(error.value) == (
        "from_model: `model` must be a Keras model; got int. Write TPUModel.from_model(keras.Sequential([...]))."
    )


# -- compiling ------------------------------------------------------------------------------------------------


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_compiling_after_the_block(scope3, data):
    with scope3:
        model = functional()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(data.x[:100], data.y[:100], **EPOCH)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 1
    assert _runtime.devices.num_replicas(model) == 3


def ends_with(*last, outputs=1):
    inputs = keras.Input((6,))
    ends = []
    for i in range(outputs):
        end = inputs
        for layer in last:
            end = layer(i)(end)
        ends.append(end)
    return kte.TPUModel(inputs, ends[0] if outputs == 1 else ends)


def softmax(i):
    return keras.layers.Dense(3, activation="softmax", name=f"end_{i}")


def sigmoid(i):
    return keras.layers.Dense(3, activation="sigmoid", name=f"end_{i}")


def linear(i):
    return keras.layers.Dense(3, name=f"{'dense' if i is None else 'end'}_{i}")


def logits():
    return keras.losses.CategoricalCrossentropy(from_logits=True)


TOLD = {
    "an instance": lambda: (ends_with(softmax), logits()),
    "sparse": lambda: (ends_with(softmax), keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    "a list": lambda: (ends_with(softmax, outputs=2), [None, logits()]),
    "a dict": lambda: (ends_with(softmax, outputs=2), {"end_0": "mse", "end_1": logits()}),
    "one for all": lambda: (ends_with(softmax, outputs=2), logits()),
    "a Softmax layer": lambda: (ends_with(linear, lambda _: keras.layers.Softmax()), logits()),
    "an Activation layer": lambda: (ends_with(linear, lambda _: keras.layers.Activation("softmax")), logits()),
    "sigmoid": lambda: (ends_with(sigmoid), keras.losses.BinaryCrossentropy(from_logits=True)),
    "from_model": lambda: (kte.TPUModel.from_model(sequential(softmax(0))), logits()),
}
NOT_TOLD = {
    "probabilities": lambda: (ends_with(softmax), keras.losses.CategoricalCrossentropy()),
    "a name": lambda: (ends_with(softmax), "categorical_crossentropy"),
    "logits": lambda: (ends_with(linear), logits()),
    "another output": lambda: (
        kte.TPUModel(i := keras.Input((6,)), [softmax(0)(i), linear(1)(i)]),
        ["categorical_crossentropy", logits()],
    ),
    "softmax within": lambda: (ends_with(lambda _: keras.layers.Dense(3, "softmax"), linear), logits()),
    "no logits in the loss": lambda: (ends_with(softmax), keras.losses.MeanSquaredError()),
    "subclassed": lambda: (Subclassed(), logits()),
    "no loss": lambda: (ends_with(softmax), None),
}


@pytest.mark.parametrize("case", TOLD)
def test_probabilities_that_meet_from_logits_are_told(case):
    model, loss = TOLD[case]()
    with pytest.warns(FromLogitsWarning, match="has from_logits=True") as told:
        model.compile("sgd", loss)
    assert len(told) == (2 if case == "one for all" else 1)
    assert told[0].filename == __file__


def test_the_warning_names_layer_loss_and_cure():
    with pytest.warns(FromLogitsWarning) as told:
        ends_with(softmax).compile("sgd", logits())
    (warning,) = [one for one in told if one.category is FromLogitsWarning]
    assert warning.message.args[0] == (
        "The output of layer 'end_0' is a softmax, but its loss CategoricalCrossentropy has from_logits=True and "
        "applies softmax once more, so the model may hardly learn. "
        "Write CategoricalCrossentropy(from_logits=False), or take the softmax out of the layer."
    )


def test_a_sequential_model_of_the_scope_is_told_too():
    with kte.strategy_scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax", name="end")])
        with pytest.warns(FromLogitsWarning, match="The output of layer 'end' is a softmax") as told:
            model.compile("sgd", logits())
    assert told[0].filename == __file__


@pytest.mark.parametrize("case", NOT_TOLD)
def test_there_is_no_false_alarm(case):
    model, loss = NOT_TOLD[case]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", loss)


# -- saving ---------------------------------------------------------------------------------------------------

JAX = pytest.mark.gate_on("keras3_jax")  # where it is cheapest
IN_GATE_TOO = {
    "functional": JAX,
    "subclassed": JAX,
    "from a subclassed model": JAX,
}
SAVED = {
    "functional": functional,
    "subclassed": Subclassed,
    "subclassed, with inputs and outputs": lambda: SubclassedWithGraph(7),
    "from a subclassed model": lambda: kte.TPUModel.from_model(Plain(3)),
    "of nested models": of_nested_models,
}


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        pytest.param(kind, inside, id=f"{kind}, {'inside' if inside else 'outside'} the scope", marks=marks)
        for number, kind in enumerate(SAVED)
        for inside, marks in (
            (number % 2 == 0, IN_GATE_TOO.get(kind, pytest.mark.exhaustive)),
            (number % 2 == 1, pytest.mark.exhaustive),
        )
    ],
)
def test_it_saves_and_loads_as_itself_and_training_goes_on(scope3, data, tmp_path, kind, inside):
    with scope3:
        model = SAVED[kind]()
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(data.x[:100], data.y[:100], **EPOCH)
    path = tmp_path / "model.keras"
    model.save(path)
    with scope3 if inside else contextlib.nullcontext():
        loaded = keras.saving.load_model(path, safe_mode=True)
    assert type(loaded) is type(model)
    assert _runtime.devices.num_replicas(loaded) == (3 if inside else 1)
    for want, got in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    states = [[np.asarray(v) for v in m.optimizer.variables] for m in (loaded, model)]
    keras.tree.map_structure(np.testing.assert_array_equal, *states)
    # One more step: equal only if Adam's moments and its step came back.
    histories = [m.fit(data.x[:100], data.y[:100], epochs=2, **EPOCH).history for m in (model, loaded)]
    for name, values in histories[0].items():
        assert histories[1][name] == pytest.approx(values, rel=1e-5)
    assert int(keras.ops.convert_to_numpy(loaded.optimizer.iterations)) == 3


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.filterwarnings("ignore:Compiled the loaded model, but the compiled metrics have yet:UserWarning")
def test_an_h5_file_loads_as_itself(scope3, data, tmp_path):
    with scope3:
        model = functional()
        model.compile("adam", keras.losses.MeanSquaredError())  # Keras 3 does not read the name "mse" again
    model.fit(data.x[:100], data.y[:100], **EPOCH)
    model.save(str(tmp_path / "model.h5"))
    loaded = keras.models.load_model(str(tmp_path / "model.h5"))
    assert type(loaded) is type(model)
    np.testing.assert_allclose(loaded.predict(data.x, verbose=0), model.predict(data.x, verbose=0), rtol=1e-5)
    assert loaded.evaluate(data.x, data.y, verbose=0) == pytest.approx(model.evaluate(data.x, data.y, verbose=0))


@pytest.mark.parametrize(
    ("make", "inside"),
    [
        pytest.param(functional, False, marks=pytest.mark.gate_on("keras3_jax")),
        pytest.param(functional, True, marks=pytest.mark.exhaustive),
        pytest.param(lambda: kte.TPUModel.from_model(Plain(3)), True, marks=pytest.mark.gate_on("keras3_jax")),
        pytest.param(lambda: kte.TPUModel.from_model(Plain(3)), False, marks=pytest.mark.exhaustive),
    ],
)
def test_to_keras_gives_a_plain_model_of_the_same_weights(scope3, data, tmp_path, make, inside):
    with scope3:
        model = make()
        model.compile("sgd", "mse")
    model.fit(data.x, data.y, **EPOCH)
    with scope3 if inside else contextlib.nullcontext():
        plain = model.to_keras()
    assert not isinstance(plain, kte.TPUModel)
    assert type(plain).__name__ in ("Functional", "Plain")
    expected = model.predict(data.x, verbose=0)
    # An output is a sum of numbers around 1, in an order that depends on the CPU: one near 0 is as exact as they are.
    rounding = {"rtol": 1e-5, "atol": 4 * np.finfo("float32").eps}
    np.testing.assert_allclose(plain.predict(data.x[:99], verbose=0), expected[:99], **rounding)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(loaded.predict(data.x, verbose=0), expected, **rounding)
    model.fit(data.x, data.y, **EPOCH)
    np.testing.assert_array_equal(plain.get_weights()[0], model.get_weights()[0])


def test_a_subclass_has_no_plain_model_and_says_what_to_write():
    with pytest.raises(kte.errors.ArgumentError) as error:
        Subclassed().to_keras()
    assert str(error.value) == (
        "to_keras: `self` must be a model of inputs and outputs; got the subclassed Subclassed. "
        "Write class Subclassed(keras.Model), which strategy_scope() makes exact as well."
    )


@pytest.mark.exhaustive
def test_it_loads_in_a_fresh_process(scope3, data, tmp_path):
    with scope3:
        model = functional()
        model.compile("adam", "mse")
    model.fit(data.x[:100], data.y[:100], **EPOCH)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", data.x)
    program = f"""
        import sys, numpy as np, keras_tpu_ext as kte
        {IMPORT_KERAS}
        folder = sys.argv[1]
        model = keras.saving.load_model(folder + "/model.keras")
        assert type(model).__name__ == "TPUModel" and isinstance(model, kte.TPUModel), type(model)
        np.save(folder + "/predicted.npy", model.predict(np.load(folder + "/x.npy"), verbose=0))
    """
    root = Path(kte.__file__).parents[1]
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), tmp_path], check=True, cwd=root)
    np.testing.assert_allclose(np.load(tmp_path / "predicted.npy"), model.predict(data.x, verbose=0), rtol=1e-5)


@keras.saving.register_keras_serializable("tests")
class WithItsOwnCompile(Subclassed):
    def compile(self, generator_optimizer):
        super().compile(generator_optimizer, "mse")


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: it says so in its log")
def test_a_model_with_a_compile_of_its_own_loads_uncompiled_as_in_keras(tmp_path, data):
    model = WithItsOwnCompile()
    model.compile("sgd")
    model.fit(data.x[:8], data.y[:8], **EPOCH)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="`compile\\(\\)` method is custom"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("functional", "subclassed") else pytest.param(kind, marks=pytest.mark.exhaustive)
        for kind in SAVED
    ],
)
def test_config_copies_and_pickles(data, kind):
    model = SAVED[kind]()
    model.compile("sgd", "mse")
    model.fit(data.x[:8], data.y[:8], **EPOCH)
    remade = type(model).from_config(model.get_config())
    remade.predict(data.x[:8], verbose=0)  # builds the subclassed ones
    assert type(remade) is type(model)
    assert [w.shape for w in remade.get_weights()] == [w.shape for w in model.get_weights()]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is type(model)
        assert twin is not model
        np.testing.assert_array_equal(twin.get_weights()[0], model.get_weights()[0])


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: it clones any functional model to a Model")
def test_cloning_gives_a_tpu_model_with_weights_of_its_own():
    model = functional()
    clone = keras.models.clone_model(model)
    assert isinstance(clone, kte.TPUModel)
    assert not {id(v) for v in clone.variables} & {id(v) for v in model.variables}


def test_summary_and_names():
    lines = []
    model = functional()
    model.summary(print_fn=lines.append)
    assert "dense" in "\n".join(lines)
    assert "Total params" in "\n".join(lines)
    assert type(model).__name__ == "TPUModel"
    assert keras.saving.get_registered_name(type(model)) == "keras_tpu_ext>TPUModel"
