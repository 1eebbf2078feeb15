"""Losses of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin import report

_register = keras.saving.register_keras_serializable(package="Addons")
_Distance = str | Callable[[Any], Any]


def _pair(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Return labels and predictions of one dtype."""
    y_pred = ops.convert_to_tensor(y_pred)
    return ops.cast(y_true, y_pred.dtype), y_pred


def sigmoid_focal_crossentropy(
    y_true: Any, y_pred: Any, alpha: float = 0.25, gamma: float = 2.0, from_logits: bool = False
) -> Any:
    """Return the focal loss of each example, the sum over its last axis as in Addons."""
    if gamma and gamma < 0:
        raise ValueError(f"`gamma` needs to be 0 or more; {gamma} came.")
    y_true, y_pred = _pair(y_true, y_pred)
    chance = ops.sigmoid(y_pred) if from_logits else y_pred
    right = y_true * chance + (1 - y_true) * (1 - chance)
    weight = y_true * alpha + (1 - y_true) * (1 - alpha) if alpha else 1.0
    hardness = ops.power(1 - right, gamma) if gamma else 1.0
    return ops.sum(weight * hardness * _binary_crossentropy(y_true, y_pred, from_logits), axis=-1)


def _binary_crossentropy(y_true: Any, y_pred: Any, from_logits: bool) -> Any:
    """Return Keras 2's, which adds epsilon also inside the logarithm."""
    if from_logits:
        return ops.binary_crossentropy(y_true, y_pred, from_logits=True)
    epsilon = keras.backend.epsilon()
    y_pred = ops.clip(y_pred, epsilon, 1 - epsilon)
    return -(y_true * ops.log(y_pred + epsilon) + (1 - y_true) * ops.log(1 - y_pred + epsilon))


def _pairwise_distance(embeddings: Any, metric: _Distance) -> Any:
    """Return the distance of each two rows."""
    if callable(metric):
        return metric(embeddings)
    if metric == "angular":
        unit = embeddings * ops.rsqrt(ops.maximum(ops.sum(ops.square(embeddings), axis=1, keepdims=True), 1e-12))
        return ops.maximum(1 - ops.matmul(unit, ops.transpose(unit)), 0)
    squares = ops.sum(ops.square(embeddings), axis=1, keepdims=True)
    squared = squares + ops.transpose(squares) - 2 * ops.matmul(embeddings, ops.transpose(embeddings))
    squared = ops.maximum(squared, 0)
    is_zero = squared <= 0
    # The root of zero has no gradient.
    distance = squared if metric == "squared-L2" else ops.sqrt(ops.where(is_zero, 1e-16, squared))
    return ops.where(ops.logical_or(is_zero, ops.eye(ops.shape(embeddings)[0], dtype="bool")), 0, distance)


def _of_labels(y_true: Any, y_pred: Any, metric: _Distance) -> tuple[Any, Any, Any]:
    """Return distances, who has whose label, and who has whose label and is another one."""
    embeddings = ops.convert_to_tensor(y_pred)
    if keras.backend.standardize_dtype(embeddings.dtype) in ("float16", "bfloat16"):
        embeddings = ops.cast(embeddings, "float32")
    labels = ops.reshape(y_true, (-1, 1))
    same = ops.equal(labels, ops.transpose(labels))
    others = ops.cast(same, "float32") - ops.eye(ops.shape(embeddings)[0])
    return _pairwise_distance(embeddings, metric), same, others


def _largest_where(data: Any, mask: Any, axis: int) -> Any:
    """Return the largest number that the mask has; the smallest of all where it has none."""
    smallest = ops.min(data, axis=axis, keepdims=True)
    return ops.max((data - smallest) * mask, axis=axis, keepdims=True) + smallest


def _smallest_where(data: Any, mask: Any, axis: int) -> Any:
    """Return the smallest number that the mask has; the largest of all where it has none."""
    largest = ops.max(data, axis=axis, keepdims=True)
    return ops.min((data - largest) * mask, axis=axis, keepdims=True) + largest


def triplet_semihard_loss(y_true: Any, y_pred: Any, margin: float = 1.0, distance_metric: _Distance = "L2") -> Any:
    """Return the triplet loss with negatives that are just farther away than the positive one."""
    distance, same, positives = _of_labels(y_true, y_pred, distance_metric)
    negatives = ops.cast(ops.logical_not(same), "float32")
    # [anchor, positive, other]: the others that are negative, and farther away than the positive one.
    outside = ops.cast(distance[:, None, :] > distance[:, :, None], "float32") * negatives[:, None, :]
    nearest = ops.squeeze(_smallest_where(distance[:, None, :], outside, axis=2), 2)
    farthest = _largest_where(distance, negatives, axis=1)
    negative = ops.where(ops.any(outside > 0, axis=2), nearest, farthest)
    losses = ops.maximum((margin + distance - negative) * positives, 0)
    return ops.cast(ops.sum(losses) / ops.sum(positives), ops.convert_to_tensor(y_pred).dtype)


def triplet_hard_loss(
    y_true: Any, y_pred: Any, margin: float = 1.0, soft: bool = False, distance_metric: _Distance = "L2"
) -> Any:
    """Return the triplet loss with the farthest positive and the nearest negative of each row."""
    distance, same, positives = _of_labels(y_true, y_pred, distance_metric)
    nearest = _smallest_where(distance, ops.cast(ops.logical_not(same), "float32"), axis=1)
    farthest = _largest_where(distance, positives, axis=1)
    losses = ops.log1p(ops.exp(farthest - nearest)) if soft else ops.maximum(farthest - nearest + margin, 0)
    return ops.cast(ops.mean(losses), ops.convert_to_tensor(y_pred).dtype)


def _reduction(reduction: Any) -> Any:
    """Return what Keras 3 calls a reduction of Keras 2."""
    return {"auto": "sum_over_batch_size", "none": None}.get(reduction, reduction)


class _Loss(keras.losses.Loss):
    """A loss that calls a function with the arguments of its own."""

    def __init__(self, function: Callable[..., Any], reduction: Any, name: str | None, **arguments: Any) -> None:
        super().__init__(name=name, reduction=_reduction(reduction))
        self._function, self._arguments = function, arguments

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_true, y_pred, **self._arguments)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        config = {key: value for key, value in config.items() if key != "dtype"}
        return cls(**{**config, "reduction": config["reduction"] or "none"})


@_register
class SigmoidFocalCrossEntropy(_Loss):
    """See `sigmoid_focal_crossentropy`. By default nothing is reduced."""

    def __init__(
        self,
        from_logits: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        reduction: Any = "none",
        name: str = "sigmoid_focal_crossentropy",
    ) -> None:
        arguments: dict[str, Any] = {"from_logits": from_logits, "alpha": alpha, "gamma": gamma}
        super().__init__(sigmoid_focal_crossentropy, reduction, name, **arguments)


class _Triplets(_Loss):
    """A loss of triplets, which are looked for in the whole batch."""

    def __init__(self, function: Callable[..., Any], name: str | None, **arguments: Any) -> None:
        report.told(
            f"tfa.losses.{type(self).__name__}",
            "triplets of the whole batch; the cores of a TPU each took their own part, and added their losses",
        )
        super().__init__(function, "none", name, **arguments)


@_register
class TripletSemiHardLoss(_Triplets):
    """See `triplet_semihard_loss`."""

    def __init__(
        self, margin: float = 1.0, distance_metric: _Distance = "L2", name: str | None = None, **kwargs: Any
    ) -> None:
        del kwargs  # as TensorFlow Addons does
        super().__init__(triplet_semihard_loss, name, margin=margin, distance_metric=distance_metric)


@_register
class TripletHardLoss(_Triplets):
    """See `triplet_hard_loss`."""

    def __init__(
        self,
        margin: float = 1.0,
        soft: bool = False,
        distance_metric: _Distance = "L2",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        del kwargs  # as TensorFlow Addons does
        super().__init__(triplet_hard_loss, name, margin=margin, soft=soft, distance_metric=distance_metric)
