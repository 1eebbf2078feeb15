"""Models that find their `steps_per_execution` by a clock of the test's, beside models with one step an execution."""

from __future__ import annotations

import keras
import numpy as np

import keras_tpu_ext as kte
import sources


def dense():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return kte.TPUModel(inputs, keras.layers.Dense(1)(hidden))


def fast_clock():
    """A clock by which every execution takes a hundredth of a second: each one is eight times longer."""
    seconds = iter(range(10**6))
    return lambda: next(seconds) / 100


def compiled(steps="auto", **options):
    keras.utils.set_random_seed(1)
    model = dense()
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps, **options)
    if steps == "auto":
        model._kte.schedule._clock = fast_clock()
    return model


def dataset(data, batch_size=5, known=True):
    return sources.batched((data.x, data.y), batch_size, known)


def fitted(act, scope=None, **options):
    """Return histories and weights of a model with one step per execution and of one that finds the number."""
    results = []
    for steps in (1, "auto"):
        if scope is None:
            model = compiled(steps, **options)
        else:
            with scope:
                model = compiled(steps, **options)
        history = act(model)
        iterations = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        results.append((history.history, model.get_weights(), iterations))
    return results, model


def assert_same(results):
    (history, weights, iterations), (auto_history, auto_weights, auto_iterations) = results
    assert auto_iterations == iterations
    assert auto_history == history
    for expected, got in zip(weights, auto_weights, strict=True):
        np.testing.assert_array_equal(got, expected)
