"""What differs between Keras 2 and Keras 3 around a step.

A model holds one adapter, which is stateless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import (
    Callback,
    Layer,
    Loss,
    Metric,
    Model,
    Nest,
    Optimizer,
    Tensor,
    Variable,
)
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.training.batch import Batch


class KerasAdapter(Protocol):
    """What `compile`, `fit` and saving need to know about a Keras version."""

    def probabilities_taken_for_logits(self, model: Model) -> list[str]:
        """Return a message for each softmax or sigmoid output of a compiled `model` whose loss expects logits."""

    def make_exact(self, model: Model, batch: Batch) -> None:
        """Replace the compiled loss and metrics of `model` by exact ones."""

    def build_optimizer(self, model: Model) -> None:
        """Create the variables of the optimizer of `model`, whose weights exist already."""

    def backup_epoch(self, backup: Callback) -> int:
        """Return the number of epochs after which a `BackupAndRestore` resumes training."""

    def write_patches(self, callback: Callback, save_weights: Callable[[str], None]) -> list[Patch]:
        """Return patches with which one of Keras's callbacks takes part in saving but writes nothing."""


class TensorFlowAdapter(KerasAdapter, Protocol):
    """What a step on TensorFlow also needs to know about a Keras version; each replica calls this for itself."""

    def own_layers(self, model: Model) -> list[str]:
        """Return the names of layers and operations that are not known to process each example independently."""

    def forward(self, model: Model, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of `model`."""

    def compute_loss(self, model: Model, *, y: Nest, training: bool, **batch: Nest) -> Tensor | None:
        """Call `compute_loss` of `model`, which may be the user's."""

    def custom_metrics(self, model: Model) -> list[Metric]:
        """Return the metrics that the user's code may update."""

    def exclude_padding(self, model: Model) -> contextlib.AbstractContextManager[None]:
        """Return a context in which layers learn statistics only from the examples of the batch."""

    def layer_losses(self, model: Model) -> list[Loss]:
        """Return the current `add_loss` terms of layers."""

    def record_layer_losses(self, model: Model) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward pass, after which `BATCH.layer_losses` has its `add_loss` terms."""

    def set_layer_losses(self, model: Model, losses: Sequence[tuple[Layer, Tensor]]) -> None:
        """Set the `add_loss` terms of layers for the next reading of `losses`."""

    def weight_losses(self, model: Model) -> list[Loss]:
        """Return the losses that are functions of weights, such as regularizers."""

    def scale_loss(self, optimizer: Optimizer, loss: Tensor) -> Tensor:
        """Return the loss times the scale of an optimizer that scales it; else `loss`."""

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Undo `scale_loss`, if the optimizer leaves that to whoever computes the gradients."""

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Create the variables of `optimizer` for `variables`, outside the graph, once."""

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Sequence[Tensor], variables: Sequence[Variable]
    ) -> None:
        """Let `optimizer` clip and apply gradients that are already summed over replicas."""

    def has_partial_variables(self, model: Model) -> bool:
        """Return whether any saved variable is summed over replicas when it is read."""


def is_overridden(model_class: type, name: str) -> bool:
    """Return whether a method of a model is that of a user's class, and not of this package."""
    owner = next(base for base in model_class.__mro__ if name in vars(base))
    return not owner.__module__.startswith("keras_tpu_ext.")


def pads_to_longest(layer: Layer) -> bool:
    """Return whether a layer of Keras pads each text to the longest of the batch."""
    if not isinstance(layer, keras.layers.TextVectorization):
        return False
    config = layer.get_config()
    return config["output_mode"] == "int" and config["output_sequence_length"] is None
