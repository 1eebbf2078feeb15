"""Layers that compute their activations again for the gradient, instead of keeping them."""

from __future__ import annotations

import functools
from typing import Any, Literal

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers.for_tpu import ChangedCall

Policy = Literal["nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"]
_POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")


def remat(model: Any, *, policy: Policy = "nothing_saveable") -> Any:
    """Let the blocks of a model, or a layer, compute their activations again in the backward pass.

    That takes less memory and more time (`preflight` says how much), and gives the same numbers, also those of
    dropout. Blocks are the composite layers whose class occurs several times in the model, such as the decoder layers
    of keras-hub; of each, only its inputs are kept, and what `policy` says.

    Args:
        model: A Keras model that is built and has such blocks, or a built layer, which is then a block itself.
        policy: What is kept, by JAX's names in `jax.checkpoint_policies`: `"nothing_saveable"` (default),
            `"dots_saveable"`, the results of matrix products, or `"dots_with_no_batch_dims_saveable"`, those of
            products with weights.

    Returns:
        `model`, whose layers have changed. A saved file is that of the model as it was.

    Raises:
        ArgumentError: If `model` is no layer, is not built or has no such blocks; if `policy` is none of these; on
            another runtime than Keras 3 on JAX.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        inputs = keras.Input((16, 8))
        attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)
        outputs = attention(inputs, inputs)
        kte.layers.remat(attention, policy="dots_saveable")
        model = keras.Model(inputs, outputs)
        ```
    """
    check.one_of("remat", "policy", policy, _POLICIES)
    if _runtime.remat is None:
        raise ArgumentError(
            "remat works with Keras 3 on JAX: on TensorFlow dropout would be drawn a second time. Write: "
            "with keras.RematScope(): ... around the lines that make the layers"
        )
    if not isinstance(model, _runtime.keras.layers.Layer) or not model.built:
        got = f"{model.name!r}, which is not built" if hasattr(model, "built") else type(model).__name__
        raise check.argument_error(
            "remat", "model", "a Keras model or layer that is built", got, "model.build(shape)"
        )
    blocks = [model]
    if isinstance(model, _runtime.keras.Model):
        names = set(_runtime.models.repeated_blocks(model))
        blocks = [layer for layer in _runtime.models.flatten_layers(model) if layer.name in names]
    if not blocks:
        needed = "a model with blocks: layers of layers, whose class occurs several times"
        write = "class Block(keras.layers.Layer), or keras.Model(...) for each block, or remat(layer) for each layer"
        raise check.argument_error("remat", "model", needed, f"{model.name!r}, which has none", write)
    for block in blocks:
        block.call = ChangedCall(block, functools.partial(_runtime.remat, policy))
    return model
