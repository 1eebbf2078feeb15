"""Masks of outputs reach the metrics of a training step, as in Keras 2; JAX's gradient loses them."""

from __future__ import annotations

from typing import Any

import jax
from keras import tree
from keras.src import backend

from keras_tpu_ext.dropin.report import means_old


@jax.tree_util.register_pytree_node_class
class Masked:
    """An output beside its mask, which `jax.grad` gives back as an array that has the mask."""

    def __init__(self, output: Any, mask: Any) -> None:
        self.output, self.mask = output, mask

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Return both."""
        return (self.output, self.mask), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, Any]) -> Any:
        """Return the output with its mask."""
        return with_mask(cls(*children)) if isinstance(children[0], jax.Array) else cls(*children)


def with_mask(output: Any) -> Any:
    """Return an output as metrics read it."""
    if not isinstance(output, Masked):
        return output
    backend.set_keras_mask(output.output, output.mask)
    return output.output


def beside(outputs: Any) -> Any:
    """Return the outputs of a training step with their masks beside them."""
    masks = [backend.get_keras_mask(one) for one in tree.flatten(outputs)]
    if all(mask is None for mask in masks) or not means_old(
        "the metrics of masked outputs", "without what the masks hide, as in Keras 2"
    ):
        return outputs
    both = [
        one if mask is None else Masked(one, mask) for one, mask in zip(tree.flatten(outputs), masks, strict=True)
    ]
    return tree.pack_sequence_as(outputs, both)
