"""Records of non-finite gradients on JAX.

There a gradient is already reduced over all replicas when it is first seen, so a record has no replica.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.training.overflow import OverflowWatch


class StatelessOverflowWatch(OverflowWatch):
    """An `OverflowWatch` within a `keras.StatelessScope`."""

    def __init__(self, variables: Sequence[keras.Variable], steps: int) -> None:
        super().__init__(steps)
        self.last = keras.Variable(
            jnp.zeros([len(variables)], "int32"), trainable=False, dtype="int32", name="last_overflow"
        )
        self._paths = [variable.path for variable in variables]

    def own_variables(self) -> list[keras.Variable]:
        """Return every variable."""
        return [self.num_updates, self.last]

    def note(self, gradients: Sequence[jax.Array]) -> None:
        """Record which gradients are not finite; call it in the step."""
        number = self.num_updates.value + 1
        bad = jnp.stack([jnp.logical_not(jnp.all(jnp.isfinite(gradient))) for gradient in gradients])
        self.last.assign(jnp.where(bad, number, self.last.value))
        self.num_updates.assign(number)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        return [(self._paths, None, list(keras.ops.convert_to_numpy(self.last)))]
