"""The arguments of `compile` that Keras does not know, and losses that take probabilities for logits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.types import Layer, Loss, Model
from keras_tpu_ext._runtime.compat import functional_of, keras
from keras_tpu_ext._runtime.training.compile_utils import is_of_keras, is_overridden
from keras_tpu_ext._runtime.training.denominator import no_tokens
from keras_tpu_ext._runtime.training.step_state import LossScale
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

_DEFAULTS = {
    "loss_scale": None,
    "gradient_accumulation_steps": 1,
    "gradient_accumulation_weight": "examples",
    "steps_per_execution": 1,
    "auto_scale_loss": True,
}
NAMES = _DEFAULTS.keys()


class CompileOptions(NamedTuple):
    """What the arguments of `compile` mean."""

    of_keras: dict[str, Any]  # arguments for Keras's own `compile`
    loss_scale: LossScale | None  # how the step scales the loss; `None` if it does not
    accumulation_steps: int  # number of batches that make one step
    weights_by_tokens: bool  # whether tokens weight these batches, and not examples
    auto_steps: bool  # whether to find `steps_per_execution` while training
    given: Mapping[str, Any]  # what was given, other than defaults, to compile the model again after loading it


def compile_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of a call of `keras.Model.compile` by name, including those in Keras 2's `**kwargs`."""
    given = inspect.signature(keras.Model.compile).bind_partial(None, *args, **kwargs).arguments
    given.update(given.pop("kwargs", {}))
    return {name: value for name, value in given.items() if name != "self"}


def compile_options(model: Model, own: dict[str, Any], given: dict[str, Any]) -> CompileOptions:
    """Return what the arguments of `compile` mean, those that Keras does not know and those `given` for Keras."""
    of_keras = dict(given)
    steps = of_keras.pop("steps_per_execution", 1)
    own = {**own, "steps_per_execution": steps, "auto_scale_loss": given.get("auto_scale_loss", True)}
    optimizer = given.get("optimizer")
    by_keras = optimizer is not None and model._kte.leaves_scaling_to_its_optimizer()
    of_keras["steps_per_execution"], auto_steps = _steps_per_execution(steps)
    return CompileOptions(
        of_keras,
        _loss_scale(own["loss_scale"], optimizer, model.dtype_policy.name, own["auto_scale_loss"] and not by_keras),
        _accumulation_steps(own["gradient_accumulation_steps"], optimizer),
        _weights_by_tokens(model, own["gradient_accumulation_weight"], optimizer),
        auto_steps,
        {name: value for name, value in own.items() if value != _DEFAULTS[name]},
    )


def _steps_of_optimizer(optimizer: object) -> int:
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None) or 1


def _accumulation_steps(steps: object, optimizer: object) -> int:
    """Return the number of batches that this package accumulates; an optimizer's own accumulation is left to it."""
    steps = check.integer("compile", "gradient_accumulation_steps", steps, example="4, or leave it out")
    by_optimizer = _steps_of_optimizer(optimizer)
    if steps != 1 and by_optimizer != 1:
        raise ArgumentError(
            f"gradient_accumulation_steps={steps} was given, and the optimizer says {by_optimizer}. "
            "Leave one of them out."
        )
    return steps


def _weights_by_tokens(model: Model, weight: object, optimizer: object) -> bool:
    if check.one_of("compile", "gradient_accumulation_weight", weight, ("examples", "tokens")) == "examples":
        return False
    if is_overridden(type(model), "compute_loss") and not is_of_keras(type(model).compute_loss):
        raise no_tokens("with a compute_loss of its own")
    if _steps_of_optimizer(optimizer) != 1:
        raise no_tokens("whose optimizer accumulates, with equal weights")
    return True


def _steps_per_execution(steps: object) -> tuple[int, bool]:
    """Return the initial number of steps in an execution, and whether to tune it."""
    if isinstance(steps, str) and steps == "auto":
        return 1, True
    what, example = '"auto" or an integer', '"auto", or leave it out'
    return check.integer("compile", "steps_per_execution", steps, what=what, example=example), False


def _loss_scale(loss_scale: object, optimizer: object, policy: str, auto: bool) -> LossScale | None:
    """Return the loss scale of the step; `None` if it has none, or if the optimizer scales the loss."""
    chosen = LossScale.of(loss_scale)
    by_optimizer = _optimizer_scaling(optimizer)
    if chosen is not None and by_optimizer:
        raise ArgumentError(
            f"loss_scale={loss_scale!r} was given, and the optimizer scales the loss too ({by_optimizer}). "
            "Leave one of them out."
        )
    if chosen is None and not by_optimizer and auto and policy == "mixed_float16":
        return LossScale()
    return chosen


def _optimizer_scaling(optimizer: object) -> str:
    if hasattr(optimizer, "inner_optimizer"):
        return type(optimizer).__name__
    factor = getattr(optimizer, "loss_scale_factor", None)
    return "" if factor is None else f"loss_scale_factor={factor}"


def output_activations(model: Model) -> list[tuple[str, str, str]]:
    """Return `(output name, layer name, activation name)` for each output; `[]` for a subclassed model."""
    functional = functional_of(model)
    if functional is None:
        return []
    layers = [layer_of(tensor) for tensor in functional.outputs]
    activations = ["softmax" if isinstance(layer, keras.layers.Softmax) else activation(layer) for layer in layers]
    names = [layer.name for layer in layers]
    return list(zip(functional.output_names, names, activations, strict=True))


def expects_logits(loss: Loss) -> bool:
    """Return True if `loss` applies softmax or sigmoid itself."""
    return bool(getattr(loss, "from_logits", False) or getattr(loss, "_fn_kwargs", {}).get("from_logits"))


def probabilities_taken_for_logits(model: Model) -> list[str]:
    """Return a message for each softmax or sigmoid output of a compiled `model` whose loss has `from_logits=True`.

    A softmax of a softmax is almost flat: the gradient all but vanishes and accuracy stays where it starts. Only
    functional models can be inspected; for a subclassed model the list is empty.
    """
    messages = []
    for position, (output, layer, activation) in enumerate(output_activations(model)):
        loss = loss_of(model.loss, output, position)
        is_probability = activation in ("softmax", "sigmoid")
        if is_probability and isinstance(loss, keras.losses.Loss) and expects_logits(loss):
            name = type(loss).__name__
            messages.append(
                f"The output of layer {layer!r} is a {activation}, but its loss {name} has from_logits=True and "
                f"applies {activation} once more, so the model may hardly learn. Write {name}(from_logits=False), or "
                f"take the {activation} out of the layer."
            )
    return messages


def layer_of(tensor: Any) -> Layer:
    """Return the layer or operation that a symbolic tensor is an output of."""
    return tensor._keras_history[0]


def activation(layer: Layer) -> str:
    """Return the name of a layer's activation; empty if it has none."""
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


def loss_of(loss: Any, name: str, position: int) -> Loss | None:
    """Return the loss of an output, given what `compile` got."""
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, (list, tuple)):
        return loss[position] if position < len(loss) else None
    return loss
