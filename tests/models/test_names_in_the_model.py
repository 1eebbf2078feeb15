"""What this package puts into a user's model: one name, `_kte`, besides those of Keras and two that users call."""

import ast
import functools
import inspect
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_jax")
OURS = {"_kte", "global_mean", "minimize"}
X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")


def layers():
    return [keras.layers.Dense(3), keras.layers.Dropout(0.0), keras.layers.Dense(1)]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = layers()

    def call(self, inputs, training=False):
        for part in self.parts:
            inputs = part(inputs)
        return inputs


def functional():
    inputs = keras.Input((4,))
    outputs = inputs
    for part in layers():
        outputs = part(outputs)
    return keras.Model(inputs, outputs)


KINDS = {
    "a Sequential": lambda: keras.Sequential([keras.Input((4,)), *layers()]),
    "a functional model": functional,
    "a subclassed model": Subclassed,
}


def fitted(make, **options):
    keras.utils.set_random_seed(1)
    model = make()
    model.compile("sgd", "mse", metrics=["mae"], **options)
    model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False)
    model.evaluate(X, X[:, :1], batch_size=4, verbose=0)
    model.predict(X, batch_size=4, verbose=0)
    return model


# Tests only look at what these return.
trained = functools.cache(fitted)


@functools.cache
def in_scope(make, **options):
    with kte.strategy_scope(require="cpu", replicas=2):
        return fitted(make, **options)


@pytest.mark.parametrize(
    "kind", [pytest.param("a Sequential", marks=pytest.mark.exhaustive), "a functional model", "a subclassed model"]
)
def test_a_plain_model_gets_no_other_name(kind):
    plain, exact = trained(KINDS[kind]), in_scope(KINDS[kind])
    added = [base for base in type(exact).__mro__ if base.__module__.startswith("keras_tpu_ext.")]
    names = {name for base in added for name in vars(base)} | (vars(exact).keys() - vars(plain).keys())
    dunders = {name for name in names if name.startswith("__") and name.endswith("__")}
    assert names - dunders - set(dir(plain)) <= OURS
    assert len(type(exact).__mro__) - len(type(plain).__mro__) <= 3 + (kind == "a subclassed model")


def names_in_the_package():
    """Return every name of a function, a method or an attribute that this package defines, but for Keras's."""
    names = set()
    for path in Path(kte.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    of_keras = set(dir(trained(Subclassed)))
    return sorted(
        name
        for name in names
        if name not in of_keras and not name.startswith("__") and name not in OURS - {"minimize"}
    )


@pytest.mark.gate_on("keras3_tf", "keras3_jax")  # the step of Keras 2 has the names of these
def test_a_model_may_use_every_name_of_this_package_for_itself():
    def own(self, *args, **kwargs):
        raise AssertionError("it is the user's, and he does not call it")

    names = [name for name in names_in_the_package() if not name.startswith("_self_")]
    assert len(names) > 1000
    cls = type("Own", (Subclassed,), dict.fromkeys(names, own))
    model, expected = in_scope(cls, loss_scale=8.0), in_scope(Subclassed, loss_scale=8.0)
    assert model.history.history == expected.history.history
    assert np.array_equal(model.get_weights()[0], expected.get_weights()[0])


def test_augment_of_a_plain_model_is_its_own_affair():
    class Helping(Subclassed):
        def augment(self, x, y):
            return x * 0.0, y

    assert in_scope(Helping).history.history == in_scope(Subclassed).history.history


@pytest.mark.exhaustive
def test_it_is_one_object_that_keras_saves():
    model = in_scope(functional, loss_scale="dynamic")
    assert type(model._kte) is type(in_scope(functional)._kte)
    assert isinstance(model._kte, keras.layers.Layer)
    assert not any(layer is model._kte for layer in model._flatten_layers())
    assert inspect.isfunction(type(model._kte).train_step)


def test_weights_of_a_model_without_a_loss_scale_load(tmp_path):
    plain, scaled = in_scope(functional), in_scope(functional, loss_scale=8.0)
    plain.save_weights(tmp_path / "model.weights.h5")
    scaled.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(scaled.get_weights()[0], plain.get_weights()[0])
    assert float(np.asarray(scaled._kte.state.scale)) == 8.0


@pytest.mark.exhaustive
def test_a_backbone_called_model_does_not_stand_for_the_call():
    """It would hide that `call` looks at the examples of a batch together."""

    class Centred(keras.Model):
        def __init__(self):
            super().__init__()
            self.model = functional()

        def call(self, inputs):
            outputs = self.model(inputs)
            return outputs - outputs[:1]

    plain = trained(Centred)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kte.errors.MixedExamplesWarning)  # on TensorFlow
        exact = in_scope(Centred)
    np.testing.assert_allclose(exact.history.history["loss"], plain.history.history["loss"], rtol=1e-5)
