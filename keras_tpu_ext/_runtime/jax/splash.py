"""JAX's Splash kernel for attention: what a mask means to it, and which blocks it visits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_ext._runtime.compat.keras3_jax import kernel_depth

# Sizes of the blocks into which the kernel can cut a length. On a v6e, 4 x 2,048 tokens with heads of 256 are said to
# take 2.13 ms, forward and backward, in blocks of 256, and 1.44, 1.35 and 1.42 ms in those of 512, 1,024 and 2,048.
BLOCKS = (1024, 512, 256, 128)
# In smaller blocks more of what a window hides is left out, and those of deep heads fill the memory of a v4 or v5e.
_SMALLER, _DEEP = 512, 128


@dataclasses.dataclass(frozen=True)
class Mask:
    """What a query sees, in terms that the kernel supports."""

    before: int | None = None  # number of positions before its own; `None` for all
    after: int | None = None  # number of positions after its own; `None` for all
    # Boolean array of shape (batch, queries), true for those that see anything; `None` for all.
    queries: jax.Array | None = None
    # Boolean array of shape (batch, keys), true for those that can be seen; `None` for all.
    keys: jax.Array | None = None
    # Boolean array of shape (batch, queries, keys), true for those that see each other; then all others say nothing.
    # Splash does not take it.
    pairs: jax.Array | None = None


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    *,
    mask: Mask,
    cap: float | None,
) -> jax.Array:
    """Return the kernel's attention.

    Queries are scaled; the arrays' shapes are (batch, length, heads, depth), with fewer heads for grouped queries.
    Equal `segments`, integers of shapes (batch, queries) and (batch, keys), see each other; `cap` caps logits.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    lengths = query.shape[1], key.shape[1]
    if mask.before is None and mask.after is None:
        one: Any = masks.FullMask(lengths)
    elif mask.before is None and mask.after == 0:
        one = masks.CausalMask(lengths)
    else:
        one = masks.LocalMask(lengths, (mask.before, mask.after), 0)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([one] * query.shape[2]),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=cap,
        block_sizes=_block_sizes(kernels, mask, *lengths, query.shape[-1]),
    )
    ids = None if segments is None else kernels.SegmentIds(*segments)
    heads_first = (_with_depth(jnp.swapaxes(array, 1, 2)) for array in (query, key, value))
    with jax.named_scope(visited_blocks(mask, *lengths, query.shape[-1])):
        found = jax.vmap(kernel)(*heads_first, ids)
    return jnp.swapaxes(found, 1, 2)[..., : value.shape[-1]]


def _with_depth(array: jax.Array) -> jax.Array:
    """Pad the last dimension to what the kernel needs, with zeros, which add nothing to a product."""
    depth = array.shape[-1]
    return jnp.pad(array, ((0, 0), (0, 0), (0, 0), (0, kernel_depth(depth) - depth)))


def _block_size(mask: Mask, length: int, depth: int) -> int:
    most = BLOCKS[0] if mask.before is None and depth <= _DEEP else _SMALLER
    return next(block for block in BLOCKS if block <= most and not length % block)


def visited_blocks(mask: Mask, queries: int, keys: int, depth: int) -> str:
    """Return how many of its blocks the kernel visits, in how many rows, as preflight reads it.

    Such as `"blocks_10_of_16_in_4"`.
    """
    q, kv = _block_size(mask, queries, depth), _block_size(mask, keys, depth)
    first, last = _reach(mask, queries, keys)
    visited = sum(-(-max(last[i : i + q]) // kv) - min(first[i : i + q]) // kv for i in range(0, queries, q))
    return f"blocks_{visited}_of_{queries // q * keys // kv}_in_{queries // q}"


def _reach(mask: Mask, queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each query the first key that its position lets it see, and the one after the last."""
    position = np.arange(queries)
    first = np.zeros(queries, int) if mask.before is None else np.clip(position - mask.before, 0, keys)
    last = np.full(queries, keys) if mask.after is None else np.clip(position + mask.after + 1, 0, keys)
    return first, last


def _block_sizes(kernels: Any, mask: Mask, queries: int, keys: int, depth: int) -> Any:
    q, kv = _block_size(mask, queries, depth), _block_size(mask, keys, depth)
    sizes = dict.fromkeys(("q", "q_dkv"), q) | dict.fromkeys(("kv", "kv_compute", "kv_dkv", "kv_dkv_compute"), kv)
    # One kernel for all gradients computes the logits once; it holds those of queries for each row of blocks.
    return kernels.BlockSizes(**{f"block_{name}": size for name, size in sizes.items()}, use_fused_bwd_kernel=True)


def sees_anything(mask: Mask, queries: int, keys: int) -> jax.Array | None:
    """Return booleans that broadcast to (batch, queries), true for those that see a key; `None` if all surely do."""
    if mask.pairs is not None:
        return jnp.any(mask.pairs, axis=-1)
    first, last = _reach(mask, queries, keys)
    seen: jax.Array | None = None if np.all(last > first) else jnp.asarray(last > first)[None]
    if mask.keys is not None and mask.before is None and mask.after is None:
        seen = jnp.any(mask.keys, axis=1, keepdims=True)
    elif mask.keys is not None:
        visible = jnp.broadcast_to(mask.keys.astype(jnp.int32), (mask.keys.shape[0], keys))
        count = jnp.pad(jnp.cumsum(visible, axis=1), ((0, 0), (1, 0)))
        seen = jnp.take(count, last, axis=1) > jnp.take(count, np.minimum(first, last), axis=1)
    if mask.queries is not None:
        seen = mask.queries if seen is None else seen & mask.queries
    return seen
