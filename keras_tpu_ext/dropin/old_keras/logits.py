"""Cross-entropies of what a softmax or sigmoid has made, which Keras 2 computed from its input.

A probability below 1e-7 counted in full there; Keras 3 on JAX clips it, which gives another loss and no gradient.
With `from_logits=True`, too: Keras 2 warned that these are no logits, and took those that it had.
"""

from __future__ import annotations

import weakref
from typing import Any

import keras

from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import means_old

_NN = "keras.src.backend.jax.nn"

# The output and the input of each softmax and sigmoid that is still there, by the output's id: tracers take no
# attributes.
_LOGITS: dict[int, tuple[Any, Any]] = {}


def install() -> None:
    """Remember inputs, and take them for the loss."""
    wrap({f"{_NN}.{name}": _remembering for name in ("softmax", "sigmoid")})
    losses = ("categorical_crossentropy", "sparse_categorical_crossentropy", "binary_crossentropy")
    wrap({f"{_NN}.{name}": _from_logits for name in losses})


def _remembering(stock: Function, x: Any, axis: Any = -1) -> Any:
    output = stock(x, axis) if stock.__name__ == "softmax" else stock(x)
    if axis in (-1, len(output.shape) - 1):
        key = id(output)
        _LOGITS[key] = weakref.ref(output, lambda _: _LOGITS.pop(key, None)), x
    return output


def logits_of(output: Any) -> Any:
    """Return what a softmax or sigmoid made this output from; `None` if none did."""
    known, logits = _LOGITS.get(id(output), (None, None))
    return logits if known is not None and known() is output else None


def _from_logits(stock: Function, target: Any, output: Any, from_logits: bool = False, **kwargs: Any) -> Any:
    logits = logits_of(output)
    if logits is None and not from_logits and stock.__name__ == "binary_crossentropy":
        return _of_clipped(stock, target, output)
    what = f"{stock.__name__}{'(from_logits=True)' if from_logits else ''} of probabilities"
    if logits is None or not means_old(what, "the same from their logits, as in Keras 2"):
        return stock(target, output, from_logits, **kwargs)
    return stock(target, logits, True, **kwargs)


def _of_clipped(stock: Function, target: Any, output: Any) -> Any:
    """Return that of probabilities that no sigmoid made: Keras 2 added epsilon to what it had clipped."""
    if not means_old("binary_crossentropy of what no sigmoid made", "the logarithm of p + epsilon, as in Keras 2"):
        return stock(target, output)
    epsilon = keras.config.epsilon()
    output = keras.ops.clip(output, epsilon, 1.0 - epsilon)
    target = keras.ops.cast(target, output.dtype)
    return -target * keras.ops.log(output + epsilon) - (1 - target) * keras.ops.log(1 - output + epsilon)
