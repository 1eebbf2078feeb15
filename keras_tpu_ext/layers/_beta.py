"""Quantiles of Beta(alpha, alpha), by which a number from 0 to 1 becomes one of that distribution without a loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.layers._random import below, look_up, uniform

ops = _runtime.ops

LEVELS = 1024
_STEPS = 2**16  # of the integration


def quantiles(alpha: float, probabilities: np.ndarray) -> np.ndarray:
    """Return the quantiles of Beta(alpha, alpha), right to about 1e-6.

    The density is integrated from 0 to 1/2, over `x**alpha` where alpha is below 1: it has no pole there.

    Args:
        alpha: Above 0.
        probabilities: Numbers from 0 to 1.
    """
    power = min(alpha, 1.0)
    places = np.linspace(0.0, 0.5**power, _STEPS + 1)
    x = places ** (1 / power)
    density = (1 - x) ** (alpha - 1) if alpha < 1 else (4 * x * (1 - x)) ** (alpha - 1)
    integral = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    tail = np.minimum(probabilities, 1 - probabilities)
    lower = np.interp(tail, integral / (2 * integral[-1]), places) ** (1 / power)
    return np.where(probabilities <= 0.5, lower, 1 - lower)


def draw_beta(words: Any, alpha: float) -> Any:
    """Return a float32 number of Beta(alpha, alpha) for each word.

    Between 1024 quantiles that are equally probable it goes on a straight line, so that the distribution function is
    nowhere off by more than 1/1024, but for what float32 rounds: near 1 that is 6e-8. The line ends at the quantiles
    of 2**-32 and 1 - 2**-32 and not at 0 and 1, which for a large `alpha` are far from all that is ever drawn.
    """
    table = quantiles(alpha, np.clip(np.linspace(0, 1, LEVELS + 1), 2**-32, 1 - 2**-32)).astype("float32")
    level = below(words, LEVELS)
    rest = uniform(ops.bitwise_left_shift(words, ops.convert_to_tensor(np.uint32(10), "uint32")))
    return look_up(table[:-1], level) + rest * look_up(np.diff(table), level)
