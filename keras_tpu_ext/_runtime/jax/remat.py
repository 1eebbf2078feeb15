"""Compute the activations of a layer again in the backward pass, by `jax.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras

from keras_tpu_ext._runtime.common.types import Layer, Nest
from keras_tpu_ext._runtime.compat.keras3 import in_symbolic_call
from keras_tpu_ext.errors import ArgumentError


def remat(
    policy: str, layer: Layer, call: Callable[..., Nest], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Nest:
    """Return `call(*args, **kwargs)`, a call of `layer`, of which the gradient keeps what `policy` says.

    Variables are read before it and assigned after it, such as that of a seed generator: dropout is the same twice.
    """
    if in_symbolic_call():
        return call(*args, **kwargs)
    leaves, structure = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    changing = layer.non_trainable_variables
    variables = [*layer.trainable_variables, *changing]

    def stateless(values: list[Any], arrays: list[Any]) -> tuple[Nest, list[Any]]:
        given = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            given[i] = array
        args, kwargs = jax.tree.unflatten(structure, given)
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = call(*args, **kwargs)
        if scope.losses:
            raise ArgumentError(
                f"remat: {layer.name!r} calls add_loss, or has an activity regularizer, which would be lost. Write: "
                "kte.layers.remat(...) for the layers inside it that do not"
            )
        return outputs, [scope.get_current_value(variable) for variable in changing]

    checkpointed = jax.checkpoint(stateless, policy=getattr(jax.checkpoint_policies, policy))
    outputs, after = checkpointed([variable.value for variable in variables], [leaves[i] for i in traced])
    for variable, value in zip(changing, after, strict=True):
        variable.assign(value)
    return outputs
