"""How each loss of TensorFlow Addons is tried: on the predictions that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from addons.tensorflow_addons_here import tfa
from addons.trial import Trial

keras = tf.keras
of = tfa.losses


def probabilities(x: Any) -> Any:
    return keras.layers.Dense(3, activation="softmax")(x)


def logits(x: Any) -> Any:
    return keras.layers.Dense(3)(x)


def chances(x: Any) -> Any:
    return keras.layers.Dense(3, activation="sigmoid")(x)


def boxes(x: Any) -> Any:
    return keras.layers.Dense(4, activation="sigmoid")(x)


def distance(x: Any) -> Any:
    """Return one distance for each example."""
    return keras.layers.Lambda(lambda pair: tf.norm(pair, axis=1))(keras.layers.Dense(2)(x))


def embedding(x: Any) -> Any:
    """Return a vector of length 1 for each example."""
    return keras.layers.Lambda(lambda vector: tf.math.l2_normalize(vector, axis=1))(keras.layers.Dense(4)(x))


def similarity(x: Any) -> Any:
    """Return how similar each example is to each other one."""
    return keras.layers.Lambda(lambda vectors: tf.matmul(vectors, vectors, transpose_b=True))(
        keras.layers.Dense(4)(x)
    )


def with_sparsemax(y_true: Any, y_pred: Any) -> Any:
    """Call `sparsemax_loss`, which takes other arguments than Keras gives a loss."""
    return of.sparsemax_loss(y_pred, tfa.activations.sparsemax(y_pred), y_true)


def loss(make: Callable[[], Any], body: Callable[[Any], Any], target: str, **options: Any) -> list[Trial]:
    return [Trial(body, target, make, **options)]


EVERY_OTHER = "The model must compare all examples of a batch with each other, and a replica has only its own."

LOSSES: dict[str, list[Trial]] = {
    "ContrastiveLoss": loss(of.ContrastiveLoss, distance, "yes or no"),
    "GIoULoss": loss(of.GIoULoss, boxes, "boxes"),
    "LiftedStructLoss": loss(of.LiftedStructLoss, embedding, "labels"),
    "NpairsLoss": loss(of.NpairsLoss, similarity, "labels", otherwise=EVERY_OTHER),
    "NpairsMultilabelLoss": loss(of.NpairsMultilabelLoss, similarity, "classes", otherwise=EVERY_OTHER),
    "PinballLoss": loss(lambda: of.PinballLoss(tau=0.3), logits, "classes"),
    "SigmoidFocalCrossEntropy": [
        Trial(chances, "several of three", lambda: of.SigmoidFocalCrossEntropy(reduction="sum_over_batch_size")),
        Trial(chances, "several of three", of.SigmoidFocalCrossEntropy),
    ],
    "SparsemaxLoss": loss(of.SparsemaxLoss, logits, "classes"),
    "TripletHardLoss": loss(of.TripletHardLoss, embedding, "labels"),
    "TripletSemiHardLoss": loss(of.TripletSemiHardLoss, embedding, "labels"),
    "WeightedKappaLoss": loss(lambda: of.WeightedKappaLoss(3), probabilities, "classes"),
    "contrastive_loss": loss(lambda: of.contrastive_loss, distance, "yes or no", eagerly=True),
    "giou_loss": loss(lambda: of.giou_loss, boxes, "boxes"),
    "lifted_struct_loss": loss(lambda: of.lifted_struct_loss, embedding, "labels", eagerly=True),
    "npairs_loss": loss(lambda: of.npairs_loss, similarity, "labels", otherwise=EVERY_OTHER),
    "npairs_multilabel_loss": loss(lambda: of.npairs_multilabel_loss, similarity, "classes", otherwise=EVERY_OTHER),
    "pinball_loss": loss(lambda: of.pinball_loss, logits, "classes", eagerly=True),
    "sigmoid_focal_crossentropy": loss(
        lambda: of.sigmoid_focal_crossentropy, chances, "several of three", eagerly=True
    ),
    "sparsemax_loss": loss(lambda: with_sparsemax, logits, "classes"),
    "triplet_hard_loss": loss(lambda: of.triplet_hard_loss, embedding, "labels", eagerly=True),
    "triplet_semihard_loss": loss(lambda: of.triplet_semihard_loss, embedding, "labels", eagerly=True),
}
