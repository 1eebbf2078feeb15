"""Plain Keras models inside a scope: the step of `TPUModel`, and otherwise what they are."""

import contextlib
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from closeness import assert_close
from keras_tpu_ext import _runtime
from kind_of_keras import IS_KERAS2

ON_JAX_IN_GATE = pytest.mark.gate_on("keras3_jax")
ON_JAX = not IS_KERAS2 and keras.backend.backend() == "jax"


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


class ByShape(keras.Model):
    """Becomes functional in its own `__init__`."""

    def __init__(self, units=4):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(units, activation="tanh")(inputs)
        super().__init__(inputs=inputs, outputs=keras.layers.Dense(1)(hidden))


class OwnCompile(Subclassed):
    def compile(self, rate):
        super().compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])


class ByName(Subclassed):
    """Calls Keras's methods by the name of their class."""

    def compile(self, rate):
        keras.Model.compile(self, keras.optimizers.SGD(rate), "mse", metrics=["mae"])

    def fit(self, *args, **kwargs):
        return keras.Model.fit(self, *args, **kwargs)

    def predict(self, *args, **kwargs):
        return keras.Model.predict(self, *args, **kwargs)


class OwnSequential(keras.Sequential):
    pass


def layers():
    return [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]


def inputs_and_outputs():
    inputs = keras.Input((6,))
    hidden, out = layers()
    return inputs, out(hidden(inputs))


def functional():
    return keras.Model(*inputs_and_outputs(), name="named")


KINDS = {
    "functional": functional,
    "sequential": lambda: keras.Sequential([keras.layers.InputLayer((6,)), *layers()]),
    "unbuilt sequential": lambda: keras.Sequential(layers()),
    "own sequential": lambda: OwnSequential(layers()),
    "subclassed": Subclassed,
    "by shape": ByShape,
}


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def trained(model, data):
    """Return what a kernel prints: 103 rows by 32, 75 to validate with, and the predictions."""
    history = model.fit(
        data.x,
        data.y,
        batch_size=32,
        epochs=2,
        validation_data=(data.x[:75], data.y[:75]),
        shuffle=False,
        verbose=0,
    ).history
    return {**history, "predicted": model.predict(data.x, batch_size=50, verbose=0)}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert_close(got[name], values, message=name)


@pytest.fixture
def scope3():
    return kte.strategy_scope(require="cpu", replicas=3)


def seeded(build):
    keras.utils.set_random_seed(1)
    return build()


IN_GATE = {
    "functional": ("keras2_tf221",),
    "unbuilt sequential": ("keras3_jax", "keras2_tf215"),
    "subclassed": ("keras3_tf", "keras3_jax"),
    "by shape": ("keras3_jax",),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.gate_on(*IN_GATE[kind]) if kind in IN_GATE else pytest.mark.exhaustive)
        for kind in KINDS
    ],
)
def test_it_trains_as_on_one_device_and_is_what_it_was(data, scope3, kind):
    plain = compiled(seeded(KINDS[kind]))
    with scope3:
        ours = compiled(seeded(KINDS[kind]))
    assert isinstance(ours, type(plain))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(ours), name) == getattr(type(plain), name)
    assert_same(trained(ours, data), trained(plain, data))
    assert ours.count_params() == plain.count_params()
    assert [w.shape for w in ours.weights] == [w.shape for w in plain.weights]


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_compile_takes_what_that_of_tpumodel_takes(data, scope3):
    with scope3:
        model = seeded(functional)
        model.compile("adam", "mse", loss_scale="dynamic", gradient_accumulation_steps=2, steps_per_execution="auto")
    assert np.isfinite(trained(model, data)["loss"]).all()
    assert int(model.optimizer.iterations.numpy()) == 4


@ON_JAX_IN_GATE
@pytest.mark.parametrize("own", [pytest.param(OwnCompile, marks=pytest.mark.exhaustive), ByName])
def test_a_compile_of_ones_own_is_above_ours(data, scope3, own):
    plain = seeded(own)
    plain.compile(0.1)
    with scope3:
        ours = seeded(own)
        ours.compile(0.1)
        got = trained(ours, data)
    assert_same(got, trained(plain, data))


def test_a_compile_past_ours_after_the_block_is_told(data, scope3):
    with scope3:
        model = ByName()
    model.compile(0.1)
    for method in (model.fit, model.evaluate):
        with pytest.raises(kte.errors.ArgumentError, match=r"Write super\(\).compile"):
            method(data.x, data.y, verbose=0)


@pytest.mark.exhaustive
@pytest.mark.skipif(IS_KERAS2, reason="Keras 2 forgets the loss")
def test_compiled_again_without_a_loss_it_shuffles_as_on_one_device(data, scope3):
    def trained_twice(block):
        with block:
            model = compiled(seeded(functional))
            histories = []
            for options in ({}, {"optimizer": keras.optimizers.SGD(0.1)}):
                if options:
                    model.compile(**options)  # Keras goes on with the loss that it has
                keras.utils.set_random_seed(2)
                histories.append(model.fit(data.x, data.y, batch_size=32, verbose=0).history["loss"])
            return histories

    assert_close(trained_twice(scope3), trained_twice(contextlib.nullcontext()))


def test_models_outside_and_the_class_itself_stay(scope3):
    with scope3:
        inside = functional()
    assert not isinstance(functional(), _runtime.TrainStep)
    assert isinstance(inside, _runtime.TrainStep)
    assert "exact" not in keras.Model.fit.__code__.co_filename


def test_exact_false_leaves_keras_as_it_is():
    with kte.strategy_scope(require="cpu", replicas=3, exact=False):
        model = functional()
    assert not isinstance(model, _runtime.TrainStep)
    with pytest.raises(kte.errors.ArgumentError, match=r"`exact` must be True or False; got 'no'"):
        kte.strategy_scope(exact="no")


STOCK = """
import sys, numpy as np
sys.modules["keras_tpu_ext"] = None  # as where it is not installed
if sys.argv[1] == "keras2":
    import tensorflow as tf
    keras = tf.keras
else:
    import keras
x = np.linspace(-1, 1, 42, dtype="float32").reshape(7, 6)
for file in sys.argv[2:]:
    model = keras.models.load_model(file)
    assert type(model).__mro__[1].__module__.startswith(("keras.", "tf_keras."))
    print(float(np.sum(model.predict(x, verbose=0))))
    model.fit(x, x[:, :1], verbose=0)
"""


SAVED = {
    "functional": functional,
    "sequential": KINDS["sequential"],
    "TPUModel": lambda: kte.TPUModel(*inputs_and_outputs()),
    "from_model": lambda: kte.TPUModel.from_model(KINDS["sequential"]()),
}


@pytest.mark.exhaustive
def test_their_files_load_without_this_package_and_with_it(data, scope3, tmp_path):
    models, files, x = [], [], np.linspace(-1, 1, 42, dtype="float32").reshape(7, 6)

    def predicted(model):
        return float(np.sum(model.predict(x, verbose=0)))

    for options in ({}, {"loss_scale": "dynamic", "gradient_accumulation_steps": 2}):
        for kind, build in SAVED.items():
            with scope3:
                models.append(seeded(build))
                models[-1].compile("adam", "mse", **options)
            models[-1].fit(data.x, data.y, verbose=0)
            files.append(str(tmp_path / f"{kind}{len(options)}.keras"))
            models[-1].save(files[-1])
    command = [sys.executable, "-c", STOCK, "keras2" if IS_KERAS2 else "keras3", *files]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    expected = [predicted(model) for model in models]
    assert [float(line) for line in printed.split()] == pytest.approx(expected, rel=1e-5)
    for file, model, value in zip(files, models, expected, strict=True):
        with scope3:
            loaded = keras.models.load_model(file)
        assert type(loaded) is type(model)
        assert loaded._kte.state.accumulation_steps == model._kte.state.accumulation_steps
        assert bool(loaded._kte.state.loss_scaler) == bool(model._kte.state.loss_scaler)
        assert predicted(loaded) == pytest.approx(value, rel=1e-5)
    assert [model._kte.state.accumulation_steps for model in models] == [1] * 4 + [2] * 4
    assert [bool(model._kte.state.loss_scaler) for model in models] == [False] * 4 + [True] * 4


def normalized(dense):
    inputs = keras.Input((6,))
    x = inputs if dense else keras.layers.Conv2D(3, 2)(keras.layers.Reshape((2, 3, 1))(inputs))  # fused on Keras 2
    x = keras.layers.BatchNormalization(momentum=0.5)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: a Sequential is its own functional model")
def test_nothing_else_is_changed_where_nothing_is_asked_for(scope3):
    with scope3:
        model = compiled(keras.Sequential([keras.Input((6,)), *layers()]))
    plain = compiled(keras.Sequential([keras.Input((6,)), *layers()]))
    assert type(model._functional) is type(plain._functional)  # what Keras makes for itself
    config = model.get_compile_config()
    assert config.keys() == plain.get_compile_config().keys()
    assert config["optimizer"].keys() == plain.get_compile_config()["optimizer"].keys()


@pytest.mark.gate_on("keras2_tf221")
@pytest.mark.parametrize("dense", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_batch_normalization_has_the_statistics_of_the_whole_batch(data, scope3, dense):
    plain = compiled(seeded(lambda: normalized(dense)))
    with scope3:
        ours = compiled(seeded(lambda: normalized(dense)))
    assert_same(trained(ours, data), trained(plain, data))
    for got, expected in zip(ours.get_weights(), plain.get_weights(), strict=True):
        assert_close(got, expected)
    assert not any(layer.get_config().get("synchronized") for layer in ours.layers)


def with_objects(model):
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
    return model


def of_layers_outside(scope, model):
    with scope:
        inputs = keras.Input((6,))
        outer = keras.Model(inputs, model(inputs))
        return with_objects(outer)


def compiled_after_the_block(scope, model):
    with scope:
        ours = keras.models.clone_model(model)
    ours.set_weights(model.get_weights())
    return with_objects(ours)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(of_layers_outside, marks=pytest.mark.gate_on("keras3_jax", "keras2_tf")),
        pytest.param(compiled_after_the_block, marks=pytest.mark.exhaustive),
    ],
)
def test_what_was_made_outside_is_taken_in_or_told(data, scope3, make):
    plain = with_objects(seeded(functional))
    if IS_KERAS2:
        with pytest.raises(kte.errors.ScopeError) as error:
            make(scope3, seeded(functional))
        assert str(error.value).endswith(
            "Write: with scope: ... around the lines that make the layers, the optimizer and the metrics."
        )
        return
    assert_same(trained(make(scope3, seeded(functional)), data), trained(plain, data))


def train_one_that_was_made_outside(how, scope, data):
    """Compile or train a model inside `scope`; return it, and what came of training."""
    model = seeded(functional)
    if how == "compiled inside":
        with scope:
            compiled(model)
        return model, trained(model, data)
    compiled(model)
    with scope:
        return model, trained(model, data)


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
@pytest.mark.parametrize("how", [pytest.param("compiled inside", marks=pytest.mark.exhaustive), "fitted inside"])
def test_a_model_that_was_made_outside_moves_in_or_is_told(data, scope3, how):
    expected = trained(compiled(seeded(functional)), data)
    if IS_KERAS2:
        with pytest.raises(kte.errors.ScopeError, match=r"'named' was made outside the block.*clone_model\(model\)"):
            train_one_that_was_made_outside(how, scope3, data)
        return
    model, got = train_one_that_was_made_outside(how, scope3, data)
    assert_same(got, expected)
    assert kte._runtime.devices.num_replicas(model) == 3


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 refuses such a model")
@pytest.mark.gate_on("keras3_jax")
def test_a_model_that_was_made_outside_scales_its_loss_as_before(data, scope3):
    with kte.precision.policy_scope("mixed_float16"):
        scaling, plain = seeded(functional), seeded(functional)
        scaling.compile("sgd", "mse")
        scaling.optimizer.build(scaling.trainable_variables)
        scaling.optimizer.dynamic_scale.assign(64.0)
        plain.compile("sgd", "mse", auto_scale_loss=False)
    with scope3:
        for model in (scaling, plain):
            model.fit(data.x[:6], data.y[:6], verbose=0)
    assert float(keras.ops.convert_to_numpy(scaling.optimizer.dynamic_scale)) == 64.0
    assert not any(model._kte.state.loss_scaler for model in (scaling, plain))


@pytest.mark.gate_on("keras3_tf", "keras2_tf215")
def test_a_model_that_is_first_called_after_the_block_moves_in_or_is_told(data, scope3):
    def first_called(block):
        keras.utils.set_random_seed(2)
        with block:
            model = compiled(keras.Sequential(layers(), name="named"))
        model(data.x[:2])
        return trained(model, data)

    if IS_KERAS2:
        with pytest.raises(kte.errors.ScopeError, match="'named' was made outside the block, or first called there"):
            first_called(scope3)
        return
    assert_same(first_called(scope3), first_called(contextlib.nullcontext()))


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: pickles no model that trains")
def test_it_can_be_pickled_and_copied(data, scope3):
    with scope3:
        model = compiled(seeded(functional))
    copy = pickle.loads(pickle.dumps(model))
    assert type(copy).__name__ == type(model).__name__
    for got, expected in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, expected)
    with scope3:
        clone = keras.models.clone_model(model)
    assert isinstance(clone, _runtime.TrainStep)


@pytest.mark.gate_on("keras3_tf")
def test_batch_normalization_of_features_far_from_zero(data, scope3):
    """Their squares are so large that a variance made of them is rounding."""

    def variance(block):
        with block:
            model = compiled(seeded(lambda: keras.Sequential([keras.Input((6,)), normalization(), *layers()])))
        model.fit(data.x + 1000.0, data.y, batch_size=32, verbose=0)
        return model.layers[0].moving_variance

    def normalization():
        return keras.layers.BatchNormalization(momentum=0.0)

    got, expected = (np.asarray(variance(block)) for block in (scope3, contextlib.nullcontext()))
    assert_close(got, expected, 1e-4)


class AddsIfThere(keras.layers.Layer):
    def call(self, x, other=None):
        return x if other is None else x + other


@pytest.mark.gate_on("keras3_tf")
@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 has no optional inputs")
def test_an_optional_input_that_is_none(data, scope3):
    def outcome(block):
        with block:
            keras.utils.set_random_seed(1)
            inputs = {"x": keras.Input((6,), name="x"), "other": keras.Input((6,), name="other", optional=True)}
            model = compiled(keras.Model(inputs, keras.layers.Dense(1)(AddsIfThere()(inputs["x"], inputs["other"]))))
        x = {"x": data.x, "other": None}
        history = model.fit(x, data.y, batch_size=25, epochs=2, shuffle=False, verbose=0).history
        evaluated = model.evaluate(x, data.y, batch_size=50, verbose=0)
        return {**history, "evaluated": evaluated, "predicted": model.predict(x, batch_size=50, verbose=0)}

    assert_same(outcome(scope3), outcome(contextlib.nullcontext()))


def test_a_model_that_was_never_compiled_predicts_and_is_saved(scope3, tmp_path):
    x, file = np.ones((5, 4), "float32"), tmp_path / "it.keras"
    with scope3:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        expected = model.predict(x, verbose=0)
        model.save_weights(tmp_path / "it.weights.h5")
        model.save(file)
        other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        other.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_array_equal(other.predict(x, verbose=0), expected)
    loaded = keras.models.load_model(file)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
