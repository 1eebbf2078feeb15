"""Attention on a TPU that matches Keras on a CPU: JAX's Splash kernel where possible, else XLA.

Keras 3.10 to 3.15 gives the kernel a causal mask and unscaled logits where neither was requested, and on several
chips the compiler rejects it; see docs/on_a_tpu.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import keras
from jax.sharding import PartitionSpec

from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Layer, Tensor
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, backend_nn, jax_mesh, shard_map
from keras_tpu_ext._runtime.jax.as_on_tpu import device_kind_of, traces_for_tpu
from keras_tpu_ext._runtime.jax.splash import BLOCKS, Mask, sees_anything, splash_attention

_LOG = logging.getLogger("keras_tpu_ext")
_LAYERS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_DTYPES = ("float32", "bfloat16")
# The compiler supports the kernel's bfloat16 products from v4 on.
_KINDS_WITHOUT_KERNEL = ("TPU v2", "TPU v3")
# By the compiler's estimate for v5e, the kernel is faster for BERT-base at 512 keys, but not for a vision transformer
# at 256 (benchmarks/attention_kernel.py); two layers of 12 heads of 64 took 1.05, 0.61 and 0.43 of XLA's time at 256,
# 512 and 1,024 keys. The same threshold is used for other chips.
PAYS_FROM = 512
_TOLD: set[str] = set()


class _Context(threading.local):
    """The mesh that this thread traces for, and the masks of the attention layer that is running."""

    active = False
    mesh: Mesh | None = None
    batch_axis = ""
    computed: tuple[Tensor, Mask] | None = None  # a layer's mask and its meaning
    mask: Mask | None = None  # that of the running layer


_CONTEXT = _Context()


@contextlib.contextmanager
def exact_attention(mesh: Mesh | None, batch_axis: str, *, replaces: bool = False) -> Iterator[None]:
    """Within the block, make Keras's attention exact where it is traced for a TPU.

    Args:
        mesh: The mesh of the devices, which may be abstract; `None` for one device.
        batch_axis: Its axis along which batches are sharded; heads are sharded along the other axes.
        replaces: Whether the block counts also within another one; else the outermost does.
    """
    if (_CONTEXT.active and not replaces) or not traces_for_tpu():
        yield
        return
    before = _CONTEXT.active, _CONTEXT.mesh, _CONTEXT.batch_axis
    with patched(_patches()):
        _CONTEXT.active, _CONTEXT.mesh, _CONTEXT.batch_axis = True, mesh, batch_axis
        try:
            yield
        finally:
            _CONTEXT.active, _CONTEXT.mesh, _CONTEXT.batch_axis = before


def exact_attention_of(
    distribution: keras.distribution.Distribution | None, *, replaces: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return `exact_attention` on the devices of a distribution; `None` is one device."""
    if distribution is None:
        return exact_attention(None, "", replaces=replaces)
    return exact_attention(jax_mesh(distribution), distribution.batch_dim_name, replaces=replaces)


def _patches() -> list[Patch]:
    patches: list[Patch] = [(backend_nn, "dot_product_attention", _exact)]
    for layer in _LAYERS:
        patches += [
            (layer, "_compute_attention_mask", _remembering_mask),
            (layer, "_compute_attention", _with_remembered_mask),
        ]
    return patches


def _remembering_mask(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the method of a layer that combines all masks into one, to remember what they were."""

    @functools.wraps(original)
    def compute(
        layer: Layer,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor = None,
        value_mask: Tensor = None,
        key_mask: Tensor = None,
        attention_mask: Tensor = None,
        use_causal_mask: bool = False,
        **more: object,
    ) -> Tensor:
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        mask = original(
            layer, query, value, **masks, attention_mask=attention_mask, use_causal_mask=use_causal_mask, **more
        )
        _CONTEXT.computed = None
        if mask is not None and attention_mask is None and not more:
            window = getattr(layer, "_sliding_window", None) or getattr(layer, "sliding_window", None)
            reach = None if window is None else window - 1
            keys = [jnp.asarray(one, bool) for one in (value_mask, key_mask) if one is not None]
            queries = None if query_mask is None else jnp.asarray(query_mask, bool)
            both = functools.reduce(jnp.logical_and, keys) if keys else None
            _CONTEXT.computed = mask, Mask(reach, 0 if use_causal_mask else reach, queries, both)
        return mask

    return compute


def _with_remembered_mask(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the attention of a layer, to give Keras's own function the meaning of the layer's mask."""

    @functools.wraps(original)
    def compute(
        layer: Layer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor = None,
        *rest: object,
        **kwargs: object,
    ) -> Tensor:
        remembered, _CONTEXT.computed = _CONTEXT.computed, None
        mask, meaning = remembered or (None, None)
        before, _CONTEXT.mask = _CONTEXT.mask, meaning if mask is attention_mask else None
        try:
            return original(layer, query, key, value, attention_mask, *rest, **kwargs)
        finally:
            _CONTEXT.mask = before

    return compute


def _exact(original: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @functools.wraps(original)
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor = None,
        mask: Tensor = None,
        scale: float | None = None,
        is_causal: bool = False,
        flash_attention: bool | None = None,
        attn_logits_soft_cap: float | None = None,
    ) -> jax.Array:
        given = {"bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal}
        cap = {} if attn_logits_soft_cap is None else {"attn_logits_soft_cap": attn_logits_soft_cap}
        if not _CONTEXT.active or not traces_for_tpu():
            return original(query, key, value, **given, flash_attention=flash_attention, **cap)
        query, key, value = _of_one_dtype(query, key, value)
        scale = 1 / query.shape[-1] ** 0.5 if scale is None else scale
        seen = _CONTEXT.mask if mask is not None else Mask()
        if flash_attention is None:
            flash_attention = keras.config.is_flash_attention_enabled()
        wanted = key.shape[1] >= PAYS_FROM if flash_attention is None else flash_attention
        if bias is None and query.shape[1] == key.shape[1] and not query.shape[1] % BLOCKS[-1]:
            _tell_once()  # Keras itself gives such a call to the kernel
        if wanted and seen is not None and bias is None and _kernel_takes(query, key, value):
            if is_causal:
                seen = dataclasses.replace(seen, after=0)
            return _by_kernel(query, key, value, seen, scale, attn_logits_soft_cap)
        if attn_logits_soft_cap is not None:
            return _capped(query, key, value, bias, mask, scale, is_causal, attn_logits_soft_cap)
        return original(query, key, value, **{**given, "scale": scale}, flash_attention=False)

    return attention


def _of_one_dtype(*arrays: Tensor) -> list[jax.Array]:
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    dtype = keras.backend.result_type(*(tensor.dtype for tensor in tensors))
    return [tensor.astype(dtype) for tensor in tensors]


def _kernel_takes(query: jax.Array, key: jax.Array, value: jax.Array) -> bool:
    """Return whether JAX's kernel takes these arrays, the devices support it, and the mesh divides them evenly."""
    kind = device_kind_of(_CONTEXT.mesh)
    if not kind.startswith("TPU") or kind in _KINDS_WITHOUT_KERNEL:
        return False
    if any(array.ndim != 4 or str(array.dtype) not in _DTYPES for array in (query, key, value)):
        return False
    if query.shape[1] % BLOCKS[-1] or key.shape[1] % BLOCKS[-1] or query.shape[2] % key.shape[2]:
        return False
    over_batch, over_heads = _mesh_sizes()
    return not (query.shape[0] % over_batch or key.shape[2] % over_heads)


def _mesh_sizes() -> tuple[int, int]:
    """Return the numbers of devices over which batches and heads are sharded."""
    shape = {} if _CONTEXT.mesh is None else dict(_CONTEXT.mesh.shape)
    over_batch = shape.pop(_CONTEXT.batch_axis, 1)
    return over_batch, math.prod(shape.values())


def _by_kernel(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, scale: float, cap: float | None
) -> jax.Array:
    """Return attention by the Splash kernel; the arrays' dimensions are batch, length, heads and depth."""
    segments = None
    if mask.keys is not None:
        visible = mask.keys.astype(jnp.int32)
        segments = jnp.ones(query.shape[:2], jnp.int32), jnp.broadcast_to(visible, key.shape[:2])
    attend: Callable[..., jax.Array] = functools.partial(splash_attention, mask=mask, cap=cap)
    query = query * jnp.asarray(scale, query.dtype)
    if _CONTEXT.mesh is not None and _CONTEXT.mesh.size > 1:
        heads = tuple(name for name in _CONTEXT.mesh.axis_names if name != _CONTEXT.batch_axis) or None
        split, rows = PartitionSpec(_CONTEXT.batch_axis, None, heads), PartitionSpec(_CONTEXT.batch_axis)
        attend = shard_map(attend, _CONTEXT.mesh, (split, split, split, rows), split)
    found = attend(query, key, value, segments)
    seen = sees_anything(mask, query.shape[1], key.shape[1])
    if seen is None:
        return found
    # In Keras a query that sees nothing gets the mean of all values, because its logits are all equal.
    mean = jnp.mean(value.astype(jnp.float32), axis=1, keepdims=True).astype(found.dtype)
    mean = jnp.repeat(mean, query.shape[2] // key.shape[2], axis=2)
    return jnp.where(seen[:, :, None, None], found, mean)


def _capped(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Tensor,
    mask: Tensor,
    scale: float,
    causal: bool,
    cap: float,
) -> jax.Array:
    """Return attention with capped logits, which JAX's own function lacks: `cap * tanh(logits / cap)`.

    Source: https://arxiv.org/abs/2408.00118, section 2.
    """
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(array, groups, axis=2) for array in (key, value))
    logits = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32) * scale
    logits = cap * jnp.tanh(logits / cap)
    if bias is not None:
        logits += jnp.asarray(bias, logits.dtype)
    lowest = -0.7 * float(jnp.finfo(logits.dtype).max)
    if mask is not None:
        logits = jnp.where(jnp.asarray(mask, bool), logits, lowest)
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[2:], bool)), logits, lowest)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits).astype(value.dtype), value)


def warn_of_stock_attention(model: keras.Model, program: str) -> None:
    """Warn that a plain model computes something else on a TPU, if Keras has given its attention to the kernel.

    Args:
        model: A model that takes Keras's own step.
        program: Text of its step, lowered for a TPU.
    """
    if hasattr(backend_nn, "wrap_flash_attention") and "splash_mha" in program:
        _LOG.warning(
            "On a TPU Keras %s computes the attention of %r as if it were causal and unscaled, and that is what this "
            "step does. Make the model in kte.strategy_scope(), or as a kte.TPUModel, for what it computes on a CPU.",
            keras.__version__,
            model.name,
        )


def _tell_once() -> None:
    """Log once that Keras itself would compute something else."""
    text = (
        f"Keras {keras.__version__} computes attention on a TPU as if it were causal and unscaled; keras-tpu-ext "
        "computes what it is on a CPU. Text for Keras: docs/upstream/attention_on_tpu.md"
    )
    if hasattr(backend_nn, "wrap_flash_attention") and text not in _TOLD:
        _TOLD.add(text)
        _LOG.warning(text)
