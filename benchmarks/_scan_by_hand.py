"""A training loop as one writes it in JAX by hand, for a Keras model: `jax.jit` around `lax.scan`, and nothing else.

It keeps no metric but the mean loss, calls no callback, and knows neither replicas nor batches of another size. What
`fit` takes longer than this is the price of all that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import keras

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class ScanByHand:
    """Trains a built Keras model.

    Args:
        model: The model.
        optimizer: A Keras optimizer.
        chunk: Number of steps in one call.
    """

    def __init__(self, model: Any, optimizer: Any, chunk: int) -> None:
        optimizer.build(model.trainable_variables)
        self.model, self.optimizer, self.chunk = model, optimizer, chunk
        parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        self.state = tuple([variable.value for variable in part] for part in parts)
        self._many = jax.jit(partial(jax.lax.scan, self._step), donate_argnums=0)

    def _step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        trainable, non_trainable, optimizer = state
        x, y = batch

        def loss(trainable: Any) -> tuple[Any, Any]:
            predicted, after = self.model.stateless_call(trainable, non_trainable, x, training=True)
            return LOSS(y, predicted), after

        (value, non_trainable), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return (trainable, non_trainable, optimizer), value

    def fit(self, x: Any, y: Any, *, batch_size: int, **ignored: Any) -> float:
        """Train for one epoch over arrays whose length `batch_size` divides; return the last chunk's mean loss."""
        steps = len(x) // batch_size
        xs, ys = (array.reshape(steps, batch_size, *array.shape[1:]) for array in (x, y))
        for first in range(0, steps, self.chunk):
            batches = jax.device_put((xs[first : first + self.chunk], ys[first : first + self.chunk]))
            self.state, losses = self._many(self.state, batches)
        return float(losses.mean())
