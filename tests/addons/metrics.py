"""How each metric of TensorFlow Addons is tried: in `fit` and `evaluate`, on the predictions that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from addons.losses import chances, logits, probabilities
from addons.tensorflow_addons_here import tfa
from addons.trial import Trial, numbers

keras = tf.keras
of = tfa.metrics


def positive(x: Any) -> Any:
    return keras.layers.Dense(1, activation="softplus")(x)


def metric(make: Callable[[], Any], body: Callable[[Any], Any], target: str, **options: Any) -> list[Trial]:
    return [Trial(body, target, metrics=lambda: [make()], **options)]


def correlation(name: str) -> list[Trial]:
    return metric(lambda: getattr(of, name)(actual_cutpoints=9, preds_cutpoints=9), positive, "positive")


def of_targets(mean: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of a metric that has `mean` of the targets: it takes values, where Keras gives two arguments."""

    class OfTargets(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="of_targets")
            self.mean = mean()

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.mean.update_state(y_true, sample_weight=sample_weight)

        def result(self) -> Any:
            return self.mean.result()

    return OfTargets


def hamming_distance(y_true: Any, y_pred: Any) -> Any:
    """Call `hamming_distance`, which takes no floats for classes; it makes one number of a batch."""
    return of.hamming_distance(tf.argmax(y_true, 1), tf.argmax(y_pred, 1))


def hamming_loss(y_true: Any, y_pred: Any) -> Any:
    return of.hamming_loss_fn(y_true, y_pred, threshold=0.5, mode="multilabel")


METRICS: dict[str, list[Trial]] = {
    "CohenKappa": metric(lambda: of.CohenKappa(3), probabilities, "classes"),
    "F1Score": metric(lambda: of.F1Score(3, "macro"), probabilities, "classes"),
    "FBetaScore": metric(lambda: of.FBetaScore(3, "micro", 2.0, 0.4), chances, "several of three"),
    "GeometricMean": metric(of_targets(of.GeometricMean), positive, "positive"),
    "HammingLoss": metric(lambda: of.HammingLoss("multilabel", threshold=0.5), chances, "several of three"),
    "HarmonicMean": metric(of_targets(of.HarmonicMean), positive, "positive"),
    "KendallsTauB": correlation("KendallsTauB"),
    "KendallsTauC": correlation("KendallsTauC"),
    "MatthewsCorrelationCoefficient": metric(lambda: of.MatthewsCorrelationCoefficient(3), probabilities, "classes"),
    "MeanMetricWrapper": [
        Trial(numbers, metrics=lambda: [of.MeanMetricWrapper(keras.losses.mae, name="mae")]),
        Trial(
            numbers,
            metrics=lambda: [of.MeanMetricWrapper(lambda y, p: tf.reduce_mean(abs(y - p)), name="mae")],
        ),
    ],
    "MultiLabelConfusionMatrix": metric(lambda: of.MultiLabelConfusionMatrix(3), logits, "several of three"),
    "PearsonsCorrelation": correlation("PearsonsCorrelation"),
    "RSquare": metric(of.RSquare, numbers, "numbers"),
    "SpearmansRank": correlation("SpearmansRank"),
    "hamming_distance": [
        Trial(probabilities, "classes", metrics=lambda: [hamming_distance], eagerly=True),
        Trial(
            probabilities,
            "classes",
            metrics=lambda: [hamming_distance],
            otherwise="It divides by the `len` of a tensor, which fails in a graph, with plain Keras too.",
        ),
    ],
    "hamming_loss_fn": metric(lambda: hamming_loss, chances, "several of three"),
}
