"""The check that most tests here make: plain Keras on one device against `TPUModel` on three replicas."""

from __future__ import annotations

import contextlib
import dataclasses

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from closeness import assert_close

# Float32 adds in another order on replicas: each sum is off by about 1e-7 of its size, and a few steps
# on top of each other make some 1e-6. A wrong denominator is never below 1e-3.
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Data:
    x: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


@pytest.fixture(scope="session")
def data():
    """103 examples: no number of batches or replicas divides them."""
    rng = np.random.default_rng(7)
    return Data(
        x=rng.normal(size=(103, 6)).astype("float32"),
        y=rng.normal(size=(103, 1)).astype("float32"),
        labels=rng.integers(0, 3, size=103),
        weights=rng.uniform(0.1, 3.0, size=103).astype("float32"),
    )


def dense(model_class, outputs=1, activation=None):
    """Return a small functional model of `model_class`."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return model_class(inputs, keras.layers.Dense(outputs, activation=activation)(hidden))


class Twins:
    """A plain model on one device and its twin on three replicas, with the same weights."""

    def __init__(self, scope, build, compile_options, classes):
        self.plain, self.ours = self.make(scope, build, compile_options, classes)
        self.start = self.plain.get_weights()
        self.ours.set_weights(self.start)

    @staticmethod
    def make(scope, build, compile_options, classes):
        models = [build(classes[0])]
        with scope:
            models.append(build(classes[1]))
        for model, block in zip(models, (contextlib.nullcontext(), scope), strict=True):
            with block:
                model.compile(**{"optimizer": keras.optimizers.SGD(0.3), "loss": "mse"} | compile_options())
        return models

    def restart(self):
        """Let both have the first weights again, and an optimizer that has taken no step; it must have no slots."""
        for model in (self.plain, self.ours):
            model.set_weights(self.start)
            for variable in model.optimizer.variables:
                variable.assign(variable * 0 if "learning_rate" not in variable.name else variable)

    def off(self):
        """Return how far the update of the twin is from the plain one, as a part of the plain one's norm."""
        plain, ours, start = (
            np.concatenate([weights.ravel() for weights in all_weights]).astype("float64")
            for all_weights in (self.plain.get_weights(), self.ours.get_weights(), self.start)
        )
        return np.linalg.norm(ours - plain) / max(np.linalg.norm(plain - start), 1e-9)

    def agree(self, act, tolerance=TOLERANCE):
        """Let both `act`, then compare what they return and their weights."""
        expected, got = act(self.plain), act(self.ours)
        assert keras.tree.map_structure(np.shape, got) == keras.tree.map_structure(np.shape, expected)
        keras.tree.map_structure(lambda a, b: assert_close(a, b, tolerance), got, expected)
        off = self.off()
        assert off <= tolerance, f"the update is off by {off:.1%} of its norm"
        return expected


@pytest.fixture
def twins(scope3):
    """Return a maker of `Twins`: `build(model_class)` and a function that returns fresh arguments for `compile`."""

    def make(build=dense, compile_options=dict, classes=(keras.Model, kte.TPUModel)):
        return Twins(scope3, build, compile_options, classes)

    return make
