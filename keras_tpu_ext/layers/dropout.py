"""Dropout that costs a TPU little, and drops the same on any number of replicas."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.layers.for_tpu import check_keras3, for_tpu


class Dropout(_runtime.keras.layers.Dropout):
    """`keras.layers.Dropout` whose mask depends only on the seed, the number of the call, and the index in the batch.

    So N replicas drop exactly what one device drops, nothing is kept for the gradient, and a TPU fuses the mask into
    what surrounds it: docs/layers.md says what that saves, and which statistical tests it passes. The mask is a hash,
    two rounds of the finalizer of MurmurHash3 with a key each. Other layers drop in the same way after
    `for_tpu(layer)`, and whole models in `strategy_scope(for_tpu=True)`. Source: Appleby, 2011,
    https://github.com/aappleby/smhasher/wiki/MurmurHash3.

    A saved model has it as `keras.layers.Dropout`, which Keras loads without this package.

    Args:
        rate: Probability that an element is dropped, in [0, 1).
        noise_shape: Shape of the mask, which broadcasts to the inputs; `None` (default) for that of the inputs. Its
            first size, `None` or that of the inputs, is the batch.
        seed: Integer, or `None` (default) to draw one when the layer is made.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(batch, ...)`.
        training: Whether to drop; else the inputs are returned.

    Raises:
        ArgumentError: On Keras 2.
        ValueError: If `rate` is not in [0, 1].

    Example:
        ```python
        import numpy as np
        import keras_tpu_ext as kte

        dropout = kte.layers.Dropout(0.5, seed=0)
        print(dropout(np.ones((2, 4), "float32"), training=True))  # zeros and twos
        ```
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        check_keras3("Dropout", "keras.layers.Dropout")
        super().__init__(rate, noise_shape=noise_shape, seed=seed, **kwargs)
        for_tpu(self)


if _runtime.tpu_operations is not None:
    _runtime.models.save_as(Dropout, _runtime.keras.layers.Dropout)
