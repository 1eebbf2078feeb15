"""Warnings about what was right in Keras 2, and is here: an old program cannot follow their advice."""

from __future__ import annotations

import warnings

_WARNINGS = (
    "`shuffle=True` was passed",  # the default of fit, on a tf.data.Dataset
    r"Your `PyDataset` class should call `super\(\)",  # keras.utils.Sequence had no __init__
    "The structure of `inputs` doesn't match",  # [x] or {"x": x} for one input
    "The output of layer '.*' is a .*, but its loss .* has from_logits=True",  # the loss is computed from the logits
    r"Layer '.*' \(of type .*\) was passed an input with a mask",  # Keras 2 dropped it, too
)


def install() -> None:
    """Ignore them."""
    for start in _WARNINGS:
        warnings.filterwarnings("ignore", start, UserWarning)
