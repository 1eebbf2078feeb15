"""One way to use a symbol of TensorFlow Addons, run twice: by a plain model and by a `TPUModel` on eight replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import keras_tpu_ext as kte

# As in tests/parity/check.py: float32 adds in another order on several replicas.
TOLERANCE = 1e-5
EXAMPLES, BATCH_SIZE, REPLICAS = 22, 10, 8  # parts of 2 examples or none, and in the end of 1 or none
FEATURES = 32

keras = tf.keras


def numbers(x: Any) -> Any:
    """Return two numbers for each example, from one dense layer."""
    return keras.layers.Dense(2)(x)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One way to use a symbol.

    Attributes:
        body: Makes the predictions from 32 features.
        target: What is to be predicted, see `targets`.
        loss: Makes the loss.
        metrics: Makes the metrics.
        optimizer: Makes the optimizer of a model.
        ours: What a `TPUModel` is compiled with besides.
        callbacks: Makes the callbacks of `fit`.
        after: Is called with the model after `fit`, and returns arrays that are compared too.
        eagerly: Whether the `TPUModel` runs eagerly, which is quicker here; the plain one always does if it can.
        otherwise: What the table says where the two runs differ, or one of them fails.
    """

    body: Callable[[Any], Any] = numbers
    target: str = "numbers"
    loss: Callable[[], Any] = lambda: "mse"
    metrics: Callable[[], list[Any]] = list
    optimizer: Callable[[Any], Any] = lambda model: keras.optimizers.SGD(0.1)
    ours: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: Callable[[], list[Any]] = list
    after: Callable[[Any], Any] = lambda model: []
    eagerly: bool = False
    otherwise: str = ""


def targets() -> dict[str, np.ndarray]:
    """Return what there is to predict of the examples, by name."""
    random = np.random.default_rng(5)
    labels = np.arange(EXAMPLES) // 2 % 3
    corners = np.sort(random.uniform(size=(EXAMPLES, 2, 2)), axis=1).reshape(EXAMPLES, 4)
    return {
        "numbers": random.normal(size=(EXAMPLES, 2)).astype("float32"),
        "labels": labels,
        "classes": np.eye(3, dtype="float32")[labels],
        "yes or no": (labels % 2).astype("float32"),
        "several of three": random.integers(0, 2, (EXAMPLES, 3)).astype("float32"),
        "boxes": corners.astype("float32"),
        "positive": random.uniform(0.1, 1, (EXAMPLES, 1)).astype("float32"),
    }


def difference(trial: Trial) -> str:
    """Return in what the two runs of `trial` differ, or what one of them raised; `""` if they agree."""
    try:
        expected, got = _both(trial)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0].strip()}"
    if got.keys() != expected.keys():
        return f"the logs have {sorted(got)}, and not {sorted(expected)}"
    off = {name: _off(got[name], value) for name, value in expected.items()}
    return ", ".join(f"{name} by {by:.1e}" for name, by in off.items() if not by < TOLERANCE)


def _both(trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    keras.backend.clear_session()
    plain = _model(trial, keras.Model, run_eagerly=True)
    start = plain.get_weights()
    expected = _outcome(trial, plain, start)
    keras.backend.clear_session()  # a second metric of a class would have another name
    with kte.strategy_scope(require="cpu", replicas=REPLICAS):
        ours = _model(trial, kte.TPUModel, run_eagerly=trial.eagerly, **trial.ours)
    ours.set_weights(start)
    return expected, _outcome(trial, ours, start)


def _model(trial: Trial, model_class: Any, **how: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    model = model_class(inputs, trial.body(inputs))
    model.compile(trial.optimizer(model), trial.loss(), metrics=trial.metrics(), **how)
    return model


def _outcome(trial: Trial, model: Any, start: Any) -> dict[str, np.ndarray]:
    """Train and evaluate; return the logs, what the weights have changed by, and what the optimizer has kept."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(3).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    given = {"x": x, "y": targets()[trial.target], "batch_size": BATCH_SIZE, "verbose": 0}
    found = dict(
        model.fit(**given, epochs=1 if trial.eagerly else 2, callbacks=trial.callbacks(), shuffle=False).history
    )
    found["update"] = _joined(model.get_weights()) - _joined(start)
    found["optimizer"] = _joined([variable.numpy() for variable in _kept(model.optimizer)])
    found["after training"] = _joined(trial.after(model))
    if model.compiled_metrics.metrics:
        evaluated = model.evaluate(**given, return_dict=True)
        found |= {f"evaluated {name}": value for name, value in evaluated.items()}
    return {name: np.asarray(value, "float64") for name, value in found.items()}


def _off(got: np.ndarray, expected: np.ndarray) -> float:
    """Return how far values are off, as a part of the norm of those that are expected."""
    if got.shape != expected.shape:
        return float("inf")
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    norm = max(float(np.linalg.norm(np.nan_to_num(expected))), 1e-9)
    return float(np.linalg.norm(np.where(same, 0, got - expected))) / norm


def _joined(arrays: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.ravel(array).astype("float64") for array in arrays)])


def _kept(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer: a property of the new ones, a method of the legacy ones."""
    return optimizer.weights if isinstance(optimizer, keras.optimizers.legacy.Optimizer) else optimizer.variables
