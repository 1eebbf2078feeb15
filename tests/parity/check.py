"""One case, run twice: a plain `keras.Model` on one device, and another class on the replicas of a scope."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from kind_of_keras import IS_KERAS2
from parity import programs
from parity.arrays import arrays
from parity.cases import DEVICES, Case, joined_batches_are_exact

# Float32 adds in another order on several replicas: each sum is off by about 1e-7 of its size, and a few steps on
# top of each other make some 1e-6. A wrong denominator is never below 1e-3.
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run has left.

    Attributes:
        logs: The history of `fit`, and what `evaluate` and `predict` returned, by name.
        weights: All weights in one vector, float64.
        iterations: Steps that the optimizer has counted.
    """

    logs: dict[str, Any]
    weights: np.ndarray
    iterations: int


def scope_of(case: Case) -> kte.Scope:
    """Return the rehearsal that the case trains on."""
    if not case.is_sharded:
        return kte.strategy_scope(require="cpu", replicas=case.replicas)
    if case.shard == "fsdp":
        return kte.strategy_scope(require="cpu", replicas=case.replicas, shard="fsdp")
    mesh = (("data", case.replicas), ("model", DEVICES // case.replicas))
    return kte.strategy_scope(require="cpu", shard="fsdp", mesh=mesh)


def reference(case: Case) -> tuple[list[np.ndarray], Outcome]:
    """Train a plain model on one device; return its first weights and what came out.

    Windows of several batches are batches joined where that is exact, else the optimizer's own windows, as they are
    where the case is about these. A loss scale of any kind is a `LossScaleOptimizer`.
    """
    joined = case.window > 1 and joined_batches_are_exact(case) and not _in_optimizer(case)
    plain, in_optimizer, eagerly = programs.plain_class(case), {}, programs.runs_eagerly(case)
    if case.window > 1 and not joined:
        plain, in_optimizer, eagerly = programs.accumulating(case, plain, eagerly)
    model = programs.build(case, plain)
    inner = programs.optimizer(case, **in_optimizer)
    if not IS_KERAS2:
        # Within a LossScaleOptimizer Keras would not track what Nadam makes beside its slots, and lose it on JAX.
        inner.build(model.trainable_variables)
    optimizer = programs.scaled(case, inner)
    model.compile(optimizer, **programs.compile_options(case), run_eagerly=eagerly)
    start = model.get_weights()
    return start, run(case, model, case.batches[1] * (case.window if joined else 1))


def ours(case: Case, scope: kte.Scope, start: list[np.ndarray], model_class: Any = kte.TPUModel) -> Outcome:
    """Train a `TPUModel`, or a `model_class`, from the weights `start` on the replicas of `scope`."""
    given = {
        "1024": {"loss_scale": 1024},
        "dynamic": {"loss_scale": "dynamic"},
        "LossScale": {"loss_scale": kte.LossScale(initial=4.0, growth_steps=2)},
    }.get(case.scale, {})
    in_optimizer = {}
    if _in_optimizer(case):
        in_optimizer = {"gradient_accumulation_steps": case.window}
    elif case.window > 1:
        given["gradient_accumulation_steps"] = case.window
    with scope:
        model = programs.build(case, model_class)
        optimizer = programs.optimizer(case, **in_optimizer)
        if case.scale == "LossScaleOptimizer":
            optimizer = programs.scaled(case, optimizer)
        model.compile(optimizer, **programs.compile_options(case), **_how(case), **given)
    model.set_weights(start)
    outcome = run(case, model, case.batches[1], padded=case.data == "padded")
    if case.is_sharded:
        assert_sharded(scope, model)
    return outcome


def assert_sharded(scope: kte.Scope, model: Any) -> None:
    """Assert that along each axis of the mesh a weight is sharded, and what the optimizer has for it as well."""
    report = scope.layout(model)
    axes = {name for name, size in report.mesh.items() if size > 1}
    matrices = [row for row in report.variables if len(row.shape) > 1]
    for role in {"weight"} | {row.role for row in matrices}:
        assert axes <= {name for row in matrices if row.role == role for name in row.spec}, role
    sums = [row.spec for row in report.variables if row.role == "accumulator" and row.shape]
    assert sums in ([], [row.spec for row in report.variables if row.role == "weight"])


def stock(case: Case, scope: kte.Scope, start: list[np.ndarray]) -> Outcome:
    """Train a plain `keras.Model` on the replicas of `scope`, with what plain Keras has to offer for the case."""
    with scope:
        model = programs.build(case, programs.keras().Model)
        windows = {"gradient_accumulation_steps": case.window} if case.window > 1 else {}
        optimizer = programs.scaled(case, programs.optimizer(case, **windows))
        model.compile(optimizer, **programs.compile_options(case), **_how(case))
    model.set_weights(start)
    return run(case, model, case.batches[1])


def _in_optimizer(case: Case) -> bool:
    """Return whether Keras's optimizer is to accumulate; those of Keras 2 cannot."""
    return "in optimizer" in case.accumulation and not IS_KERAS2


def run(case: Case, model: Any, batch_size: int, *, padded: bool = False) -> Outcome:
    """Train `model` for one epoch of `case`, and evaluate or predict where the case says so."""
    data = arrays(case)
    given = {"x": data.x, "y": data.y, "sample_weight": data.sample_weight, "batch_size": batch_size, "verbose": 0}
    x: Any = {"x": data.x, "batch_size": batch_size}
    if padded:
        given, x = {"x": programs.padded((data.x, data.y, data.sample_weight), batch_size), "verbose": 0}, {}
        x["x"] = given["x"]
    logs: dict[str, Any] = dict(model.fit(**given, class_weight=data.class_weight, shuffle=False).history)
    weights = np.concatenate([array.ravel() for array in model.get_weights()]).astype("float64")
    if case.then == "evaluate":
        evaluated = model.evaluate(**given, return_dict=True)
        logs |= {f"evaluated {name}": value for name, value in evaluated.items()}
    if case.then == "predict":
        predicted = _runtime.tree.flatten(model.predict(**x, verbose=0))
        logs |= {f"predicted {i}": values for i, values in enumerate(predicted)}
    # Before Keras 3.9 a LossScaleOptimizer does not tell the steps of the one within.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return Outcome(logs, weights, int(np.asarray(optimizer.iterations)))


def differences(expected: Outcome, got: Outcome, start: list[np.ndarray]) -> dict[str, float]:
    """Return what differs between two runs from the weights `start`, and by how much; nothing where they agree.

    What is in the logs differs by a part of the expected value, or of 1 where that is less; the `"update"` of all
    weights by a part of its norm.
    """
    assert got.logs.keys() == expected.logs.keys()
    assert np.isfinite(expected.weights).all(), "the reference itself has diverged"
    found = {name: _off(np.asarray(got.logs[name]), np.asarray(values)) for name, values in expected.logs.items()}
    first = np.concatenate([array.ravel() for array in start])
    norm = max(np.linalg.norm(expected.weights - first), 1e-9)
    found["update"] = float(np.linalg.norm(got.weights - expected.weights) / norm)
    found["iterations"] = abs(got.iterations - expected.iterations)
    return {name: off for name, off in found.items() if not off <= TOLERANCE}


def _off(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to what is expected or to 1; infinity and NaN equal themselves.

    On JAX they equal each other: a metric that is infinite times the weight zero of a padded row is NaN, where XLA
    has not made a choice of the product.
    """
    assert got.shape == expected.shape
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if programs.keras().backend.backend() == "jax":
        same |= ~np.isfinite(got) & ~np.isfinite(expected)
    with np.errstate(invalid="ignore"):
        off = np.abs(got - expected) / np.maximum(np.abs(expected), 1)
    return float(np.max(np.where(same, 0, off), initial=0))


def _how(case: Case) -> dict[str, Any]:
    return {"run_eagerly": case.run == "eager", "steps_per_execution": case.steps_per_execution}
