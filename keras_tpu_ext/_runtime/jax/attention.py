"""Attention on a TPU that matches Keras on a CPU: by a kernel where possible, else by XLA.

Keras 3.10 to 3.15 gives JAX's Splash kernel a causal mask and unscaled logits where neither was requested, and on
several chips the compiler rejects it; see docs/tpus.md. Where operations for a TPU are asked for, this package's
kernel takes what suits it, also with dropout.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

from keras_tpu_ext._runtime.common.patches import Patch, temporarily
from keras_tpu_ext._runtime.common.types import Layer, Tensor
from keras_tpu_ext._runtime.compat.keras3_jax import ZEROS_WHERE_ALL_IS_HIDDEN, backend_nn, shard_map
from keras_tpu_ext._runtime.jax.attention_kernel import LANES, Rule, Words, attention_kernel, block_of_queries
from keras_tpu_ext._runtime.jax.batch import respects_padding
from keras_tpu_ext._runtime.jax.splash import BLOCKS, Mask, sees_anything, splash_attention
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, device_kind_of, traced_devices, traces_for_tpu
from keras_tpu_ext._runtime.keras3.tpu_operations import computes_for_tpu, row_words, seed_words

_LOG = logging.getLogger("keras_tpu_ext")
_LAYERS = ("MultiHeadAttention", "GroupQueryAttention")
_DTYPES = ("float32", "bfloat16")
# The compiler supports the kernel's bfloat16 products from v4 on.
_KINDS_WITHOUT_KERNEL = ("TPU v2", "TPU v3")
# By the compiler's estimate for v5e, the kernel is faster for BERT-base at 512 keys, but not for a vision transformer
# at 256 (benchmarks/attention_kernel.py); two layers of 12 heads of 64 took 1.05, 0.61 and 0.43 of XLA's time at 256,
# 512 and 1,024 keys. The same threshold is used for other chips.
PAYS_FROM = 512
_WHOLE = PartitionSpec()
_NUMBERS = (int, float, np.floating)  # of which a kernel makes constants


class _Masks(threading.local):
    """The masks of the attention layer that this thread runs."""

    computed: tuple[Tensor, Mask | None] | None = None  # a layer's mask and its meaning
    current: Mask | None = None  # that of the running layer


_MASKS = _Masks()


def attention_patches() -> list[Patch]:
    """Return patches that make Keras's attention exact where it is traced for a TPU."""
    if not traces_for_tpu():
        return []
    patches: list[Patch] = [(backend_nn, "keras.src.backend.jax.nn.dot_product_attention", _exact)]
    for name in _LAYERS:
        layer, path = getattr(keras.layers, name), f"keras.layers.{name}"
        patches += [
            (layer, f"{path}._compute_attention_mask", _remembering_mask),
            (layer, f"{path}._compute_attention", _with_remembered_mask),
        ]
    return patches


def _remembering_mask(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the method of a layer that combines all masks into one, to remember what they were."""

    @functools.wraps(original)
    def compute(
        layer: Layer,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        **more: object,
    ) -> Tensor:
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        mask = original(
            layer, query, value, **masks, attention_mask=attention_mask, use_causal_mask=use_causal_mask, **more
        )
        _MASKS.computed = None
        if mask is None or more or mask.dtype != bool:  # of numbers, Keras's softmax takes those above 0.5 for true
            return mask
        of_keys = [value_mask, key_mask]
        if attention_mask is not None and len(attention_mask.shape) == 3 and attention_mask.shape[1] == 1:
            of_keys.append(attention_mask[:, 0])
        elif attention_mask is not None:
            _MASKS.computed = mask, Mask(pairs=mask) if len(mask.shape) == 3 else None
            return mask
        window = getattr(layer, "_sliding_window", None) or getattr(layer, "sliding_window", None)
        reach = None if window is None else window - 1
        keys = [jnp.asarray(one, bool) for one in of_keys if one is not None]
        queries = None if query_mask is None else jnp.asarray(query_mask, bool)
        both = functools.reduce(jnp.logical_and, keys) if keys else None
        _MASKS.computed = mask, Mask(reach, 0 if use_causal_mask else reach, queries, both)
        return mask

    return compute


def _with_remembered_mask(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap the attention of a layer: the kernel with dropout computes it, or Keras with the meaning of the mask."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compute(*args: object, **kwargs: object) -> jax.Array:
        call = signature.bind(*args, **kwargs).arguments
        remembered, _MASKS.computed = _MASKS.computed, None
        mask, meaning = remembered or (None, None)
        meaning = meaning if mask is call.get("attention_mask") else None
        with temporarily(_MASKS, current=meaning):
            found = _with_dropout(**call)
            return original(*args, **kwargs) if found is None else (found, None)

    return compute


def _with_dropout(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    training: bool | None = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> jax.Array | None:
    """Return the attention of a layer with dropout by this package's kernel; `None` if it has none or does not suit.

    Keras itself computes it without any kernel, also in inference. A query that sees nothing gets zeros.
    """
    devices, rate = traced_devices(), _rate_of_dropout(self)
    seen = Mask() if attention_mask is None else _MASKS.current
    wants_scores = return_attention_scores or getattr(self, "_return_attention_scores", False)
    if not 0 < rate < 1 or wants_scores or self._flash_attention is False:
        return None
    if not ZEROS_WHERE_ALL_IS_HIDDEN and attention_mask is not None:
        return None
    if devices is None or seen is None or not traces_for_tpu() or _block(query, key, value, devices) is None:
        return None
    if use_causal_mask:
        seen = dataclasses.replace(seen, after=0)
    scale: Any = self._inverse_sqrt_key_dim if hasattr(self, "_inverse_sqrt_key_dim") else self._inverse_sqrt_head_dim
    if not isinstance(scale, _NUMBERS):
        return None
    drawn = (rate, seed_words(self._dropout_layer.seed_generator)) if training else ()
    found = _by_own_kernel(query, key, value, seen, float(scale), devices, *drawn)
    return found if seen.queries is None else jnp.where(seen.queries[:, :, None, None], found, 0)


def _rate_of_dropout(layer: Any) -> float:
    """Return the rate of a layer's dropout; 0 too if a subclass or `attention_axes` have changed what is dropped."""
    softmax = type(layer)._masked_softmax
    dropout: Any = getattr(layer, "_dropout_layer", None)
    is_stock = softmax in [getattr(keras.layers, name)._masked_softmax for name in _LAYERS]
    is_stock &= type(dropout) is keras.layers.Dropout and getattr(layer, "_attention_axes", (1,)) == (1,)
    return float(dropout.rate) if is_stock else 0.0


def _exact(original: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @functools.wraps(original)
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        scale: float | None = None,
        is_causal: bool = False,
        flash_attention: bool | None = None,
        attn_logits_soft_cap: float | None = None,
    ) -> jax.Array:
        given = {"bias": bias, "mask": mask, "scale": scale, "is_causal": is_causal}
        cap = {} if attn_logits_soft_cap is None else {"attn_logits_soft_cap": attn_logits_soft_cap}
        devices = traced_devices()
        if devices is None or not devices.exact_attention or not traces_for_tpu():
            return original(query, key, value, **given, flash_attention=flash_attention, **cap)
        query, key, value = _of_one_dtype(query, key, value)
        scale = 1 / query.shape[-1] ** 0.5 if scale is None else scale
        mask = mask if mask is None else keras.ops.convert_to_tensor(mask)
        seen = _meaning_of(mask, causal=is_causal)
        if flash_attention is None:
            flash_attention = keras.config.is_flash_attention_enabled()
        wanted = key.shape[1] >= PAYS_FROM if flash_attention is None else flash_attention
        if bias is None and query.shape[1] == key.shape[1] and not query.shape[1] % BLOCKS[-1]:
            _warn_once()  # Keras itself gives such a call to the kernel
        if seen is not None and bias is None and not np.ndim(scale):
            sees_far = seen.before is None and seen.after is None  # else the other kernel visits fewer blocks
            are_numbers = all(isinstance(one, _NUMBERS) for one in (scale, *cap.values()))
            if flash_attention is not False and sees_far and are_numbers and _block(query, key, value, devices):
                found = _by_own_kernel(query, key, value, seen, scale, devices, cap=attn_logits_soft_cap)
                return _mean_where_nothing_is_seen(found, value, seen)
            if wanted and seen.pairs is None and _suits_splash(query, key, value, devices):
                return _by_splash(query, key, value, seen, scale, attn_logits_soft_cap, devices)
        if attn_logits_soft_cap is not None:
            return _capped(query, key, value, bias, mask, scale, is_causal, attn_logits_soft_cap)
        return original(query, key, value, **{**given, "scale": scale}, flash_attention=False)

    return attention


def _meaning_of(mask: Tensor | None, *, causal: bool) -> Mask | None:
    """Return what a mask of shape (batch, heads, queries, keys) means; `None` if kernels have no words for it."""
    seen = Mask() if mask is None else _MASKS.current
    if seen is not None:
        return dataclasses.replace(seen, after=0) if causal else seen
    assert mask is not None
    is_for_all_heads = len(mask.shape) == 4 and mask.shape[1] == 1
    return Mask(pairs=jnp.asarray(mask[:, 0], bool)) if is_for_all_heads and not causal else None


def _of_one_dtype(*arrays: Tensor) -> list[jax.Array]:
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    dtype = keras.backend.result_type(*(tensor.dtype for tensor in tensors))
    return [tensor.astype(dtype) for tensor in tensors]


def _suits_kernels(query: jax.Array, key: jax.Array, value: jax.Array, devices: TracedDevices) -> bool:
    """Return whether kernels take these arrays, the devices support them, and the mesh divides the arrays evenly."""
    kind = device_kind_of(devices.mesh)
    if not kind.startswith("TPU") or kind in _KINDS_WITHOUT_KERNEL:
        return False
    if any(array.ndim != 4 or not array.size or str(array.dtype) not in _DTYPES for array in (query, key, value)):
        return False
    over_batch, over_heads = _divisions(devices)
    return not (query.shape[0] % over_batch or key.shape[2] % over_heads)


def _divisions(devices: TracedDevices) -> tuple[int, int]:
    """Return into how many parts the mesh divides a batch, and heads."""
    sizes = {} if devices.mesh is None else dict(devices.mesh.shape)
    return sizes.pop(devices.batch_axis, 1), math.prod(sizes.values())


def _suits_splash(query: jax.Array, key: jax.Array, value: jax.Array, devices: TracedDevices) -> bool:
    suits = not (query.shape[1] % BLOCKS[-1] or key.shape[1] % BLOCKS[-1] or query.shape[2] % key.shape[2])
    return suits and _suits_kernels(query, key, value, devices)


def _block(query: jax.Array, key: jax.Array, value: jax.Array, devices: TracedDevices) -> int | None:
    """Return how many queries a program of this package's kernel has; `None` if it is not asked for or suitable."""
    if not computes_for_tpu() or not _suits_kernels(query, key, value, devices):
        return None
    heads, depth = query.shape[2:]
    if heads % key.shape[2] or depth != key.shape[3] or key.shape != value.shape:
        return None
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        return None
    width, kind = heads // _divisions(devices)[1] * depth, device_kind_of(devices.mesh)
    lengths = query.shape[1], key.shape[1]
    return block_of_queries(width, depth, *lengths, itemsize=query.dtype.itemsize, device_kind=kind)


def _by_own_kernel(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    seen: Mask,
    scale: float,
    devices: TracedDevices,
    rate: float = 0.0,
    seed: Sequence[Any] = (0, 0),
    *,
    cap: float | None = None,
) -> jax.Array:
    """Return attention by this package's kernel; the arrays' dimensions are batch, length, heads and depth."""
    (batch, queries, heads, depth), keys = query.shape, key.shape[1]
    block = _block(query, key, value, devices)
    assert block is not None
    groups = heads // key.shape[2]
    if depth < LANES:
        key, value, groups = jnp.repeat(key, groups, axis=2), jnp.repeat(value, groups, axis=2), 1
    rule = Rule(depth, scale, rate, seen.before, seen.after, block, groups, cap)
    visible = seen.pairs if seen.keys is None else seen.keys[:, None]
    if visible is not None:
        visible = jnp.broadcast_to(visible.astype(jnp.int32), (batch, visible.shape[1], keys))
    rows, first_keys, second_key = row_words(seed, batch, heads * queries * keys)
    of_heads = jnp.arange(heads, dtype=jnp.uint32) * np.uint32(queries * keys)
    words = Words(rows, first_keys, of_heads, jnp.reshape(second_key, 1))
    words = jax.tree.map(lambda one: jax.lax.bitcast_convert_type(jnp.asarray(one, "uint32"), jnp.int32), words)

    def attend(*arrays: Any) -> jax.Array:
        rows = [array.reshape(*array.shape[:2], -1) for array in arrays[:3]]
        return attention_kernel(rule, *rows, *arrays[3:]).reshape(arrays[0].shape)

    each = _on_each_device(attend, devices, lambda rows, heads: (rows, Words(rows, rows, heads, _WHOLE)))
    return respects_padding(each)(query, key, value, visible, words)


def _on_each_device(
    attend: Callable[..., jax.Array], devices: TracedDevices, more_specs: Callable[..., Any]
) -> Callable[..., jax.Array]:
    """Return a function that attends to each device's part of the batch and of the heads.

    `more_specs` gets the specs of what is divided along the batch and along the heads, and returns those of the
    arguments after query, key and value.
    """
    mesh, axis = devices.mesh, devices.batch_axis
    if mesh is None or mesh.size == 1:
        return attend
    heads = tuple(name for name in mesh.axis_names if name != axis) or None
    split = PartitionSpec(axis, None, heads)
    specs = (split, split, split, *more_specs(PartitionSpec(axis), PartitionSpec(heads)))
    return shard_map(attend, mesh, specs, split)


def _by_splash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    scale: float,
    cap: float | None,
    devices: TracedDevices,
) -> jax.Array:
    """Return attention by the Splash kernel; the arrays' dimensions are batch, length, heads and depth."""
    segments = None
    if mask.keys is not None:
        visible = mask.keys.astype(jnp.int32)
        segments = jnp.ones(query.shape[:2], jnp.int32), jnp.broadcast_to(visible, key.shape[:2])
    attend: Callable[..., jax.Array] = functools.partial(splash_attention, mask=mask, cap=cap)
    query = query * jnp.asarray(scale, query.dtype)
    each = _on_each_device(attend, devices, lambda rows, heads: (rows,))
    return _mean_where_nothing_is_seen(each(query, key, value, segments), value, mask)


def _mean_where_nothing_is_seen(found: jax.Array, value: jax.Array, mask: Mask) -> jax.Array:
    """Return attention as in Keras, where a query that sees nothing gets the mean of all values: logits are equal."""
    seen = sees_anything(mask, found.shape[1], value.shape[1])
    if seen is None:
        return found
    mean = jnp.mean(value.astype(jnp.float32), axis=1, keepdims=True).astype(found.dtype)
    mean = jnp.repeat(mean, found.shape[2] // value.shape[2], axis=2)
    return jnp.where(seen[:, :, None, None], found, mean)


def _capped(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Tensor | None,
    mask: Tensor | None,
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
    """Warn that a plain model computes something else on a TPU, if Keras has given its attention to the kernel."""
    if hasattr(backend_nn, "wrap_flash_attention") and "splash_mha" in program:
        _LOG.warning(
            "On a TPU Keras %s computes the attention of %r as if it were causal and unscaled, and that is what this "
            "step does. Make the model in kte.strategy_scope(), or as a kte.TPUModel, for what it computes on a CPU.",
            keras.__version__,
            model.name,
        )


@functools.cache
def _warn_once() -> None:
    """Log once that Keras itself would compute something else."""
    if hasattr(backend_nn, "wrap_flash_attention"):
        _LOG.warning(
            "Keras %s computes attention on a TPU as if it were causal and unscaled; keras-tpu-ext "
            "computes what it is on a CPU. Text for Keras: docs/upstream/attention_on_tpu.md",
            keras.__version__,
        )
