"""Metrics of TensorFlow Addons 0.23, on Keras 3: all are sums of numbers of examples."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def _predicted(y_pred: Any, threshold: float | None) -> Any:
    """Return which classes are predicted: those above the threshold, or the ones with the highest score."""
    if threshold is not None:
        return y_pred > threshold
    highest = ops.max(y_pred, axis=-1, keepdims=True)
    return ops.logical_and(y_pred >= highest, ops.abs(y_pred) > 1e-12)  # of a row of zeros, none


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
        y_pred = ops.cast(_predicted(ops.convert_to_tensor(y_pred), self.threshold), self.dtype)
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


class _Confusion(keras.metrics.Metric):
    """A metric of how often which class is taken for which."""

    def __init__(self, num_classes: int, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_classes = int(num_classes)
        self.conf_mtx = self.add_variable((self.num_classes, self.num_classes), "zeros", name="conf_mtx")

    def _count(self, labels: Any, predictions: Any, sample_weight: Any) -> None:
        labels, predictions = (
            ops.one_hot(ops.cast(ops.reshape(values, (-1,)), "int32"), self.num_classes, dtype=self.dtype)
            for values in (labels, predictions)
        )
        if sample_weight is not None:
            labels = labels * ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        self.conf_mtx.assign(self.conf_mtx + ops.matmul(ops.transpose(labels), predictions))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


@keras.saving.register_keras_serializable(package="Addons")
class CohenKappa(_Confusion):
    """How much two raters agree, beyond what chance would give.

    Args:
        num_classes: How many there are.
        name: A name.
        weightage: `None`, "linear" or "quadratic" in the distance of two classes.
        sparse_labels: Whether labels are numbers of classes.
        regression: Whether predictions are numbers to round.
        dtype: The dtype of the counts.
    """

    def __init__(
        self,
        num_classes: int,
        name: str = "cohen_kappa",
        weightage: str | None = None,
        sparse_labels: bool = False,
        regression: bool = False,
        dtype: Any = None,
    ) -> None:
        if weightage not in (None, "linear", "quadratic"):
            raise ValueError("Unknown kappa weighting type.")
        if num_classes < 2:
            raise ValueError("Number of classes must be greater than or equal to two")
        super().__init__(num_classes, name, dtype)
        self.weightage, self.sparse_labels, self.regression = weightage, sparse_labels, regression

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch."""
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if self.num_classes == 2:
            y_pred = y_pred > 0.5
        else:
            y_true = y_true if self.sparse_labels else ops.argmax(y_true, axis=1)
            y_pred = self._ratings(y_pred)
        self._count(y_true, y_pred, sample_weight)

    def _ratings(self, y_pred: Any) -> Any:
        if len(y_pred.shape) < 2:
            return y_pred
        return ops.round(ops.abs(y_pred)) if self.regression else ops.argmax(y_pred, axis=-1)

    def result(self) -> Any:
        """Return kappa."""
        classes = ops.arange(self.num_classes, dtype="float32")
        distance = ops.abs(classes[:, None] - classes[None, :])
        weights = {None: ops.cast(distance > 0, "float32"), "linear": distance, "quadratic": ops.square(distance)}
        weight = weights[self.weightage]
        seen = ops.convert_to_tensor(self.conf_mtx)
        by_chance = ops.sum(seen, axis=0)[:, None] * ops.sum(seen, axis=1)[None, :]
        denominator = ops.sum(by_chance / ops.sum(by_chance) * weight)
        kappa = 1 - ops.sum(seen / ops.sum(seen) * weight) / denominator
        return ops.where(ops.isnan(denominator), 0.0, kappa)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("weightage", "sparse_labels", "regression")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="Addons")
class MatthewsCorrelationCoefficient(_Confusion):
    """The correlation of labels, one-hot, and predictions.

    Args:
        num_classes: How many there are.
        name: A name.
        dtype: The dtype of the counts.
        kwargs: Without effect.
    """

    def __init__(
        self, num_classes: int, name: str = "MatthewsCorrelationCoefficient", dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(num_classes, name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch."""
        self._count(ops.argmax(y_true, axis=1), ops.argmax(y_pred, axis=1), sample_weight)

    def result(self) -> Any:
        """Return the coefficient; 0 where there is none."""
        seen = ops.convert_to_tensor(self.conf_mtx)
        true, predicted, count = ops.sum(seen, axis=1), ops.sum(seen, axis=0), ops.sum(seen)
        both = ops.trace(seen) * count - ops.sum(true * predicted)
        root = ops.sqrt((count**2 - ops.sum(true**2)) * (count**2 - ops.sum(predicted**2)))
        coefficient = both / root
        return ops.where(ops.isnan(coefficient), 0.0, coefficient)


@keras.saving.register_keras_serializable(package="Addons")
class RSquare(keras.metrics.Metric):
    """The part of the variance that the predictions explain.

    Args:
        name: A name.
        dtype: The dtype of the sums.
        multioutput: "raw_values", "uniform_average" or "variance_weighted": what becomes of several outputs.
        num_regressors: If not 0, for the adjusted score.
        kwargs: Without effect.
    """

    def __init__(
        self,
        name: str = "r_square",
        dtype: Any = None,
        multioutput: str = "uniform_average",
        num_regressors: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if multioutput not in ("raw_values", "uniform_average", "variance_weighted"):
            raise ValueError(f"The multioutput argument must be a known one, but was: {multioutput!r}")
        if num_regressors < 0:
            raise ValueError("num_regressors parameter should be greater than or equal to zero")
        self.multioutput, self.num_regressors = multioutput, int(num_regressors)
        self.num_samples = self.add_variable((), "zeros", dtype="int32", name="num_samples")
        self._sums: tuple[Any, ...] = ()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        y_true, y_pred = ops.cast(y_true, self.dtype), ops.cast(y_pred, self.dtype)
        if not self._sums:
            names = ("sum", "squared_sum", "residual", "count")
            self._sums = tuple(self.add_variable(y_true.shape[1:], "zeros", name=name) for name in names)
        weight = ops.ones_like(y_true)
        if sample_weight is not None:
            weight = weight * self._like(ops.cast(sample_weight, self.dtype), y_true)
        added = (y_true * weight, ops.square(y_true) * weight, ops.square(y_true - y_pred) * weight, weight)
        for total, values in zip(self._sums, added, strict=True):
            total.assign(total + ops.sum(values, axis=0))
        self.num_samples.assign(self.num_samples + ops.cast(ops.size(y_true), "int32"))

    @staticmethod
    def _like(weight: Any, values: Any) -> Any:
        """Return weights with as many axes as the values."""
        return ops.reshape(weight, (*weight.shape, *[1] * (len(values.shape) - len(weight.shape))))

    def result(self) -> Any:
        """Return the score."""
        total, squares, residual, count = (ops.convert_to_tensor(value) for value in self._sums)
        variance = squares - total * (total / count)
        scores = 1 - residual / variance
        scores = ops.where(ops.isinf(scores), 0.0, scores)
        if self.multioutput == "uniform_average":
            scores = ops.mean(scores)
        elif self.multioutput == "variance_weighted":
            scores = ops.sum(variance * scores) / ops.sum(variance)
        return self._adjusted(scores) if self.num_regressors else scores

    def _adjusted(self, score: Any) -> Any:
        rest = ops.cast(self.num_samples - self.num_regressors - 1, "float32")
        of_all = ops.cast(self.num_samples - 1, "float32")
        return ops.where(rest > 0, 1 - (1 - score) * of_all / ops.where(rest > 0, rest, 1), score)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        own = {"multioutput": self.multioutput, "num_regressors": self.num_regressors}
        return {**super().get_config(), **own}


def _hamming_loss(y_true: Any, y_pred: Any, threshold: float | None, mode: str) -> Any:
    if mode not in ("multiclass", "multilabel"):
        raise TypeError("mode must be either multiclass or multilabel]")
    y_pred = ops.cast(_predicted(y_pred, threshold), "int32")
    y_true = ops.cast(y_true, "int32")
    different = ops.cast(ops.count_nonzero(y_true - y_pred, axis=-1), "float32")
    if mode == "multiclass":
        return 1 - ops.cast(ops.count_nonzero(y_true * y_pred, axis=-1), "float32")
    return different / y_true.shape[-1]


@keras.saving.register_keras_serializable(package="Addons")
class HammingLoss(keras.metrics.MeanMetricWrapper):
    """The part of the labels that are wrong.

    Args:
        mode: "multiclass" or "multilabel".
        name: A name.
        threshold: From which score on a class is predicted; `None` for the highest one.
        dtype: The dtype of the sums.
        kwargs: Without effect.
    """

    def __init__(
        self, mode: str, name: str = "hamming_loss", threshold: float | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(_hamming_loss, name=name, dtype=dtype, mode=mode, threshold=threshold)
        self._config = {"mode": mode, "name": name, "threshold": threshold}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return dict(self._config)


@keras.saving.register_keras_serializable(package="Addons")
class MultiLabelConfusionMatrix(keras.metrics.Metric):
    """For each class, how often it is there and predicted: [[neither, predicted], [there, both]].

    Args:
        num_classes: How many there are.
        name: A name.
        dtype: The dtype of the counts.
        kwargs: Without effect.
    """

    def __init__(
        self, num_classes: int, name: str = "Multilabel_confusion_matrix", dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_classes = int(num_classes)
        self._counts = self.add_variable((self.num_classes, 2, 2), "zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch; weights have no effect."""
        there, predicted = (ops.cast(ops.not_equal(ops.cast(y, "int32"), 0), self.dtype) for y in (y_true, y_pred))
        by_label = [
            [(1 - there) * (1 - predicted), (1 - there) * predicted],
            [there * (1 - predicted), there * predicted],
        ]
        added = ops.stack([ops.stack([ops.sum(one, axis=0) for one in row], axis=-1) for row in by_label], axis=-2)
        self._counts.assign(self._counts + added)

    def result(self) -> Any:
        """Return the matrices."""
        return ops.convert_to_tensor(self._counts)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "num_classes": self.num_classes}
