"""The arrays that a case of `cases.py` trains on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kind_of_keras import IS_KERAS2
from parity.cases import Case

LENGTH = 5  # words of a sequence
CLASSES = 3


@dataclasses.dataclass(frozen=True)
class Data:
    """The arrays that a case trains on, in the structure that `fit` takes."""

    x: Any
    y: Any
    sample_weight: Any
    class_weight: dict[int, float] | None


def arrays(case: Case) -> Data:
    """Return the arrays of `case`; the same each time."""
    rng = np.random.default_rng(5)
    size = case.batches[0]
    words = _words(rng, size)
    if IS_KERAS2:
        words[:: case.batches[1], 0] = 3  # of a batch without any word Keras 2 makes NaN
    _, batch = case.batches
    overflowing = batch + batch // 2  # in the second batch, the first of the later half of replicas
    if case.overflow == "overflow":
        words[overflowing] = 1  # no mask: XLA makes of infinity times a mask's zero 0 or NaN, as it fuses the two
    x = words if case.has_timesteps else rng.normal(size=(size, 6)).astype("float32")
    y = {"a": _targets(case, rng, words), "b": rng.normal(size=(size, 2)).astype("float32")}
    if case.overflow == "overflow":
        y["a"][overflowing] = np.inf
    of_classes = {0: 0.2, 1: 3.0, 2: 1.0} if case.weights == "per class" else None
    return Data(x, structured(case, y), _weights(case, rng), of_classes)


def _words(rng: Any, size: int) -> np.ndarray:
    """Sentences of 0 to 5 words; 0 is padding, and the last third has no words at all."""
    words = rng.integers(1, 7, size=(size, LENGTH))
    words[np.arange(LENGTH) >= rng.integers(0, LENGTH + 1, size=size)[:, None]] = 0
    words[size * 2 // 3 :] = 0
    return words


def _targets(case: Case, rng: Any, words: np.ndarray) -> np.ndarray:
    shape = words.shape if case.has_timesteps else words.shape[:1]
    if not case.is_classes:
        return rng.normal(size=(*shape, 2)).astype("float32")
    labels = rng.integers(0, CLASSES, size=shape)
    if case.loss == "ignored classes":
        labels = np.where(rng.random(shape) < 0.3, -1, labels)
        labels[len(words) * 2 // 3 :] = -1
        if IS_KERAS2:
            first = labels[:: case.batches[1]]  # of a batch in which all are ignored, too
            first[...] = np.where(first < 0, 0, first)
    return labels


def _weights(case: Case, rng: Any) -> Any:
    size, batch = case.batches
    of_examples = rng.uniform(0.1, 3.0, size).astype("float32")
    of_timesteps = rng.uniform(0.1, 3.0, (size, LENGTH)).astype("float32")
    later_half = np.arange(size) % batch >= batch // 2
    return {
        "unweighted": lambda: None,
        "per class": lambda: None,
        "per example": lambda: _for_each_output(case, of_examples),
        "per timestep": lambda: structured(case, {"a": of_timesteps, "b": of_examples}),
        "per output": lambda: structured(case, {"a": _of_sequences(case, of_examples), "b": 3 - of_examples}),
        "half of them zero": lambda: _for_each_output(case, np.where(later_half, 0, of_examples)),
        "all zero": lambda: _for_each_output(case, 0 * of_examples),
    }[case.weights]()


def _for_each_output(case: Case, array: np.ndarray) -> Any:
    return structured(case, {"a": _of_sequences(case, array), "b": array})


def _of_sequences(case: Case, array: np.ndarray) -> np.ndarray:
    """Return weights of examples in the shape that Keras wants beside a mask of timesteps."""
    return array[:, None] if case.has_timesteps else array


def structured(case: Case, named: dict[str, Any]) -> Any:
    """Return the values of the outputs as the model structures them."""
    if len(case.outputs) == 1:
        return named["a"]
    return list(named.values()) if case.model == "list" else named
