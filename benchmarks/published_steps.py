"""What preflight estimates beside what was measured on real TPUs: steps, matrix products, copies and collectives.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/published_steps.py [--write]

Each row is the same work, built here, compiled for the same chip, and estimated as in a report of preflight;
beside it stands the published time. ResNet-50 is Keras's without biases and with moments of each core's examples, as
in those runs; BERT-large is of Keras's layers, without dropout. No TPU runs anything here. The corrections of copies
and of collectives are lines through their rows; training steps take no part in that. With `--write` the package gets
corrections and rows, as keras_tpu_ext/preflight/published.json. The last line is JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import _bert
import _resnet50
import harness
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.compat.keras3_jax import abstract_mesh
from keras_tpu_ext._runtime.jax.lowering import _module_to_bytecode
from keras_tpu_ext._runtime.jax.saved_programs import digest_of
from keras_tpu_ext.preflight._batch import batch_spec
from keras_tpu_ext.preflight._compiler import compile_for, compiler_versions, default_cache_dir
from keras_tpu_ext.preflight._hlo.module import Module
from keras_tpu_ext.preflight._hlo.timeline import Corrections, Line, Timeline
from keras_tpu_ext.preflight._published import FILE, NAMES
from keras_tpu_ext.preflight.targets import parse_target

MLPERF = "https://github.com/mlcommons/training_results_{}"
RECIPES = "https://github.com/AI-Hypercomputer/tpu-recipes/blob/c8cfe2f68908/microbenchmarks/{}"
# The generations that borrow a line through copies, and whose: nothing was published of their own, and of all of them
# the compiler says that a copy in bfloat16 takes 2.5 times its bytes at the nominal bandwidth.
BORROWED = {"v4": "v6e", "v5e": "v6e"}
WITH_LATENCY = "7x"  # where several sizes were measured, so that a latency can be told from a rate


@dataclasses.dataclass(frozen=True)
class Row:
    """A published measurement.

    Attributes:
        kind: What was measured.
        target: Slice.
        what: The work, in words.
        seconds: Measured time.
        source: Where it is published.
        lower: Returns the work, lowered.
        flags: The compiler's flags, as they are published.
        held_out: Whether nothing was chosen by it.
    """

    kind: Literal["training step", "matrix product", "copy", "collective"]
    target: str
    what: str
    seconds: float
    source: str
    lower: Callable[[], LoweredStep]
    flags: str = ""
    held_out: bool = False

    def compile(self) -> Module:
        """Return the compiled work."""
        with _environment("LIBTPU_INIT_ARGS", self.flags):
            compiled = compile_for(
                parse_target(self.target),
                self.lower(),
                timeout_s=3600,
                cache_dir=default_cache_dir(),
                progress=lambda seconds: None,
            )
        if compiled.error:
            raise SystemExit(compiled.error)
        return Module.parse(compiled.hlo)

    def costs(self, module: Module, corrections: Corrections) -> tuple[Any, ...]:
        """Return the costs of the compiled work."""
        return Timeline(module, parse_target(self.target), corrections).costs


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.pop(name, None)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def step(
    what: str, target: str, each: int, seconds: float, release: str, model: Any, batch: Any, *, held_out: bool = False
) -> Row:
    """Return the row of a training step with `each` examples on each device."""

    def lower() -> LoweredStep:
        slice_ = parse_target(target)
        opened = _runtime.devices.abstract_strategy(slice_.devices)
        spec = batch_spec(batch(), slice_.name, opened.num_replicas, each)
        return _runtime.probes.lower_step(model(), spec, opened, slice_.generation.device_kind)

    return Row("training step", target, what, seconds, MLPERF.format(release), lower, held_out=held_out)


def resnet() -> Any:
    """Return ResNet-50 as those runs have it: no biases before normalisations, moments of 128 examples."""
    change = functools.partial(kte.layers.for_tpu, ghost_batch_size=128)
    return _resnet50.compiled(exact=True, change=change)


def function(work: Callable[..., jax.Array], *shapes: tuple[int, ...], target: str, dtype: Any) -> LoweredStep:
    """Return, lowered, a function of arrays that each device has for itself."""
    devices = parse_target(target).devices
    mesh = abstract_mesh({"device": devices})
    spec = PartitionSpec("device")
    split = NamedSharding(mesh, spec)
    arrays = [jax.ShapeDtypeStruct((shape[0] * devices, *shape[1:]), dtype, sharding=split) for shape in shapes]
    every = jax.shard_map(work, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    lowered = jax.jit(every, out_shardings=split).trace(*arrays).lower(lowering_platforms=("tpu",))
    module = lowered.compiler_ir("stablehlo")
    return LoweredStep(bytes(_module_to_bytecode(module)), True, 1, 0, (), {}, {}, digest=digest_of(module))


def product(size: int, rate: float, target: str, source: str, flags: str = "") -> Row:
    """Return the row of a product of square matrices in bfloat16, from its FLOP/s on a device."""
    shape = (size, size)
    lower = functools.partial(function, jnp.matmul, shape, shape, target=target, dtype=jnp.bfloat16)
    return Row("matrix product", target, f"{size:,} x {size:,}", 2 * size**3 / rate, source, lower, flags)


def copy(size: int, rate: float, target: str, source: str) -> Row:
    """Return the row of a copy of an array of `size` bytes, from its bytes/s, read and written, on a device."""
    lower = functools.partial(function, jnp.copy, (size // 2048, 1024), target=target, dtype=jnp.bfloat16)
    return Row("copy", target, f"{size / 2**20:,.0f} MiB", 2 * size / rate, source, lower)


def all_reduce(size: int, rate: float, target: str, source: str) -> Row:
    """Return the row of an all-reduce of a square bfloat16 matrix, from the bytes/s that a ring would need for it."""
    devices = parse_target(target).devices
    summed = functools.partial(jax.lax.psum, axis_name="device")
    lower = functools.partial(function, summed, (size, size), target=target, dtype=jnp.bfloat16)
    seconds = 2 * (devices - 1) / devices * 2 * size**2 / rate
    return Row("collective", target, f"all-reduce of {size:,} x {size:,}", seconds, source, lower)


def all_gather(rows: int, rate: float, source: str) -> Row:
    """Return the row of an all-gather over four chips of `rows` x 8 x 128 float32, from the bytes/s of a chip.

    Each of a chip's two cores gathers for itself; both count.
    """
    groups = [[2 * chip + core for chip in range(4)] for core in range(2)]
    gather = functools.partial(jax.lax.all_gather, axis_name="device", axis_index_groups=groups, tiled=True)
    lower = functools.partial(function, gather, (rows, 8, 128), target="7x-8", dtype=jnp.float32)
    size = 4 * rows * 8 * 128 * 4
    return Row("collective", "7x-8", f"all-gather of {size / 2**20:,.0f} MiB", 2 * 3 / 4 * size / rate, source, lower)


IRONWOOD, TRILLIUM = RECIPES.format("ironwood/README.md"), RECIPES.format("README.md")
COPIES = RECIPES.format("ironwood/hbm/hbm.md")
ALL_REDUCES = RECIPES.format("trillium/collectives/README.md")
ALL_GATHERS = RECIPES.format("ironwood/collectives/all_gather.md")
ROWS = (
    step("ResNet-50, batch of 1,024", "v3-8", 128, 0.137, "v0.5", resnet, _resnet50.batch),
    step("ResNet-50, batch of 1,024", "v2-8", 128, 0.229, "v0.5", resnet, _resnet50.batch, held_out=True),
    step("ResNet-50, batch of 4,096", "v3-32", 128, 0.1256, "v0.7", resnet, _resnet50.batch, held_out=True),
    step("BERT-large, 448 of 512 tokens", "v3-32", 14, 0.4605, "v0.7", _bert.compiled, _bert.batch, held_out=True),
    step("ResNet-50, batch of 2,048", "v4-16", 256, 0.07355, "v0.7", resnet, _resnet50.batch),
    step("BERT-large, 256 of 512 tokens", "v4-16", 32, 0.2333, "v0.7", _bert.compiled, _bert.batch),
    product(8192, 827.474e12, "v6e-1", TRILLIUM, "--xla_tpu_scoped_vmem_limit_kib=65536"),
    product(256, 18.28645e12, "7x-8", IRONWOOD),
    product(512, 105.07835e12, "7x-8", IRONWOOD),
    product(1024, 349.72706e12, "7x-8", IRONWOOD),
    product(2048, 679.28473e12, "7x-8", IRONWOOD),
    product(4096, 892.94451e12, "7x-8", IRONWOOD),
    product(16384, 950.12870e12, "7x-8", IRONWOOD),
    copy(33554432, 1359.596e9, "v6e-1", TRILLIUM),
    copy(2097152, 1379.335e9, "7x-8", COPIES),
    copy(16777216, 2757.309e9, "7x-8", COPIES),
    copy(134217728, 3176.503e9, "7x-8", COPIES),
    copy(8589934592, 3210.481e9, "7x-8", COPIES),
    all_reduce(17408, 235.7595e9, "v6e-256", ALL_REDUCES),
    all_gather(64, 71.7703034e9, ALL_GATHERS),
    all_gather(256, 129.1869148e9, ALL_GATHERS),
    all_gather(1024, 161.9040742e9, ALL_GATHERS),
    all_gather(16384, 178.7714158e9, ALL_GATHERS),
)


def fit(rows: list[Row], modules: dict[int, Module]) -> dict[str, dict[str, Line]]:
    """Return the corrections by generation: the line with the least relative errors through the measured times.

    Where a single size was measured, the latency is that of the generation with several.
    """
    found: dict[str, dict[str, Line]] = {}
    for name, kind in (("copies", "copy"), ("collectives", "collective")):
        by_generation: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row.kind == kind:
                target = parse_target(row.target)
                generation = target.generation
                costs = row.costs(modules[id(row)], found.get(generation.name, {}))
                if kind == "copy":
                    ideal, rest = sum(cost.bytes_accessed for cost in costs) / generation.hbm_bandwidth_per_core, 0.0
                else:
                    ideal = sum(cost.seconds for cost in costs if cost.source == "ici") / target.used_links
                    rest = sum(cost.seconds for cost in costs if cost.source != "ici")
                by_generation.setdefault(generation.name, []).append((ideal, row.seconds - rest))
        latency = 0.0
        for name_, times in sorted(by_generation.items(), key=lambda item: item[0] != WITH_LATENCY):
            ideal, measured = np.array(times).T
            if len(ideal) > 1:
                (latency, slope), *_ = np.linalg.lstsq(
                    np.stack([1 / measured, ideal / measured], 1), np.ones(len(ideal)), rcond=None
                )
            else:
                slope = (measured[0] - latency) / ideal[0]
            found.setdefault(name_, {})[name] = Line(float(latency), float(1 / slope))
    for name_, other in BORROWED.items():
        if "copies" in found.get(other, {}):
            found[name_] = {"copies": found[other]["copies"]._replace(measured_on=other)}
    return found


def as_data(line: Line) -> dict[str, Any]:
    """Return a line without what is empty."""
    return {name: value for name, value in line._asdict().items() if value != ""}


def described(row: Row, module: Module, corrections: dict[str, dict[str, Line]]) -> dict[str, Any]:
    """Return a row with its estimates, by the names of the corrections."""
    generation = parse_target(row.target).generation.name
    estimated = {}
    for count in range(len(NAMES) + 1):
        for names in itertools.combinations(NAMES, count):
            measured = {name: line for name, line in corrections.get(generation, {}).items() if name in names}
            estimated["+".join(names)] = sum(cost.seconds for cost in row.costs(module, measured))
    return {
        "kind": row.kind,
        "generation": generation,
        "target": row.target,
        "what": row.what,
        "measured": row.seconds,
        "estimated": estimated,
        "source": row.source,
        "held_out": row.held_out,
    }


def main() -> None:
    """Print a line for each row, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--only", default="", help="text that is in the rows to be done")
    parser.add_argument("--write", action="store_true", help="give the package what is found")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in f"{row.kind} {row.target} {row.what}"]
    modules = {id(row): row.compile() for row in rows}
    corrections = fit(rows, modules)
    found = [described(row, modules[id(row)], corrections) for row in rows]
    for row in found:
        plain, corrected = row["estimated"][""], row["estimated"]["+".join(NAMES)]
        print(
            f"{row['target']:8s} {row['kind']:15s} {row['what']:32s} measured {1e3 * row['measured']:9.4f} ms, "
            f"estimated {1e3 * plain:9.4f} ms, {plain / row['measured']:.3f}; "
            f"corrected {corrected / row['measured']:.3f}",
        )
    told = {name: {key: as_data(line) for key, line in lines.items()} for name, lines in corrections.items()}
    if options.write:
        if options.only:
            parser.error("--write is for all rows")
        data = {"versions": compiler_versions(parse_target(ROWS[0].target)), "corrections": told, "rows": found}
        FILE.write_text(json.dumps(data, indent=1) + "\n")
    harness.report("published_steps", rows=found, corrections=told)


if __name__ == "__main__":
    main()
