"""Find out, by trying it, whether a user's code mixes the examples of a batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.tensorflow.replicas import native, with_none
from keras_tpu_ext.errors import MixedExamplesWarning

_ROWS = 4
_UNKNOWN_SIZE = 32
_TOLERANCE = 1e-4  # matrix products of one row and of four round differently


def mixes(model: Model) -> bool:
    """Return whether `find_mixing` has found that `model` mixes the examples of a batch."""
    return bool(model._kte.mixes_examples)


def find_mixing(model: Model, data: Nest) -> None:
    """Find out, once, whether the layers of a built `model` mix the examples of a batch; warn if so.

    Args:
        model: The model.
        data: An iterator over batches, or a batch; nothing is read from it.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas == 1 or model._kte.mixes_examples is not None or not model.built:
        return
    names = model._kte.adapter.own_layers(model)
    model._kte.mixes_examples = bool(names) and _forward_mixes(model, data)
    if mixes(model):
        warnings.warn(
            f"{model.name!r} looks at the examples of a batch together, in one of {', '.join(names)}, so each of the "
            f"{replicas} replicas computes the whole batch: its numbers are those of one device, and so is its "
            "speed. To be faster, let its layers work on each example by itself",
            MixedExamplesWarning,
            stacklevel=2,
        )


def _forward_mixes(model: Model, data: Nest) -> bool:
    specs = tf.nest.map_structure(_of_one_replica, getattr(data, "element_spec", data))
    x, _, _ = model._kte.adapter.unpack(with_none(specs))
    adapter = model._kte.adapter

    def forward(x: Nest) -> tuple[Any, list[tf.Tensor]]:
        return adapter.forward(model, x, training=False), adapter.layer_losses(model)

    with tf.device("CPU:0"), _state_kept(model):  # on a TPU every operation would be compiled
        tried = _try(forward, [x])
    if tried is None:
        return False  # assume the best of a model that cannot be tried on made-up data
    (outputs, losses), rows = tried
    outputs_of_rows, losses_of_rows = zip(*rows, strict=True)
    return not (_all_same(outputs, outputs_of_rows) and _all_same(losses, losses_of_rows, _is_mean))


@contextlib.contextmanager
def _state_kept(model: Model) -> Iterator[None]:
    """After the block, restore the variables of `model` and of its metrics on every replica."""
    variables = [native(variable) for variable in model.non_trainable_variables]
    variables += [native(variable) for metric in model.metrics for variable in metric.variables]
    parts = [part for each in variables for part in tf.distribute.get_strategy().experimental_local_results(each)]
    values = [tf.identity(part) for part in parts]
    try:
        yield
    finally:
        for part, value in zip(parts, values, strict=True):
            part.assign(value)


def _of_one_replica(spec: Any) -> Any:
    """Return the first replica's part, or its spec, if `spec` is all parts or their specs."""
    if isinstance(spec, tf.distribute.DistributedValues):
        return spec.values[0]
    return getattr(spec, "_value_specs", [spec])[0]


def mixes_examples(function: Callable[..., Any], specs: Sequence[Any]) -> bool:
    """Return whether results of `function` for an example depend on the other examples in its batch.

    It is called on made-up batches, four examples at once and one by one.

    Args:
        function: Takes tensors and returns a structure of tensors, all with the examples first.
        specs: The tensors, or objects with their `shape` and `dtype`, one for each argument, in any structure.

    Returns:
        `True` also if it cannot be tried, because a rank is not known or `function` fails.
    """
    tried = _try(function, specs)
    return tried is None or not _all_same(*tried)


def _try(function: Callable[..., Any], specs: Sequence[Any]) -> tuple[Any, list[Any]] | None:
    """Return the results of `function` for a made-up batch, and for each of its rows; `None` if it fails."""
    with tf.init_scope():
        try:
            batch = [tf.nest.map_structure(_made_up, spec) for spec in specs]
            whole = tf.nest.map_structure(_value, function(*batch))
            return whole, [tf.nest.map_structure(_value, function(*_row(batch, i))) for i in range(_ROWS)]
        except Exception:
            return None


def _made_up(spec: Any) -> Any:
    """Return a batch of the shape and dtype of `spec`: class numbers for integers, probabilities for the rest."""
    if spec is None:
        return None
    shape = [_ROWS, *(_UNKNOWN_SIZE if size is None else size for size in spec.shape[1:])]
    dtype, places = tf.as_dtype(spec.dtype), np.arange(np.prod(shape)).reshape(shape)
    if dtype == tf.string:
        return tf.constant(np.char.mod("%d", places % 2))
    if not dtype.is_floating:
        return tf.cast(places // max(places[0].size, 1) % 2, dtype)
    return tf.cast(0.1 + 0.8 * np.random.default_rng(0).uniform(size=shape), dtype)


def _row(batch: Any, place: int) -> Any:
    return tf.nest.map_structure(lambda values: None if values is None else values[place : place + 1], batch)


def _value(leaf: Any) -> Any:
    return None if leaf is None else np.asarray(tf.cast(leaf, tf.float64))


def _is_joined(values: Any, of_rows: Sequence[Any]) -> bool:
    """Return whether `values` of a batch are those of its rows joined, or do not depend on the rows at all."""
    if all(_close(row, values) for row in of_rows):
        return True
    of_examples = bool(values.ndim) and all(row.shape[:1] == (1,) for row in of_rows)
    return of_examples and _close(np.concatenate(of_rows), values)


def _is_mean(loss: Any, of_rows: Sequence[Any]) -> bool:
    """Return whether an `add_loss` term of a batch is the mean of its rows' terms; if unreduced, their sum."""
    expected = np.sum([np.sum(row) for row in of_rows]) / (1 if loss.ndim else len(of_rows))
    return _close(expected, np.sum(loss))


def _all_same(
    values: Nest, of_rows: Sequence[Nest], is_same: Callable[[Any, Sequence[Any]], bool] = _is_joined
) -> bool:
    flat = [[leaf for leaf in tf.nest.flatten(nest) if leaf is not None] for nest in (values, *of_rows)]
    return all(is_same(value, parts) for value, *parts in zip(*flat, strict=True))


def _close(got: Any, values: Any) -> bool:
    tolerance = _TOLERANCE * np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return got.shape == values.shape and np.allclose(got, values, rtol=_TOLERANCE, atol=tolerance, equal_nan=True)
