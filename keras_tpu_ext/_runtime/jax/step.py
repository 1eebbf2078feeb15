"""The methods that Keras calls by name on JAX; see `program.py`."""

from __future__ import annotations

import functools
from typing import Any

import keras

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import HAS_MAYBE_SYMBOLIC_BUILD
from keras_tpu_ext._runtime.jax.program import JaxProgram
from keras_tpu_ext._runtime.jax.scope import bind
from keras_tpu_ext._runtime.keras3.models import clear_loss_ids, reduced
from keras_tpu_ext._runtime.training.model import ExactModel, stock_of


class TrainStep(ExactModel):
    """The mixin that makes the step of a `keras.Model` exact for any number of replicas."""

    _kte = functools.cached_property(JaxProgram)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bind(self, keras.distribution.distribution())
        super().__init__(*args, **kwargs)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle and copy through a saved model, as Keras does, since the class of `self` is known only here."""
        model: Any = super()
        return reduced(model.__reduce__())

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model as Keras does; its attention on a TPU matches that on a CPU."""
        model: Any = super()
        with self._kte.traced():
            return model.__call__(*args, **kwargs)

    def stateless_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model without side effects as Keras does, also on a TPU; no `add_loss` term is lost."""
        model: Any = super()
        clear_loss_ids(self)
        with self._kte.traced():
            return model.stateless_call(*args, **kwargs)

    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as `keras.Model.train_on_batch` does."""
        stock = stock_of(self, super(), "train_on_batch")
        with self._kte.loop():
            return stock(*args, **kwargs)

    def test_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch as `keras.Model.test_on_batch` does."""
        stock = stock_of(self, super(), "test_on_batch")
        with self._kte.loop():
            return stock(*args, **kwargs)

    def predict_on_batch(self: Any, x: Nest) -> Any:
        """Predict one batch as `keras.Model.predict_on_batch` does."""
        stock = stock_of(self, super(), "predict_on_batch")
        with self._kte.loop():
            return stock(x)

    def get_weights(self: Any) -> list[Any]:
        """Return the weights as `keras.Model.get_weights` does; call it on every process if they are sharded."""
        model: Any = super()
        with self._kte.process_group().reading_shards():
            weights: list[Any] = model.get_weights()
        return weights

    if HAS_MAYBE_SYMBOLIC_BUILD:

        def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
            self._symbolic_build(iterator=iterator, data_batch=data_batch)  # which prepares the batches

    def _symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        model: Any = super()
        self._kte.symbolic_build(model._symbolic_build, iterator, data_batch)

    def _get_jax_state(self: Any, **which: bool) -> Any:
        model: Any = super()
        return self._kte.jax_state(model._get_jax_state, which)

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        model: Any = super()
        return self._kte.metrics_result_or_logs(model._get_metrics_result_or_logs, logs)
