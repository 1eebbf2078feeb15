"""Whether N replicas take the step that one device takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import keras_tpu_ext as kte

TOLERANCE = 1e-5  # float32 keeps 7 digits; the replicas add the same numbers in another order


def update_difference(
    build: Callable[[], Any],
    loss: Callable[[], Any],
    scope: kte.Scope,
    x: Any,
    y: Any,
    *,
    batch_size: int,
    as_on_tpu: Callable[[], Any] | None = None,
) -> float:
    """Return ||w_N - w_1|| / ||w_1 - w_0|| after the same batches from the same weights.

    `w_1` are the weights of a plain `keras.Model` on one device, `w_N` those of a `kte.TPUModel` on the
    replicas of `scope`, both trained with SGD, whose step is proportional to the gradient.

    Args:
        build: Makes the network, without softmax at its end.
        loss: Makes the loss.
        scope: Where the replicas are.
        x: Inputs. Their number need not be a multiple of `batch_size`: an uneven last batch is the harder case.
        y: Labels.
        batch_size: Examples in a batch, over all replicas.
        as_on_tpu: Makes the network of the replicas in place of `build`; they take the paths of a TPU then.
    """
    with same_precision(scope):
        one = build()
        one.compile(keras.optimizers.SGD(0.1), loss())
    start = one.get_weights()
    for first in range(0, len(x), batch_size):
        one.train_on_batch(x[first : first + batch_size], y[first : first + batch_size])
    with kte.testing.as_on_tpu() if as_on_tpu else contextlib.nullcontext():
        with scope:
            many = kte.TPUModel.from_model((as_on_tpu or build)())
            many.compile(keras.optimizers.SGD(0.1), loss())
        many.set_weights(start)
        many.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
    return distance(many.get_weights(), one.get_weights()) / distance(one.get_weights(), start)


def some_batches(data: tuple[np.ndarray, np.ndarray], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels for two full batches and an uneven one."""
    few = 2 * batch_size + batch_size // 3 + 1
    return data[0][:few], data[1][:few]


def in_words(difference: float, scope: kte.Scope) -> str:
    """Return what `update_difference` means, in one line.

    Mixed precision rounds to 16 bits, and so do the matrix units of a TPU, and of some GPUs, even in float32.
    """
    who = f"{scope.num_replicas} replicas" if scope.num_replicas > 1 else "one replica"
    size = f"updates of {who} and of one device differ by {difference:.1e}"
    if difference <= TOLERANCE:
        return f"{size}: equal to float tolerance"
    if scope.hardware.kind != "cpu" or "mixed" in (scope.precision or ""):
        return f"{size}: more than in plain float32, as expected here"
    return f"{size}: MORE than the {TOLERANCE:.0e} that float32 explains"


def same_precision(scope: kte.Scope) -> Any:
    """Return a context in which a model on one device gets the dtype policy of `scope`."""
    return kte.precision.policy_scope(scope.precision) if scope.precision else contextlib.nullcontext()


def distance(some: list[Any], others: list[Any]) -> float:
    """Return the norm of the difference of two lists of weights."""
    return float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(some, others, strict=True))))
