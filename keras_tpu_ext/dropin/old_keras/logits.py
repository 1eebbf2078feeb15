"""Cross-entropies of what a softmax or sigmoid has made, which Keras 2 computed from its input.

A probability below 1e-7 counted in full there; Keras 3 on JAX clips it, which gives another loss and no gradient.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from keras.src.backend.jax import nn

from keras_tpu_ext.dropin.old_keras import spellings
from keras_tpu_ext.dropin.report import means_old

Method = Callable[..., Any]

# The output and the input of each softmax and sigmoid that is still there, by the output's id: tracers take no
# attributes.
_LOGITS: dict[int, tuple[Any, Any]] = {}


def install() -> None:
    """Remember inputs, and take them for the loss."""
    for name in ("softmax", "sigmoid"):
        spellings.replace(nn, f"keras.src.backend.jax.nn.{name}", _remembering)
    for name in ("categorical_crossentropy", "sparse_categorical_crossentropy", "binary_crossentropy"):
        spellings.replace(nn, f"keras.src.backend.jax.nn.{name}", _from_logits)


def _remembering(stock: Method) -> Method:
    @functools.wraps(stock)
    def activation(x: Any, axis: Any = -1) -> Any:
        output = stock(x, axis) if stock.__name__ == "softmax" else stock(x)
        if axis in (-1, len(output.shape) - 1):
            key = id(output)
            _LOGITS[key] = weakref.ref(output, lambda _: _LOGITS.pop(key, None)), x
        return output

    return activation


def logits_of(output: Any) -> Any:
    """Return what a softmax or sigmoid made this output from; `None` if none did."""
    known, logits = _LOGITS.get(id(output), (None, None))
    return logits if known is not None and known() is output else None


def _from_logits(stock: Method) -> Method:
    @functools.wraps(stock)
    def crossentropy(target: Any, output: Any, from_logits: bool = False, **kwargs: Any) -> Any:
        logits = None if from_logits else logits_of(output)
        what = f"{stock.__name__} of probabilities"
        if logits is None or not means_old(what, "the same from their logits, as in Keras 2"):
            return stock(target, output, from_logits, **kwargs)
        return stock(target, logits, True, **kwargs)

    return crossentropy
