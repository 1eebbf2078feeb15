"""Metrics of TensorFlow Addons 0.23, on Keras 3: all are sums of numbers of examples."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

_register = keras.saving.register_keras_serializable(package="Addons")


@_register
class FBetaScore(keras.metrics.FBetaScore):
    """Keras's metric, which is that of Addons without `num_classes`."""

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
        del kwargs  # as Addons does
        super().__init__(average=average, beta=beta, threshold=threshold, name=name, dtype=dtype)
        self.num_classes = num_classes

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "num_classes": self.num_classes}


@_register
class F1Score(FBetaScore):
    """`FBetaScore` with a beta of 1, as in Addons."""

    def __init__(
        self,
        num_classes: int,
        average: str | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_classes, average, 1.0, threshold, name, dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {name: value for name, value in super().get_config().items() if name != "beta"}


@_register
class CohenKappa(keras.metrics.Metric):
    """How much two raters agree, beyond what chance would give, as in Addons."""

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
            raise ValueError(f'`weightage` needs to be None, "linear" or "quadratic"; {weightage!r} came.')
        if num_classes < 2:
            raise ValueError(f"`num_classes` needs to be 2 or more; {num_classes} came.")
        super().__init__(name=name, dtype=dtype)
        self.num_classes, self.weightage = num_classes, weightage
        self.sparse_labels, self.regression = sparse_labels, regression
        self.conf_mtx = self.add_variable((num_classes, num_classes), "zeros", name="conf_mtx")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch."""
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if self.num_classes == 2:
            y_pred = y_pred > 0.5
        else:
            y_true = y_true if self.sparse_labels else ops.argmax(y_true, axis=1)
            y_pred = self._ratings(y_pred)
        labels, predictions = (
            ops.one_hot(ops.cast(ops.reshape(values, (-1,)), "int32"), self.num_classes, dtype=self.dtype)
            for values in (y_true, y_pred)
        )
        if sample_weight is not None:
            labels = labels * ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        self.conf_mtx.assign(self.conf_mtx + ops.matmul(ops.transpose(labels), predictions))

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
        names = ("num_classes", "weightage", "sparse_labels", "regression")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
