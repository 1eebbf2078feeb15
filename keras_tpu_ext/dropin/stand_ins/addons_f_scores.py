"""F scores of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.stand_ins.addons_metrics import predicted_classes


@keras.saving.register_keras_serializable(package="Addons")
class FBetaScore(keras.metrics.Metric):
    """The weighted harmonic mean of precision and recall.

    Args:
        num_classes: How many there are.
        average: `None` (one score for each class), "micro", "macro" or "weighted".
        beta: How much recall counts.
        threshold: From which score on a class is predicted; `None` for the highest one.
        name: A name.
        dtype: The dtype of the counts.
        kwargs: Without effect.
    """

    def __init__(
        self,
        num_classes: int,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str = "fbeta_score",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError("Unknown average type. Acceptable values are: [None, 'micro', 'macro', 'weighted']")
        if not isinstance(beta, float):
            raise TypeError("The value of beta should be a python float")
        if beta <= 0.0:
            raise ValueError("beta value should be greater than zero")
        if threshold is not None and not isinstance(threshold, float):
            raise TypeError("The value of threshold should be a python float")
        if threshold is not None and not 0.0 < threshold <= 1.0:
            raise ValueError("threshold should be between 0 and 1")
        self.num_classes, self.average, self.beta, self.threshold = int(num_classes), average, beta, threshold
        shape = () if average == "micro" else (self.num_classes,)
        names = ("true_positives", "false_positives", "false_negatives", "weights_intermediate")
        for each in names:
            setattr(self, each, self.add_variable(shape, "zeros", name=each))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch."""
        y_pred = ops.cast(predicted_classes(ops.convert_to_tensor(y_pred), self.threshold), self.dtype)
        y_true = ops.cast(y_true, self.dtype)
        weight = 1 if sample_weight is None else ops.expand_dims(ops.cast(sample_weight, self.dtype), 1)
        axis = None if self.average == "micro" else 0
        for counts, seen in (
            (self.true_positives, y_pred * y_true),
            (self.false_positives, y_pred * (1 - y_true)),
            (self.false_negatives, (1 - y_pred) * y_true),
            (self.weights_intermediate, y_true),
        ):
            counts.assign(counts + ops.sum(seen * weight, axis=axis))

    def result(self) -> Any:
        """Return the score, or those of all classes."""
        precision = ops.divide_no_nan(self.true_positives, self.true_positives + self.false_positives)
        recall = ops.divide_no_nan(self.true_positives, self.true_positives + self.false_negatives)
        square = self.beta**2
        score = ops.divide_no_nan(precision * recall, square * precision + recall) * (1 + square)
        if self.average == "weighted":
            weights = ops.convert_to_tensor(self.weights_intermediate)
            return ops.sum(score * ops.divide_no_nan(weights, ops.sum(weights)))
        return score if self.average is None else ops.mean(score)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("num_classes", "average", "beta", "threshold")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="Addons")
class F1Score(FBetaScore):
    """The harmonic mean of precision and recall; see `FBetaScore` for the arguments."""

    def __init__(
        self,
        num_classes: int,
        average: str | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_classes, average, 1.0, threshold, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        config = super().get_config()
        del config["beta"]
        return config
