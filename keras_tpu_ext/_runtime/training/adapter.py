"""What differs between Keras 2 and Keras 3 around a step.

A model holds one adapter, without a state of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
from keras_tpu_ext._runtime.training.batch import Batch


class KerasAdapter(Protocol):
    """What `compile`, `fit` and saving need to know of a Keras."""

    def compile_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options for Keras's own `compile`."""

    def make_exact(self, model: Model, batch: Batch) -> None:
        """Replace the compiled loss and metrics of `model` by exact ones."""

    def build_optimizer(self, model: Model) -> None:
        """Make the variables of the optimizer of `model`, which has its weights."""

    def backup_epoch(self, backup: Callback) -> int:
        """Return after how many epochs a `BackupAndRestore` lets training go on."""

    def write_patches(self, callback: Callback, save_weights: Callable[[str], None]) -> list[Patch]:
        """Return patches by which one of Keras's callbacks takes part in saving and writes nothing.

        Args:
            callback: The callback.
            save_weights: Takes part in the saving of weights to a path, without writing.
        """


class TensorFlowAdapter(KerasAdapter, Protocol):
    """What a step on TensorFlow needs to know of a Keras besides; each replica calls this for itself."""

    whole_batch_patches: Sequence[tuple[Any, str, Callable[[Any], Any]]]  # see tensorflow/whole_batch.py

    def own_layers(self, model: Model) -> list[str]:
        """Return the names of layers and operations that are not known to work on each example by itself."""

    def forward(self, model: Model, x: Nest, *, training: bool) -> Nest:
        """Return the predictions of `model`."""

    def unpack(self, data: Nest) -> tuple[Nest, Nest, Nest]:
        """Return `x`, `y` and `sample_weight` of a batch."""

    def compute_loss(self, model: Model, *, y: Nest, training: bool, **batch: Nest) -> Tensor | None:
        """Call `compute_loss` of `model`, which may be the user's."""

    def has_custom_compute_loss(self, model: Model) -> bool:
        """Return whether `compute_loss` is the user's."""

    def has_custom_compute_metrics(self, model: Model) -> bool:
        """Return whether `compute_metrics` is the user's."""

    def custom_metrics(self, model: Model) -> list[Metric]:
        """Return the metrics that code of the user's may update."""

    def exclude_padding(self, model: Model) -> contextlib.AbstractContextManager[None]:
        """Return a context in which layers learn statistics from the examples of the batch alone."""

    def layer_losses(self, model: Model) -> list[Loss]:
        """Return the `add_loss` terms that layers have now."""

    def record_layer_losses(self, model: Model) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward pass, after which `BATCH.layer_losses` has its `add_loss` terms."""

    def set_layer_losses(self, model: Model, losses: Sequence[tuple[Layer, Tensor]]) -> None:
        """Let layers have these `add_loss` terms, where `losses` is read next."""

    def weight_losses(self, model: Model) -> list[Loss]:
        """Return the losses that are functions of weights, such as regularizers."""

    def scale_loss(self, optimizer: Optimizer, loss: Tensor) -> Tensor:
        """Return the loss times the scale of an optimizer that scales it; else `loss`."""

    def unscale_gradients(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Undo `scale_loss`, where the optimizer leaves that to who takes the gradients."""

    def build_for(self, optimizer: Optimizer, variables: Sequence[Variable]) -> None:
        """Make the variables of `optimizer` for `variables`, outside of the graph, once."""

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Sequence[Tensor], variables: Sequence[Variable]
    ) -> None:
        """Let `optimizer` clip and apply gradients that are summed over replicas already."""

    def count_skipped(self, optimizer: Optimizer) -> None:
        """Count a skipped step of `optimizer`, where that Keras does."""

    def loss_tracker(self, model: Model) -> Metric:
        """Return the metric that tracks the loss."""

    def has_partial_variables(self, model: Model) -> bool:
        """Return whether a variable that is saved is summed over replicas when it is read."""
