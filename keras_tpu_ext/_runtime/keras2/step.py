"""The methods that Keras 2 calls by name; see `program.py`."""

from __future__ import annotations

import functools
import re
from typing import Any

from keras_tpu_ext._runtime.common.types import Nest, Optimizer
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces
from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2.program import Keras2Program
from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext.errors import ScopeError


class TrainStep(ExactModel):
    """The mixin that makes the step of a `tf.keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(Keras2Program)

    @property
    def steps_per_execution(self: Any) -> int:
        """Number of steps in an execution: an int, as in Keras 3, instead of Keras 2's variable."""
        variable = self._steps_per_execution
        return 1 if variable is None else int(variable.numpy())

    @steps_per_execution.setter
    def steps_per_execution(self: Any, value: int) -> None:
        keras.Model.steps_per_execution.fset(self, value)

    def predict_step(self: Any, data: Nest) -> Nest:
        """Predict one replica's part of the batch, which may be empty."""
        return self._kte.predict_step(data)

    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return this replica's share of the loss, regularisers and `add_loss` terms of the whole batch.

        A subclass may override it and compute anything from its arguments: it is then called with the joined batches
        of all replicas, and this method returns the whole loss. In a user's own `train_step`, its value is that of
        the whole loss.
        """
        return self._kte.compute_loss(x, y, y_pred, sample_weight, training)

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; warn about what only a `.keras` file keeps."""
        self._kte.warn_of_what_is_not_saved(filepath, kwargs.get("save_format"))
        super().save(filepath, *args, **kwargs)

    def get_metrics_result(self: Any) -> Any:
        """Return the results of all metrics, as Keras does."""
        model: Any = super()
        return as_keras_traces(model.get_metrics_result)()

    def _get_optimizer(self: Any, optimizer: Optimizer) -> Any:
        model: Any = super()
        return self._kte.optimizers(model._get_optimizer, optimizer)

    def _validate_compile(self: Any, optimizer: Any, metrics: Any, **kwargs: Any) -> None:
        model: Any = super()
        try:
            model._validate_compile(optimizer, metrics, **kwargs)
        except ValueError as error:
            if "distribution strategy scope" not in str(error):
                raise
            part = re.sub(r"\s+", " ", str(error))[:60]
            raise ScopeError(
                f"All of {self.name!r} must be made inside its strategy_scope(); this was made outside: {part}... "
                "Write: with scope: ... around the lines that make the layers, the optimizer and the metrics."
            ) from error

    def _validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        """Keras calls this after an epoch's batches and before validation: the time to end a window."""
        self._kte.end_windows()
        model: Any = super()
        return model._validate_and_get_metrics_result(logs)
