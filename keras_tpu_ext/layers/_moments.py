"""Mean and variance in one pass, and the normalisation with a gradient that takes two."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._parts import Moments, WholeBatch

ops = _runtime.ops


def moments_of(parts: WholeBatch, values: Any, weights: Any, shift: Any) -> Moments:
    """Return the moments, through which no gradient goes.

    Args:
        parts: What is taken together.
        values: The inputs, as `parts.view` gives them.
        weights: One for what counts and zero for what does not; `None` where all counts.
        shift: Values for the channels near which their means are thought to be: squares are taken around them.
    """
    shift = ops.stop_gradient(shift)
    around = ops.stop_gradient(ops.cast(values, shift.dtype)) - shift
    squares = ops.square(around)
    if weights is None:
        local_count = parts.local_count(around)
    else:
        weights = ops.cast(weights, shift.dtype)
        around, squares = weights * around, weights * squares
        local_count = parts.local_sums(weights * ops.ones_like(around))
    sums = [parts.local_sums(around), parts.local_sums(squares), local_count]
    total, total_of_squares, count = parts.totals(sums)
    mean = _by(total, count)
    variance = ops.maximum(_by(total_of_squares, count) - ops.square(mean), 0.0)
    return Moments(mean + shift, variance, count, local_count, weights)


def normalise(parts: WholeBatch, values: Any, moments: Moments, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Return `values` normalised, scaled by `gamma` and moved by `beta`, in their own dtype.

    The gradient is that of the moments too. Of what the forward pass had it keeps the inputs as they came.
    """
    mean, inverse = moments.mean, ops.rsqrt(moments.variance + epsilon)
    gamma = ops.ones_like(parts.of_channels(parts.over_parts(mean))) if gamma is None else gamma
    beta = ops.zeros_like(gamma) if beta is None else beta

    @ops.custom_gradient
    def normalised(values: Any, gamma: Any, beta: Any, mean: Any, inverse: Any) -> Any:
        around = ops.cast(values, mean.dtype) - mean
        outputs = ops.cast(around * (inverse * gamma) + beta, values.dtype)

        def gradients(*args: Any, upstream: Any = None) -> tuple[Any, ...]:
            upstream = ops.cast(args[0] if upstream is None else upstream, mean.dtype)
            normal = (ops.cast(values, mean.dtype) - mean) * inverse
            sums = [parts.local_sums(upstream), parts.local_sums(upstream * normal)]
            of_beta, of_gamma = parts.totals(sums)
            through_moments = _by(of_beta, moments.count) + normal * _by(of_gamma, moments.count)
            if moments.weights is not None:
                through_moments = moments.weights * through_moments
            of_values = ops.cast(gamma * inverse * (upstream - through_moments), values.dtype)
            own_beta, own_gamma = (parts.of_channels(parts.over_parts(value)) for value in sums)
            of_values, own_gamma, own_beta = _differentiable_once(of_values, own_gamma, own_beta)
            return of_values, own_gamma, own_beta, ops.zeros_like(mean), ops.zeros_like(inverse)

        return outputs, gradients

    return normalised(values, gamma, beta, mean, inverse)


@ops.custom_gradient
def _differentiable_once(*gradients: Any) -> tuple[Any, Any]:
    """Return gradients that refuse to be differentiated: the moments in them would be taken for constants."""

    def refuse(*args: Any, upstream: Any = None) -> Any:
        raise ArgumentError(
            "The gradient of kte.layers.BatchNormalization in training cannot be differentiated again, as a gradient "
            "penalty asks for. Write: keras.layers.BatchNormalization() in that model, or call it with training=False"
        )

    return gradients, refuse


def _by(values: Any, count: Any) -> Any:
    """Return `values / count`, zero where the count is."""
    return values / count if isinstance(count, float) else ops.divide_no_nan(values, count)
