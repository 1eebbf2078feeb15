"""A kernel for attention with dropout: logits and probabilities never leave the chip's own memory.

It drops what `tpu_operations` drops of an array of probabilities: by a hash of the seed, the call, and the index.
A program of the kernel has some queries and all keys, so that a softmax is one pass. The gradient computes the
probabilities again, and keeps nothing but the inputs.

Heads of fewer than 128 numbers share the 128 lanes of a vector: the arrays stay as the projections make them, and a
product with one head is one with the others' numbers set to zero, which costs a matrix unit the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_ext._runtime.compat.keras3_jax import compiler_params
from keras_tpu_ext._runtime.keras3.tpu_operations import first_kept

LANES = 128
# Numbers of an array of logits, by which the compiler takes the fewest cycles; and where no block of queries divides
# all, at most.
_LOGITS, _MOST_LOGITS = 2**18, 2**19
_BLOCKS = (512, 256, 128, 64, 32)
_MIB = 2**20
# Of the chip's own memory, what a kernel may take unasked, and may ask for. A v4 has 16 MiB, others 64 or more.
_UNASKED, _ASKED = 14 * _MIB, 48 * _MIB
_SMALL = ("TPU v4", "TPU v4 lite")
_LOWEST = -0.7 * float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What does not change from step to step.

    Attributes:
        depth: Numbers of a head.
        scale: Factor of the logits.
        rate: Fraction of the probabilities that are dropped.
        before: Number of positions before its own that a query sees; `None` for all.
        after: Number of positions after its own that a query sees; `None` for all.
        block: Number of queries of a program.
        groups: Number of heads of queries for each head of keys and values; 1 for heads that share lanes.
        cap: `cap * tanh(logits / cap)` are the logits; `None` for those as they are.
    """

    depth: int
    scale: float
    rate: float
    before: int | None
    after: int | None
    block: int
    groups: int = 1
    cap: float | None = None


@dataclasses.dataclass(frozen=True)
class Words:
    """What the hash of a probability is made of, int32."""

    rows: jax.Array  # of shape (batch,), the index of the example's first probability
    keys: jax.Array  # of shape (batch,), the first key
    heads: jax.Array  # of shape (heads,), the index of the head's first probability in its example
    second_key: jax.Array  # of shape (1,)


jax.tree_util.register_dataclass(Words, ["rows", "keys", "heads", "second_key"], [])


def block_of_queries(
    width: int, depth: int, queries: int, keys: int, *, itemsize: int, device_kind: str
) -> int | None:
    """Return the number of queries of a program; `None` if the kernel does not take such arrays."""
    if width % LANES or (LANES % depth and depth % LANES):
        return None
    divisors = [size for size in (queries, *_BLOCKS) if not queries % size and size * keys <= _LOGITS]
    block = divisors[0] if divisors else queries
    memory = _UNASKED if device_kind in _SMALL else _ASKED
    fits = block * keys <= _MOST_LOGITS and _memory(block, keys, max(LANES, depth), itemsize) <= memory
    return block if fits else None


def _memory(block: int, keys: int, lanes: int, itemsize: int) -> int:
    """Return about how many bytes of the chip's own memory a program of the gradient takes."""
    buffers = 2 * itemsize * lanes * (3 * block + 4 * keys)  # two of each array
    sums, logits = 2 * 4 * keys * lanes, 8 * 4 * block * keys
    return buffers + sums + logits


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_kernel(
    rule: Rule, query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array | None, words: Words
) -> jax.Array:
    """Return attention of shape (batch, queries, heads * depth); `query`, `key` and `value` have such shapes too.

    `visible` are int32 of shape (batch, queries or 1, keys), not zero for what can be seen; `None` for all.
    """
    return _call(_forward, rule, [query, key, value], visible, words, [query])[0]


def _forward_pass(rule: Rule, *arrays: Any) -> tuple[jax.Array, Any]:
    return attention_kernel(rule, *arrays), arrays


def _backward_pass(rule: Rule, arrays: Any, upstream: jax.Array) -> tuple[Any, ...]:
    query, key, value, *others = arrays
    return (*_gradients(rule, query, key, value, upstream, *others), *_no_gradients(others))


attention_kernel.defvjp(_forward_pass, _backward_pass)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(
    rule: Rule,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    upstream: jax.Array,
    visible: jax.Array | None,
    words: Words,
) -> tuple[jax.Array, ...]:
    return tuple(_call(_backward, rule, [query, key, value, upstream], visible, words, [query, key, value]))


def _gradients_forward_pass(rule: Rule, *arrays: Any) -> tuple[Any, Any]:
    return _gradients(rule, *arrays), arrays


def _gradients_backward_pass(rule: Rule, arrays: Any, upstreams: Any) -> tuple[Any, ...]:
    *given, visible, words = arrays

    def gradients(query: jax.Array, key: jax.Array, value: jax.Array, upstream: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vjp(lambda q, k, v: _by_xla(rule, q, k, v, visible, words), query, key, value)[1](upstream)

    return (*jax.vjp(gradients, *given)[1](upstreams), *_no_gradients((visible, words)))


_gradients.defvjp(_gradients_forward_pass, _gradients_backward_pass)


def _no_gradients(arrays: Any) -> tuple[np.ndarray, ...]:
    return jax.tree.map(lambda one: np.zeros(one.shape, jax.dtypes.float0), tuple(arrays))


def _by_xla(
    rule: Rule, query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array | None, words: Words
) -> jax.Array:
    """Return what the kernel does, for gradients of its gradients."""
    q, k, v = (array.reshape(*array.shape[:2], -1, rule.depth) for array in (query, key, value))
    k, v = (jnp.repeat(array, rule.groups, axis=2) for array in (k, v))
    logits = _logits(rule, jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32))
    queries, keys = (jax.lax.broadcasted_iota(jnp.int32, logits.shape[2:], axis) for axis in (0, 1))
    weights, total = _softmax(rule, logits, [] if visible is None else [visible[:, None]], queries, keys)
    weights = weights / total
    if rule.rate:
        rows, first_keys, heads = words.rows[:, None, None, None], words.keys[:, None, None, None], words.heads
        index = queries * logits.shape[3] + keys + rows + heads[:, None, None]
        weights = jnp.where(_is_kept(rule, index, first_keys, words.second_key), weights / (1 - rule.rate), 0.0)
    found = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return found.astype(query.dtype).reshape(query.shape)


def _call(
    body: Callable[..., None],
    rule: Rule,
    arrays: Sequence[jax.Array],
    visible: jax.Array | None,
    words: Words,
    results: Sequence[jax.Array],
) -> Any:
    """Run a kernel; its arrays and results are that of queries, those of keys and values, and another of queries."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    batch, queries, width = arrays[0].shape
    keys = arrays[1].shape[1]
    lanes = max(LANES, rule.depth)
    of_queries = pl.BlockSpec((None, rule.block, lanes), lambda b, h, i, *_: (b, i, h))
    of_keys = pl.BlockSpec((None, keys, lanes), lambda b, h, i, *_: (b, 0, jax.lax.div(h, rule.groups)))
    specs = [of_queries, of_keys, of_keys, of_queries]
    masks = [] if visible is None else [visible]
    rows = queries if masks and masks[0].shape[1] > 1 else 1
    mask = pl.BlockSpec((None, min(rows, rule.block), keys), lambda b, h, i, *_: (b, i if rows > 1 else 0, 0))
    memory = _memory(rule.block, keys, lanes, arrays[0].dtype.itemsize)
    products = (2 if len(results) == 1 else 5) * batch * queries * keys * width
    return pl.pallas_call(
        functools.partial(body, rule),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(batch, width // lanes, queries // rule.block),
            in_specs=[*([mask] * len(masks)), *specs[: len(arrays)]],
            out_specs=specs[: len(results)],
            scratch_shapes=[pltpu.VMEM((keys, lanes), jnp.float32) for _ in results[1:]],
        ),
        out_shape=[jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results],
        compiler_params=compiler_params(
            dimension_semantics=("parallel", "parallel" if rule.groups == 1 else "arbitrary", "arbitrary"),
            vmem_limit_bytes=None if memory <= _UNASKED else 3 * memory // 2,
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products,
            transcendentals=batch * width // rule.depth * queries * keys,
            bytes_accessed=sum(one.size * one.dtype.itemsize for one in (*arrays, *results)),
        ),
        name=f"kte_attention_kernel{body.__name__}",
    )(words.rows, words.keys, words.heads, words.second_key, *masks, *arrays)


def _forward(rule: Rule, *refs: Any) -> None:
    words, visible, (query, key, value, result) = refs[:4], refs[4:-4], refs[-4:]
    found: Any = None
    for head, lanes in _heads(rule, query):
        logits = _logits(rule, _product(_only(query[...], lanes), key[...], (1, 1)))
        weights, total = _softmax(rule, logits, visible, *_positions(rule, logits.shape))
        kept = _dropping(rule, words, head, weights.shape)
        of_head = _product(kept(weights).astype(value.dtype), value[...], (1, 0)) / (total * (1 - rule.rate))
        found = of_head if found is None else jnp.where(lanes, of_head, found)
    result[...] = found.astype(result.dtype)


def _backward(rule: Rule, *refs: Any) -> None:
    from jax.experimental import pallas as pl

    words, visible, refs = refs[:4], refs[4:-9], refs[-9:]
    query, key, value, upstream, of_query, of_key, of_value, *sums = refs
    of_queries: Any = 0.0
    of_keys: Any = 0.0
    of_values: Any = 0.0
    for head, lanes in _heads(rule, query):
        q, up = _only(query[...], lanes), _only(upstream[...], lanes)
        logits = _logits(rule, _product(q, key[...], (1, 1)))
        weights, total = _softmax(rule, logits, visible, *_positions(rule, logits.shape))
        weights = weights / total
        kept = _dropping(rule, words, head, weights.shape)
        of_weights = kept(_product(up, value[...], (1, 1)))
        along = jnp.sum(weights * of_weights, axis=1, keepdims=True)
        of_logits = weights * (of_weights - along) * (rule.scale / (1 - rule.rate))
        if rule.cap is not None:
            of_logits *= 1 - jnp.square(logits / rule.cap)
        of_logits = of_logits.astype(q.dtype)
        of_queries += _product(of_logits, _only(key[...], lanes), (1, 0))
        of_keys += _product(of_logits, q, (0, 0))
        of_values += _product(kept(weights).astype(up.dtype), up, (0, 0)) / (1 - rule.rate)
    of_query[...] = of_queries.astype(of_query.dtype)
    blocks = pl.num_programs(2)
    step = jax.lax.rem(pl.program_id(1), rule.groups) * blocks + pl.program_id(2)  # of those with the same keys

    @pl.when(step == 0)
    def _first() -> None:
        for total, found in zip(sums, (of_keys, of_values), strict=True):
            total[...] = found

    @pl.when(step > 0)
    def _more() -> None:
        for total, found in zip(sums, (of_keys, of_values), strict=True):
            total[...] += found

    @pl.when(step == rule.groups * blocks - 1)
    def _last() -> None:
        for total, result in zip(sums, (of_key, of_value), strict=True):
            result[...] = total[...].astype(result.dtype)


def _heads(rule: Rule, query: Any) -> list[tuple[Any, jax.Array | None]]:
    """Return the heads of a program, each with its lanes, booleans of shape (1, lanes), or `None` for all."""
    from jax.experimental import pallas as pl

    lanes = query.shape[-1]
    if rule.depth == lanes:
        return [(pl.program_id(1), None)]
    count = lanes // rule.depth
    place = jax.lax.broadcasted_iota(jnp.int32, (1, lanes), 1)
    own = [(place >= i * rule.depth) & (place < (i + 1) * rule.depth) for i in range(count)]
    return [(pl.program_id(1) * count + i, lanes) for i, lanes in enumerate(own)]


def _only(array: jax.Array, lanes: jax.Array | None) -> jax.Array:
    return array if lanes is None else jnp.where(lanes, array, jnp.zeros_like(array))


def _logits(rule: Rule, products: jax.Array) -> jax.Array:
    if rule.cap is None:
        return products * rule.scale
    return rule.cap * jnp.tanh(products * (rule.scale / rule.cap))


def _softmax(
    rule: Rule, logits: jax.Array, visible: Sequence[Any], queries: jax.Array, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the exponentials of a softmax, of shape (..., queries, keys), and their sum over keys."""
    for mask in visible:
        logits = jnp.where(mask[...] != 0, logits, _LOWEST)
    if rule.before is not None:
        logits = jnp.where(keys >= queries - rule.before, logits, _LOWEST)
    if rule.after is not None:
        logits = jnp.where(keys <= queries + rule.after, logits, _LOWEST)
    # Of a query that sees nothing, all weights are 0; of others one is 1.
    weights = jnp.exp(logits - jnp.maximum(jnp.max(logits, axis=-1, keepdims=True), _LOWEST / 2))
    return weights, jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 0.5)


def _positions(rule: Rule, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the position of the query and of the key of each logit."""
    from jax.experimental import pallas as pl

    queries = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + pl.program_id(2) * rule.block
    return queries, jax.lax.broadcasted_iota(jnp.int32, shape, 1)


def _dropping(
    rule: Rule, words: Sequence[Any], head: Any, shape: tuple[int, int]
) -> Callable[[jax.Array], jax.Array]:
    """Return a function that sets what is dropped to 0: where the random bits, as a number, are below the rate."""
    from jax.experimental import pallas as pl

    if not rule.rate:
        return lambda array: array
    rows, keys, heads, second_key = words
    example = pl.program_id(0)
    queries, places = _positions(rule, shape)
    index = queries * shape[1] + places + (rows[example] + heads[head])
    kept = _is_kept(rule, index, keys[example], second_key)
    return lambda array: jnp.where(kept, array, 0.0)


def _is_kept(rule: Rule, index: jax.Array, first_key: Any, second_key: Any) -> jax.Array:
    return _mix(_mix(index ^ first_key) ^ second_key[0]) >= first_kept(rule.rate)


def _mix(word: jax.Array) -> jax.Array:
    """Return `tpu_operations`' mixer of words with a sign, since a kernel has no others."""
    shifted = jax.lax.shift_right_logical
    word = (word ^ shifted(word, np.int32(16))) * np.int32(0x85EBCA6B - 2**32)
    word = (word ^ shifted(word, np.int32(13))) * np.int32(0xC2B2AE35 - 2**32)
    return word ^ shifted(word, np.int32(16))


def _product(left: jax.Array, right: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)
