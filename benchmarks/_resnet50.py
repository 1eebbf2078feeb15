"""The ResNet-50 that benchmarks of preflight compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import keras

import keras_tpu_ext as kte

SIDE, CLASSES = 224, 1000


def compiled(*, exact: bool, policy: str = "mixed_bfloat16", change: Callable[[Any], Any] | None = None) -> Any:
    """Return keras.applications' ResNet-50 without weights, as a `TPUModel` or a plain Keras model.

    Args:
        exact: Whether it is a `TPUModel`.
        policy: The dtype policy.
        change: What to do with the Keras model first.
    """
    keras.utils.clear_session()
    keras.mixed_precision.set_dtype_policy(policy)
    model = keras.applications.ResNet50(
        weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES, classifier_activation=None
    )
    if change is not None:
        model = change(model)
    if exact:
        model = kte.TPUModel.from_model(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def batch() -> tuple[Any, Any]:
    """Return what an image and its label are like."""
    return keras.KerasTensor((1, SIDE, SIDE, 3), "float32"), keras.KerasTensor((1,), "int32")


def estimated(target: str, per_replica: int, **options: Any) -> dict[str, Any]:
    """Return what preflight estimates of a model of `compiled`, as a row."""
    report = harness.preflight(compiled(**options), batch(), target, per_replica)
    return {"target": target, **harness.estimate(report)}
