"""What preflight estimates beside what was measured on real TPUs: steps, matrix products, copies and an all-reduce.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/published_steps.py [--only TEXT]

Each row is the same work, built here, compiled for the same chip, and estimated as in a report of preflight;
beside it stands the published time. ResNet-50 is Keras's without biases and with moments of each core's examples, as
in those runs; BERT-large is of Keras's layers, without dropout. No TPU runs anything here. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import _bert
import _resnet50
import harness
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.compat.keras3_jax import abstract_mesh
from keras_tpu_ext._runtime.jax.lowering import _module_to_bytecode
from keras_tpu_ext.preflight._compiler import compile_for, default_cache_dir
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.timeline import Timeline
from keras_tpu_ext.preflight.targets import parse_target

MLPERF = "https://github.com/mlcommons/training_results_{}"
RECIPES = "https://github.com/AI-Hypercomputer/tpu-recipes/blob/c8cfe2f68908/microbenchmarks/{}"


@dataclasses.dataclass(frozen=True)
class Row:
    """A published measurement.

    Attributes:
        kind: What was measured.
        target: Slice.
        what: The work, in words.
        seconds: Measured time.
        source: Where it is published.
        estimate: Returns the estimated seconds.
    """

    kind: Literal["step", "product", "copy", "all-reduce"]
    target: str
    what: str
    seconds: float
    source: str
    estimate: Callable[[], float]


def step(model: Callable[[], Any], batch: Callable[[], Any], target: str, each: int) -> float:
    """Return the estimated seconds of a model's step with `each` examples on each device."""
    report = kte.preflight(model(), batch(), target, each, progress=False, timeout_s=3600)
    if not report.ok or report.step_seconds is None:
        raise SystemExit(str(report))
    return report.step_seconds


def resnet() -> Any:
    """Return ResNet-50 as those runs have it: no biases before normalisations, moments of 128 examples."""
    change = functools.partial(kte.layers.for_tpu, ghost_batch_size=128)
    return _resnet50.compiled(exact=True, change=change)


def function(work: Callable[..., jax.Array], *shapes: tuple[int, ...], target: str) -> float:
    """Return the estimated seconds of a function of bfloat16 arrays that each device has for itself."""
    slice_ = parse_target(target)
    mesh = abstract_mesh(slice_.devices, "device")
    spec = PartitionSpec("device")
    split = NamedSharding(mesh, spec)
    arrays = [
        jax.ShapeDtypeStruct((shape[0] * slice_.devices, *shape[1:]), jnp.bfloat16, sharding=split)
        for shape in shapes
    ]
    every = jax.shard_map(work, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    lowered = jax.jit(every, out_shardings=split).trace(*arrays).lower(lowering_platforms=("tpu",))
    program = bytes(_module_to_bytecode(lowered.compiler_ir("stablehlo")))
    text = lowered.as_text().encode()
    lowered_step = LoweredStep(program, True, 1, 0, (), {}, {}, "JAX", without_lines=text)
    cache = default_cache_dir()
    compiled = compile_for(slice_, lowered_step, timeout_s=3600, cache_dir=cache, progress=lambda seconds: None)
    if compiled.error:
        raise SystemExit(compiled.error)
    timeline = Timeline(Module.parse(compiled.hlo), slice_.generation, slice_.devices)
    return sum(cost.seconds for cost in timeline.costs)


def product(size: int, rate: float, target: str, source: str) -> Row:
    """Return the row of a product of square matrices in bfloat16, from its FLOP/s on a device."""
    estimate = functools.partial(function, jnp.matmul, (size, size), (size, size), target=target)
    return Row("product", target, f"product of {size:,} x {size:,}", 2 * size**3 / rate, source, estimate)


def copy(size: int, rate: float, target: str, source: str) -> Row:
    """Return the row of a copy of an array of `size` bytes, from its bytes/s, read and written, on a device."""
    estimate = functools.partial(function, jnp.copy, (size // 2048, 1024), target=target)
    return Row("copy", target, f"copy of {size / 2**20:,.0f} MiB", 2 * size / rate, source, estimate)


def all_reduce(size: int, rate: float, target: str, source: str) -> Row:
    """Return the row of an all-reduce of a square bfloat16 matrix, from the bytes/s that a ring would need for it."""
    devices = parse_target(target).devices
    summed = functools.partial(jax.lax.psum, axis_name="device")
    estimate = functools.partial(function, summed, (size, size), target=target)
    seconds = 2 * (devices - 1) / devices * 2 * size**2 / rate
    return Row("all-reduce", target, f"all-reduce of {size:,} x {size:,}", seconds, source, estimate)


IRONWOOD, TRILLIUM = RECIPES.format("ironwood/README.md"), RECIPES.format("README.md")
COPIES = RECIPES.format("ironwood/hbm/hbm.md")
COLLECTIVES = RECIPES.format("trillium/collectives/README.md")
ROWS = (
    Row(
        "step",
        "v3-8",
        "ResNet-50, batch 1,024",
        0.137,
        MLPERF.format("v0.5"),
        functools.partial(step, resnet, _resnet50.batch, "v3-8", 128),
    ),
    Row(
        "step",
        "v2-8",
        "ResNet-50, batch 1,024",
        0.229,
        MLPERF.format("v0.5"),
        functools.partial(step, resnet, _resnet50.batch, "v2-8", 128),
    ),
    Row(
        "step",
        "v3-32",
        "ResNet-50, batch 4,096",
        0.1256,
        MLPERF.format("v0.7"),
        functools.partial(step, resnet, _resnet50.batch, "v3-32", 128),
    ),
    Row(
        "step",
        "v3-32",
        "BERT-large, 512 tokens, batch 448",
        0.4605,
        MLPERF.format("v0.7"),
        functools.partial(step, _bert.compiled, _bert.batch, "v3-32", 14),
    ),
    product(8192, 827.474e12, "v6e-1", TRILLIUM),
    copy(33554432, 1359.596e9, "v6e-1", TRILLIUM),
    all_reduce(17408, 235.7595e9, "v6e-256", COLLECTIVES),
    product(256, 18.28645e12, "7x-8", IRONWOOD),
    product(512, 105.07835e12, "7x-8", IRONWOOD),
    product(1024, 349.72706e12, "7x-8", IRONWOOD),
    product(2048, 679.28473e12, "7x-8", IRONWOOD),
    product(4096, 892.94451e12, "7x-8", IRONWOOD),
    product(16384, 950.12870e12, "7x-8", IRONWOOD),
    copy(2097152, 1379.335e9, "7x-8", COPIES),
    copy(16777216, 2757.309e9, "7x-8", COPIES),
    copy(134217728, 3176.503e9, "7x-8", COPIES),
    copy(8589934592, 3210.481e9, "7x-8", COPIES),
)


def main() -> None:
    """Print a line for each row, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", default="", help="text that is in the rows to be done")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if options.only in f"{row.kind} {row.target} {row.what}":
            estimated = row.estimate()
            told = dataclasses.asdict(row)
            rows.append({**{key: told[key] for key in told if key != "estimate"}, "estimated": estimated})
            print(
                f"{row.target:8s} {row.what:36s} measured {1e3 * row.seconds:9.4f} ms, estimated "
                f"{1e3 * estimated:9.4f} ms, {estimated / row.seconds:.3f}",
                flush=True,
            )
    harness.report("published_steps", rows=rows)


if __name__ == "__main__":
    main()
