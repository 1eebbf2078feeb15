"""Explain errors of Keras and JAX that do not say which object of the user's they are about."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator

import jax
import keras

from keras_tpu_ext._runtime.common.types import Layer, Model
from keras_tpu_ext._runtime.training.models import flatten_layers
from keras_tpu_ext.errors import ArgumentError


@contextlib.contextmanager
def explained_errors(model: Model) -> Iterator[None]:
    """Name the object and the cure where a compiled step cannot do what a layer of `model` does.

    Raises:
        ArgumentError: In place of the error of Keras or JAX, which is its cause.
    """
    try:
        yield
    except Exception as error:
        text = _explained(error, model)
        if text is None:
            raise
        raise ArgumentError(text) from error


def _explained(error: Exception, model: Model) -> str | None:
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return _of_leak(str(error))
    if "'NoneType' object is not callable" in str(error):
        return _of_metric(error)
    is_recomputed = any(text in str(error) for text in ("no attribute '_error_repr'", "traced for checkpoint"))
    return _of_recomputed(model) if is_recomputed else None


def _of_leak(text: str) -> str | None:
    where = re.search(r"when the value leaked was (.+? traced for \w+)", text)
    if where is None or "SeedGenerator" not in text:
        return None
    return (
        f"a keras.random.SeedGenerator draws in a function that JAX traces by itself ({where[1]}), and its next "
        "state cannot leave it. Draw before: noise = keras.random.normal(shape, seed=self.seed_generator), and then "
        "keras.ops.cond(condition, lambda: x + noise, lambda: x)"
    )


def _of_metric(error: Exception) -> str | None:
    """Return the text for a metric whose variables the step does not have while a layer is called."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer = frame.f_locals.get("self")
        if isinstance(layer, keras.Layer) and (metrics := _without_values(layer)):
            return (
                f"layer `{layer.name}` updates the metric `{metrics[0].name}` in its call, which Keras on JAX has no "
                "state for there. Return the tensor as another output of the model and give compile a metric of it, "
                "or keep a sum in a weight: self.add_weight(..., trainable=False)"
            )
    return None


def _without_values(layer: Layer) -> list[keras.Metric]:
    found = [one for one in vars(layer).values() if isinstance(one, keras.Metric)]
    return [metric for metric in found if any(variable._value is None for variable in metric.variables)]


def _of_recomputed(model: Model) -> str | None:
    names = [layer.name for layer in flatten_layers(model) if getattr(layer, "_remat_mode", None) is not None]
    if not names:
        return None
    return (
        f"layers made in a keras.RematScope ({', '.join(names)}) are called with Python arguments, such as training "
        "or use_causal_mask, which Keras passes to jax.checkpoint as arrays. Make these layers outside of the scope, "
        'or with keras.RematScope(mode="activations")'
    )
