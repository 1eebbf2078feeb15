"""From the gradients of one replica to updated weights: accumulate, sum, unscale, check, clip, apply.

The order matters. Sums over replicas come before anything that is not linear: the verdict on finiteness, which
must be one for all, and clipping, which the optimizer does on what it is given.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated, cross_replica_cond, sum_over_replicas


def accumulate_or_apply(
    model: Any, gradients: Any, variables: Any, optimizer: Any, weight: Any, before: Any = ()
) -> None:
    """Use one replica's gradients of the scaled loss: take a step, or add them to the window of steps.

    Args:
        model: The model; its `_step_state` holds the scale and the window.
        gradients: This replica's share, one a variable; `None` where there is none.
        variables: What to update.
        optimizer: The user's optimizer.
        weight: Number of examples in the batch of all replicas: what its gradient counts for in a window.
        before: Pairs of a variable and its value before the step, for a step that is skipped.
    """
    state = model._step_state
    window = state.window(optimizer)
    model._build_for(optimizer, variables)
    if state.watch is not None:
        state.watch.note(gradients, variables)
    if window is None:
        _step(model, _unscaled(sum_over_replicas(gradients), state), variables, optimizer, before)
        return
    window.build_for(variables)
    # Unscaled at once: another optimizer's step may change the scale before this window is full.
    scale = 1.0 if state.loss_scale is None else tf.convert_to_tensor(state.scale)
    window.add(gradients, weight, tf.cast(weight, tf.float32) / scale)
    has_gradient = [gradient is not None for gradient in gradients]

    def flush() -> None:
        _flush(model, window, has_gradient, optimizer)

    cross_replica_cond(window.is_full(), flush, _nothing)


def flush_window(model: Any, optimizer: Any) -> None:
    """Take the step of a window that the end of an epoch has left incomplete; call it in a replica."""
    window = model._step_state.window(optimizer)

    def flush() -> None:
        _flush(model, window, [True] * len(window.targets), optimizer)

    cross_replica_cond(window.is_begun(), flush, _nothing)


def _flush(model: Any, window: Any, has_gradient: list[bool], optimizer: Any) -> None:
    sums, weight = window.take()
    summed = sum_over_replicas([value if has else None for value, has in zip(sums, has_gradient, strict=True)])
    means = [
        None if value is None else tf.math.divide_no_nan(value, tf.cast(weight, value.dtype)) for value in summed
    ]
    _step(model, means, window.targets, optimizer, ())


def _step(model: Any, gradients: Any, variables: Any, optimizer: Any, before: Any) -> None:
    """Apply gradients that are summed over replicas and unscaled; check them first where the loss was scaled."""
    state = model._step_state
    if state.loss_scale is None:
        model._apply_reduced(optimizer, gradients, variables)
        return
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(_dense(g))) for g in gradients if g is not None])

    def apply(gradients: Any, values: Any) -> None:
        model._apply_reduced(optimizer, gradients, variables)

    def put_back(gradients: Any, values: Any) -> None:
        model._note_skipped_by(optimizer)
        for (variable, _), value in zip(before, values, strict=True):
            assign_replicated(variable, value)

    cross_replica_cond(finite, apply, put_back, gradients, [value for _, value in before])
    state.note(finite)


def _unscaled(gradients: Any, state: Any) -> Any:
    if state.loss_scale is None:
        return gradients
    scale = tf.convert_to_tensor(state.scale)
    return [None if gradient is None else divided(gradient, scale) for gradient in gradients]


def divided(gradient: Any, scale: Any) -> Any:
    """Return a gradient, dense or in slices, divided by a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(scale, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(scale, gradient.dtype)


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _nothing(*args: Any) -> None:
    """Leave everything as it is."""
