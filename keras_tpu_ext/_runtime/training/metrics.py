"""What can be told about a metric, whichever Keras it is of.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them): `_fn` and
`_fn_kwargs` of `MeanMetricWrapper`.
"""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.compat import keras, mask_of
from keras_tpu_ext._runtime.training.loss import rank_of


def is_function(metric: Any) -> bool:
    """Return whether a metric is the mean of a function of the user's, or of a loss, which may reduce by itself."""
    function = getattr(metric, "_fn", None)  # TensorFlow Addons has a wrapper of its own
    is_known = _is_of_keras(function) and not isinstance(function, keras.losses.Loss)
    return isinstance(metric, keras.metrics.Mean) and callable(function) and not is_known


def reduces_batch(metric: Any, true: Any, predicted: Any) -> bool:
    """Return whether a metric is the mean of a function that makes one number of a batch."""
    return is_function(metric) and not rank_of(metric._fn(true, predicted, **metric._fn_kwargs))


def respects_weights(metric: Any, predicted: Any) -> bool:
    """Return whether weight zero takes a row out of `metric`, and it takes one weight for each row."""
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return _is_of_keras(type(metric)) and not is_function(metric)
    takes_rows = len(predicted.shape) <= 2 and not isinstance(metric, keras.metrics.IoU)
    return _is_of_keras(type(metric)) and (takes_rows or mask_of(predicted) is not None)


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "tf_keras."))
