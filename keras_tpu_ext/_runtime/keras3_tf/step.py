"""The methods that Keras 3 on TensorFlow calls by name; see `program.py`."""

from __future__ import annotations

import functools
from typing import Any

import keras

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.keras3.models import reduced
from keras_tpu_ext._runtime.keras3_tf.program import Keras3TensorFlowProgram
from keras_tpu_ext._runtime.tensorflow.replicas import split_batch
from keras_tpu_ext._runtime.training.model import ExactModel


class TrainStep(ExactModel):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(Keras3TensorFlowProgram)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle and copy through a saved model, as Keras does, since the class of `self` is known only here."""
        model: Any = super()
        return reduced(model.__reduce__())

    def predict_step(self: Any, data: Nest) -> Nest:
        """Predict one replica's part of the batch, which may be empty."""
        return self._kte.predict_step(data)

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute anything from its arguments: it is then called with the joined
        batches of all replicas, and this method returns the whole loss. In a user's own `train_step`, its value is
        that of the whole loss, and its gradient that of the share.
        """
        return self._kte.compute_loss(x, y, y_pred, sample_weight, training)

    def predict_on_batch(self: Any, x: Nest) -> Nest:
        """Return predictions for one batch, which is split over the replicas rather than repeated on each."""
        self.make_predict_function()
        outputs = self.predict_function([split_batch(self.distribute_strategy, (x,))])
        return keras.tree.map_structure(lambda value: value.numpy(), outputs)

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        self._kte.symbolic_build(iterator, data_batch)

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        model: Any = super()
        return self._kte.metrics_result_or_logs(model._get_metrics_result_or_logs, logs)
