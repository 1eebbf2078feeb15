"""Batch normalisation and its gradient as they are written down, in float64: what the layer is compared with."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Normalised:
    """What a layer makes of a batch.

    Attributes:
        outputs: Of the shape of the inputs.
        of_inputs: Gradient of `sum(outputs * upstream)` to the inputs.
        of_gamma: To gamma.
        of_beta: To beta.
        moving_mean: After the batch.
        moving_variance: After the batch.
    """

    outputs: np.ndarray
    of_inputs: np.ndarray
    of_gamma: np.ndarray
    of_beta: np.ndarray
    moving_mean: np.ndarray
    moving_variance: np.ndarray


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a layer, a number for each channel."""

    gamma: np.ndarray
    beta: np.ndarray
    moving_mean: np.ndarray
    moving_variance: np.ndarray

    @classmethod
    def some(cls, channels: int) -> Weights:
        """Return weights that are none of those a layer starts with."""
        rng = np.random.default_rng(3)
        return cls(
            rng.uniform(0.5, 2.0, channels),
            rng.normal(size=channels),
            rng.normal(size=channels),
            rng.uniform(0.5, 2.0, channels),
        )

    def of(self, *, scale: bool = True, center: bool = True) -> list[np.ndarray]:
        """Return them as `set_weights` takes them."""
        all_of_them = [
            (self.gamma, scale),
            (self.beta, center),
            (self.moving_mean, True),
            (self.moving_variance, True),
        ]
        return [values.astype("float32") for values, there in all_of_them if there]


def normalise(
    inputs: np.ndarray,
    upstream: np.ndarray,
    weights: Weights,
    *,
    axis: int = -1,
    ghost_batch_size: int | None = None,
    mask: np.ndarray | None = None,
    training: bool = True,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    scale: bool = True,
    center: bool = True,
) -> Normalised:
    """Normalise `inputs`, part by part, and differentiate by the chain rule.

    Ioffe and Szegedy, Batch Normalization, 2015, section 3, with a weight of 0 or 1 for each value that is counted:
    the mean and the variance of a part depend on those alone, all others depend on these.
    """
    x, dy = (np.moveaxis(values.astype("float64"), axis, -1) for values in (inputs, upstream))
    counted = np.ones(x.shape[:-1]) if mask is None else mask.astype("float64")
    gamma = weights.gamma if scale else np.ones_like(weights.gamma)
    beta = weights.beta if center else np.zeros_like(weights.beta)
    if not training:
        means, variances = np.broadcast_arrays(weights.moving_mean, weights.moving_variance)
        inverse = 1 / np.sqrt(variances + epsilon)
        x_hat, dx = (x - means) * inverse, dy * gamma * inverse
    else:
        x_hat, dx, means, variances = _parts(x, dy * gamma, counted, ghost_batch_size or len(x), epsilon)
    others = tuple(range(x.ndim - 1))
    kept = momentum if training else 1.0
    return Normalised(
        np.moveaxis(x_hat * gamma + beta, -1, axis),
        np.moveaxis(dx, -1, axis),
        np.sum(dy * x_hat, axis=others),
        np.sum(dy, axis=others),
        kept * weights.moving_mean + (1 - kept) * means,
        kept * weights.moving_variance + (1 - kept) * variances,
    )


def _parts(x: np.ndarray, dy: np.ndarray, counted: np.ndarray, size: int, epsilon: float) -> tuple[np.ndarray, ...]:
    """Return `x` normalised, the gradient to it, and the averages of the parts' means and variances."""
    x_hat, dx = np.empty_like(x), np.empty_like(x)
    means, variances, numbers = [], [], []
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        numbers.append(counted[part].sum())
        mean, variance, x_hat[part], dx[part] = _part(x[part], dy[part], counted[part][..., None], epsilon)
        means.append(mean)
        variances.append(variance)
    return x_hat, dx, np.average(means, 0, numbers), np.average(variances, 0, numbers)


def _part(x: np.ndarray, dy: np.ndarray, counted: np.ndarray, epsilon: float) -> tuple[np.ndarray, ...]:
    axes = tuple(range(x.ndim - 1))
    number = max(counted.sum(), 1)
    mean = (x * counted).sum(axes) / number
    variance = (np.square(x - mean) * counted).sum(axes) / number
    inverse = 1 / np.sqrt(variance + epsilon)
    x_hat = (x - mean) * inverse
    of_mean = -(dy * inverse).sum(axes)
    of_variance = (dy * (x - mean)).sum(axes) * -0.5 * inverse**3
    dx = dy * inverse + counted * (of_variance * 2 * (x - mean) + of_mean) / number
    return mean, variance, x_hat, dx
