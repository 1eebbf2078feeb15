"""What was tried for transformers and is not in the package, by the TPU compiler's estimate, each beside what is.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/tried_for_transformers.py

Plain functions on one v5e, in bfloat16 with weights in float32. No TPU runs anything. The last line is JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import jax
import jax.numpy as jnp
from published_steps import function

from keras_tpu_ext.preflight._compiler import compile_for, compiler_versions, default_cache_dir
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.timeline import Timeline
from keras_tpu_ext.preflight.targets import parse_target

TARGET = "v5e-1"


def rms(x: Any, scale: Any) -> Any:
    """RMSNormalization as Keras has it."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


@jax.custom_vjp
def rms_again(x: Any, scale: Any) -> Any:
    """The same with a gradient that starts from the inputs again, as LayerNormalization has for a TPU."""
    return rms(x, scale)


def _rms_gradient(inputs: Any, upstream: Any) -> Any:
    x, scale = inputs
    wide, upstream = x.astype(jnp.float32), upstream.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6)
    unscaled, scaled = wide * inverse, upstream * scale
    of_x = inverse * (scaled - unscaled * jnp.mean(scaled * unscaled, -1, keepdims=True))
    return of_x.astype(x.dtype), jnp.sum(upstream * unscaled, 0)


rms_again.defvjp(lambda x, scale: (rms(x, scale), (x, scale)), _rms_gradient)


def gated(norm: Callable[..., Any]) -> Callable[..., Any]:
    """Two blocks of a normalization and a feed-forward network, with their gradients."""

    def loss(x: Any, scale: Any, up: Any, down: Any) -> Any:
        h = x.astype(jnp.bfloat16)
        for i in range(2):
            h = h + jax.nn.silu(norm(h, scale[i]) @ up.astype(h.dtype)) @ down.astype(h.dtype)
        return jnp.sum(jnp.square(h.astype(jnp.float32)))

    return jax.grad(loss, (1, 2, 3))


def adam(weight: Any, gradient: Any, first: Any, second: Any) -> Any:
    """One step of Adam; the moments keep their dtypes."""
    m = first.astype(jnp.float32) + (gradient - first.astype(jnp.float32)) * 0.1
    v = second.astype(jnp.float32) + (jnp.square(gradient) - second.astype(jnp.float32)) * 0.001
    return weight - 1e-4 * m / (jnp.sqrt(v) + 1e-7), m.astype(first.dtype), v.astype(second.dtype)


# The weights of two blocks of BERT-large.
SHAPES = [shape for _ in range(2) for shape in [*[(1024, 1024)] * 4, (1024, 4096), (4096, 1024), *[(1024,)] * 10]]


def one_by_one(*arrays: Any) -> Any:
    """Adam for each weight."""
    return [adam(*arrays[i : i + 4]) for i in range(0, len(arrays), 4)]


def all_at_once(*arrays: Any) -> Any:
    """Adam for the numbers of all weights in one array, which their gradients are put into."""
    flat = [jnp.concatenate([array.ravel() for array in arrays[i::4]]) for i in range(4)]
    return adam(*flat)


def words(chunks: int) -> Callable[..., Any]:
    """The loss of 4,096 tokens over 32,768 words and its gradients, of some tokens at a time."""

    def loss(x: Any, table: Any) -> Any:
        labels = jnp.arange(x.shape[0]) % table.shape[0]

        @jax.checkpoint
        def of_some(part: Any) -> Any:
            x, labels = part
            logits = (x.astype(jnp.bfloat16) @ table.T.astype(jnp.bfloat16)).astype(jnp.float32)
            chosen = jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], logits, 0.0).sum(-1)
            return jnp.sum(jax.nn.logsumexp(logits, -1) - chosen)

        if chunks == 1:
            return of_some.__wrapped__((x, labels))
        split = [one.reshape(chunks, -1, *one.shape[1:]) for one in (x, labels)]
        return jnp.sum(jax.lax.map(of_some, tuple(split)))

    return jax.grad(loss, (0, 1))


BLOCK = ((8192, 1024), (2, 1024), (1024, 3072), (3072, 1024))
ALL = [shape for shape in SHAPES for _ in range(4)]
LOSS = ((4096, 1024), (32768, 1024))
TRIALS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any, Any]] = {
    "RMSNormalization with a gradient from the inputs": (gated(rms), gated(rms_again), BLOCK, jnp.float32),
    "Adam for all weights at once": (one_by_one, all_at_once, ALL, jnp.float32),
    "the loss over 32,768 words, an eighth of the tokens at a time": (words(1), words(8), LOSS, jnp.float32),
}


def milliseconds(work: Callable[..., Any], shapes: Any, dtype: Any) -> tuple[float, float]:
    """Return the estimated time of a function, and its temporary memory in MiB."""
    target = parse_target(TARGET)
    lowered = function(work, *shapes, target=TARGET, dtype=dtype)
    compiled = compile_for(
        target, lowered, timeout_s=3600, cache_dir=default_cache_dir(), progress=lambda seconds: None
    )
    if compiled.error:
        raise SystemExit(compiled.error)
    costs = Timeline(Module.parse(compiled.hlo), target, {}, compiled.facts["kernels"]).costs
    return 1e3 * sum(cost.seconds for cost in costs), compiled.facts["temporary_bytes"] / 2**20


def main() -> None:
    """Print a line for each trial, then JSON."""
    harness.parser(__doc__).parse_args()
    rows = []
    for name, (kept, tried, shapes, dtype) in TRIALS.items():
        (before, memory_before), (after, memory) = (milliseconds(one, shapes, dtype) for one in (kept, tried))
        rows.append({"what": name, "kept_ms": before, "tried_ms": after, "versions": compiler_versions()})
        rows[-1] |= {"kept_mib": memory_before, "tried_mib": memory}
        print(
            f"{name}: {after:.3f} ms for {before:.3f}, {after / before:.3f}; "
            f"{memory:.0f} MiB for {memory_before:.0f}",
            flush=True,
        )
    harness.report("tried_for_transformers", rows=rows)


if __name__ == "__main__":
    main()
