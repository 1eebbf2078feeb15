"""What a step on JAX knows about its batch, which is always the whole one: every JAX program has the global view.

A batch that cannot be split evenly over the devices, or that is shorter than the others, has been padded; then the
step gets the number of rows that count. They come first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch, patched, temporarily
from keras_tpu_ext._runtime.common.types import Layer, Nest, SameNest, Variable
from keras_tpu_ext._runtime.compat.keras3 import DIVIDES_REGULARIZERS, moments_patches, regularizer_patches

is_jax_sparse: Any = private("keras.src.trainers.data_adapters.data_adapter_utils:is_jax_sparse")

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The name, in a jaxpr, of a function whose results are those of the examples, whatever it computes.
OF_EXAMPLES = "kte_of_examples"


class PaddedBatchError(Exception):
    """Code that needs all examples at once got padded rows; `separability.py` asks before any step does."""


class _Batch(threading.local):
    """What the step that runs in this thread knows about its batch."""

    examples: Any = None  # number of rows that are examples
    valid: Any = None  # for each row whether it is an example; `None` if every row is


BATCH = _Batch()


class _Trace(threading.local):
    is_followed = False  # whether code is traced to follow it: a mark in a step that runs would stand in XLA's way


_TRACE = _Trace()


def followed() -> contextlib.AbstractContextManager[None]:
    """Return a context in which functions that respect padding are marked in what this thread traces."""
    return temporarily(_TRACE, is_followed=True)


def batch_context(data: Nest, examples: jax.Array | None) -> contextlib.AbstractContextManager[None]:
    """Return the context of a step with a batch, of whose rows the first `examples` count; `None` if all do."""
    rows = number_of_rows(data)
    if examples is None:
        return temporarily(BATCH, examples=rows, valid=None)
    return temporarily(BATCH, examples=examples, valid=jnp.arange(rows) < examples)


def number_of_rows(data: Nest) -> int:
    """Return the number of rows of a batch, whose first part may be a sparse matrix."""
    rows: int = jax.tree.leaves(data, is_leaf=is_jax_sparse)[0].shape[0]
    return rows


def num_replicas() -> int:
    """Return 1: a program on JAX sees all examples, on however many devices they are."""
    return 1


def sum_over_replicas(values: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the values, which are already sums over all examples."""
    return list(values)


def is_padded() -> bool:
    """Return whether some rows may not be examples."""
    return BATCH.valid is not None


needs_gather = is_padded


def gather_examples(data: SameNest) -> SameNest:
    """Return `data`, which must not be padded."""
    if BATCH.valid is not None:
        raise PaddedBatchError("a loss or a metric needs all examples at once")
    return data


select_valid_rows = gather_examples


def whole_batch_view() -> contextlib.AbstractContextManager[None]:
    """Return a context that changes nothing."""
    return contextlib.nullcontext()


def whole_state(metrics: Callable[[], Iterable[Any]]) -> contextlib.AbstractContextManager[None]:
    """Return a context that changes nothing."""
    return contextlib.nullcontext()


def on_some_row(function: _Function) -> _Function:
    """Return `function`: a program on JAX never gets a batch without rows."""
    return function


def is_row_by_row(function: Callable[..., Any], specs: Sequence[Any]) -> bool:
    """Return `True`; never called, because a program on JAX sees the whole batch."""
    return True


def keeps_sums(update: Callable[..., Any], specs: Sequence[Any], variables: Iterable[Variable]) -> bool:
    """Return `True`; never called, because a program on JAX sees the whole batch."""
    return True


def valid_rows_of(values: jax.Array) -> jax.Array | None:
    """Return for each row of `values` whether it counts; `None` if every row does, or rows are not examples."""
    if BATCH.valid is None or not values.shape or not values.shape[0] or values.shape[0] % BATCH.valid.shape[0]:
        return None
    return jnp.repeat(BATCH.valid, values.shape[0] // BATCH.valid.shape[0])


def zero_invalid_rows(values: jax.Array) -> jax.Array:
    """Return `values` with zeros in the rows that do not count."""
    valid = valid_rows_of(values)
    if valid is None:
        return values
    return jnp.where(jnp.reshape(valid, (-1, *[1] * (values.ndim - 1))), values, jnp.zeros_like(values))


def respects_padding(function: _Function) -> _Function:
    """Return `function`, marked for `jaxpr_axis.py`: padded rows change only themselves in what it returns."""

    @functools.wraps(function)
    def marked(*arguments: Nest) -> Nest:
        if BATCH.valid is None or not _TRACE.is_followed:
            return function(*arguments)

        def call(*arguments: Nest) -> Nest:
            return function(*arguments)

        call.__name__ = OF_EXAMPLES
        return jax.jit(call)(*arguments)

    return cast("_Function", marked)


@respects_padding
def batch_sum(values: jax.Array) -> jax.Array:
    """Return the sum over the first axis, of examples only; see `training/protocols.py`."""
    return jnp.sum(zero_invalid_rows(jnp.asarray(values)), axis=0)


@respects_padding
def batch_mean(values: jax.Array) -> jax.Array:
    """Return the mean over the first axis, of examples only; see `training/protocols.py`."""
    values = jnp.asarray(values)
    mean = jnp.sum(zero_invalid_rows(values), axis=0) / (values.shape[0] * valid_fraction())
    return mean.astype(jnp.result_type(values.dtype, float))


def valid_fraction() -> float | jax.Array:
    """Return the fraction of the rows that are examples: 1.0 if all are."""
    if BATCH.valid is None:
        return 1.0
    return BATCH.examples.astype("float32") / BATCH.valid.shape[0]


def static_examples(rows: int | None) -> int | jax.Array | None:
    """Return the number of rows that are examples, which is always known on JAX."""
    return rows if BATCH.valid is None else BATCH.examples


def row_weights(inputs: jax.Array) -> jax.Array | None:
    """Return float32 weights of one or zero that broadcast to `inputs`; `None` if every row counts."""
    valid = valid_rows_of(inputs)
    return None if valid is None else jnp.reshape(valid, (-1, *[1] * (inputs.ndim - 1))).astype("float32")


def position_in_batch(rows: int | jax.Array) -> tuple[int, int | jax.Array]:
    """Return 0 and `rows`: a program on JAX holds the whole batch."""
    return 0, rows


def has_local_statistics(normalization: Layer) -> bool:
    """Return `False`: a program on JAX sees the whole batch."""
    return False


@contextlib.contextmanager
def exclude_padding(layers: Sequence[Layer]) -> Iterator[None]:
    """Within the block, `layers` learn only from the examples of the current batch; see `batch_context`."""
    patches: list[Patch] = []
    if BATCH.valid is not None:
        patches = moments_patches(layers, _moments)
        patches += regularizer_patches(layers, _regularizer_of_examples)
    with patched(patches):
        yield


def _regularizer_of_examples(stock: Any) -> Callable[[jax.Array], jax.Array]:
    """Return a regulariser of the examples only, corrected for Keras's division by the number of rows.

    Other regularisers than these may be no sums, to which a row of zeros adds nothing.
    """

    def of_examples(outputs: jax.Array) -> jax.Array:
        return stock(zero_invalid_rows(outputs))

    if type(stock) in (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2):
        of_examples = respects_padding(of_examples)
    return lambda outputs: (
        of_examples(outputs) * (BATCH.valid.shape[0] / BATCH.examples if DIVIDES_REGULARIZERS else 1)
    )


def _moments(layer: Layer, stock: Any, inputs: jax.Array, mask: jax.Array) -> tuple[Any, Any]:
    return respects_padding(functools.partial(_moments_of_examples, layer, stock))(inputs, mask)


def _moments_of_examples(layer: Layer, stock: Any, inputs: jax.Array, mask: jax.Array) -> tuple[Any, Any]:
    weights = row_weights(inputs)
    if mask is not None:
        return stock(inputs, zero_invalid_rows(mask))
    if weights is None:
        return stock(inputs, mask)
    axes, weights = tuple(layer._reduction_axes), weights.astype(inputs.dtype)
    count = jnp.sum(weights * jnp.ones_like(inputs), axes, keepdims=True)
    mean = jnp.sum(weights * inputs, axes, keepdims=True) / count
    variance = jnp.sum(weights * jnp.square(inputs - mean), axes, keepdims=True) / count
    return jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
