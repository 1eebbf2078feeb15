"""`preflight()`: does a train step compile for a TPU, does it fit into memory, and how fast can it be?"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection
from typing import Any

from keras_tpu_ext import _arguments as check
from keras_tpu_ext import _runtime
from keras_tpu_ext._layout_report import LayoutReport
from keras_tpu_ext._progress import Progress
from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext._sharding_arguments import check_sharding
from keras_tpu_ext.models.exact_trainer import PlainTrainer
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._compiler import Compiled, compile_for, compiler_versions, default_cache_dir
from keras_tpu_ext.preflight._hlo.corrections import Name
from keras_tpu_ext.preflight._published import wanted_corrections
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import Fault
from keras_tpu_ext.preflight.targets import Target, parse_target


def preflight(
    model: Any,
    batch: Any,
    target: str = "v5e-8",
    per_replica_batch: int | None = None,
    shard: Any = None,
    *,
    mesh: Any = None,
    find_largest_batch: bool = False,
    pipeline: Any = None,
    corrections: bool | Collection[str] = True,
    timeout_s: float = 600.0,
    cache_dir: str | os.PathLike[str] | bool = True,
    progress: bool = True,
) -> PreflightReport:
    """Compile a model's train step with the TPU compiler, on a machine without a TPU.

    The step is the one that `fit` runs, with one replica per device of the target; a sharded model has as many as
    the data axis of the mesh. It is lowered in this process from shapes alone, and nothing runs. The compiler
    (libtpu) has a process of its own, so that this process keeps its backend and devices. A model that is not built
    is built as `fit` would build it.

    Args:
        model: A compiled `TPUModel` or any compiled Keras model; or a function without arguments that returns one. On
            Keras 3 on JAX such a function is called with variables that have shapes and take no memory, so that a
            model of any size can be asked about. With `shard` it is called as in `strategy_scope`: a plain Keras
            model takes the step of `TPUModel`.
        batch: The global batch: `x`, `(x, y)` or `(x, y, sample_weight)`, each a structure of arrays or of objects
            with `shape` and `dtype`; values are not used. The replicas must share it evenly.
        target: A TPU slice: `"v5e-8"` (default), `"v2-8"`, `"v3-8"`, `"v4-8"`, `"v5p-8"`, `"v6e-8"`, `"7x-8"`, or a
            pod such as `"v5e-256"`. The number counts TensorCores.
        per_replica_batch: Batch size of one replica, in place of that of `batch`. Defaults to `None`, an even share
            of `batch`.
        shard: How the model is sharded over the devices, as in `strategy_scope`. Defaults to `None`, not at all.
        mesh: Name and size of each axis of the mesh, as in `strategy_scope`. Default: all devices along `"data"`.
        find_largest_batch: Whether to search for the largest batch that fits, with a few more compiles. Defaults to
            `False`, which extrapolates from one compile; where `batch` does not fit, it compiles one that does,
            for its largest buffers.
        pipeline: An iterable of batches, such as a `tf.data.Dataset`, whose rate is measured for two seconds and
            compared with the step's. Defaults to `None`.
        corrections: What is estimated as it was measured on real chips of the generation: `"copies"`, with sums of
            a few numbers each, where they are less than the compiler says, and `"collectives"`. Defaults to `True`,
            all that were measured; `False` goes by the compiler and the nominal bandwidths alone. docs/preflight.md
            has the sources.
        timeout_s: Seconds after which the compiler is stopped. Defaults to 600.
        cache_dir: Folder of the compile cache; `True` (default) for one in the user's cache folder, `False` for none.
        progress: Whether to show progress on stderr. Defaults to `True`.

    Returns:
        A `PreflightReport`. `report.ok` says whether the step compiles and fits; if it does not compile,
        `report.fault` says why.

    Raises:
        ArgumentError: If an argument cannot work.
        RuntimeNotSupportedError: If `shard` is given on another runtime than Keras 3 on JAX.
        MissingExtraError: If JAX or libtpu is not installed.
        PreflightError: If the compiler timed out or crashed.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((28, 28, 1))
        x = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        images, labels = np.zeros((1024, 28, 28, 1), "float32"), np.zeros(1024, "int32")
        report = kte.preflight(model, (images, labels), target="v3-8")
        print(report)
        report.plot("preflight.png")
        ```
    """
    from keras_tpu_ext.preflight._largest_batch import with_largest_batch  # as slow to import as all callbacks

    parsed = parse_target(target)
    _check(per_replica_batch, timeout_s)
    axes = check_sharding("preflight", shard, mesh, devices=parsed.devices)
    opened = _runtime.devices.abstract_strategy(parsed.devices)
    if shard is not None:
        opened = _runtime.devices.shard(opened, shard, axes)
        axes = axes or (("data", parsed.devices),)
    wanted = wanted_corrections(corrections)
    compiler_versions()  # fail before anything that takes time
    cache = _cache_folder(cache_dir)
    built = _built(model, exact=shard is not None)
    spec = _batch.batch_spec(batch, parsed.name, opened.num_replicas, per_replica_batch)
    examples = _batch.batch_size(spec)
    rate = None if pipeline is None else _batch.batches_per_sec(pipeline, examples)

    def compile_step(examples: int) -> tuple[LoweredStep, Compiled]:
        sized = _batch.with_batch_size(spec, examples)
        lowered = _runtime.probes.lower_step(built, sized, opened, parsed.generation.device_kind)
        with Progress(f"preflight: compiling for {parsed.name}", shown=progress) as line:
            return lowered, compile_for(parsed, lowered, timeout_s=timeout_s, cache_dir=cache, progress=line.update)

    facts: dict[str, Any] = {
        "model": built.name,
        "target": parsed.name,
        "framework": _runtime.message_terms.framework,
        "chips": parsed.chips,
        "devices": parsed.devices,
        "global_batch": examples,
        "per_replica_batch": examples // opened.num_replicas,
        "mesh": None if axes is None else dict(axes),
        "pipeline_batches_per_sec": rate,
    }
    try:
        lowered, compiled = compile_step(examples)
    except LoweringError as error:
        fault = Fault(error.cause, error.layer, error.line, error.cure)
        return PreflightReport(**facts, fault=fault)
    facts |= {"host_bytes": lowered.batch_bytes, "versions": compiled.facts.get("versions", {})}
    if axes is not None:
        facts["layout"] = LayoutReport(built.name, dict(axes), lowered.layouts, lowered.complaints)
    report = _report(facts, lowered, compiled, parsed, wanted)
    if report.fault is not None:
        return report
    return with_largest_batch(report, parsed, compile_step, search=find_largest_batch)


def _report(
    facts: dict[str, Any], lowered: LoweredStep, compiled: Compiled, target: Target, corrections: Collection[Name]
) -> PreflightReport:
    from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_compile_error, parse_out_of_memory
    from keras_tpu_ext.preflight._memory import bytes_by_role

    if compiled.error:
        memory = parse_out_of_memory(compiled.error, target)
        if memory is not None:
            memory = dataclasses.replace(memory, by_role=bytes_by_role(lowered.layouts))
            return PreflightReport(**facts, memory=memory)
        return PreflightReport(**facts, fault=parse_compile_error(compiled.error, lowered))
    analysis = StepAnalysis(lowered, compiled, target, corrections, facts["mesh"])
    return PreflightReport(
        **facts,
        memory=analysis.memory(),
        time=analysis.time(),
        layers=analysis.layers(),
        collectives=analysis.collectives(),
        compile_seconds=compiled.facts["compile_seconds"],
    )


def _built(model: Any, *, exact: bool) -> Any:
    """Return the compiled model, or what a function of the user's returns."""
    is_model = isinstance(model, _runtime.keras.Model)
    if not is_model and callable(model):
        with _runtime.models.exact_models(PlainTrainer) if exact else contextlib.nullcontext():
            found = _runtime.probes.call_abstractly(model)
    else:
        found = model
    if not isinstance(found, _runtime.keras.Model):
        got = type(found).__name__ if found is model else f"a function that returned {type(found).__name__}"
        write = "preflight(model, (images, labels), target=...)"
        needed = "a compiled Keras model, or a function without arguments that returns one"
        raise check.argument_error("preflight", "model", needed, got, write)
    if not _runtime.models.is_compiled(found):
        needed = "compiled, because its optimizer and losses are part of a train step"
        got, write = f"{found.name!r}, which is not", 'model.compile("adam", loss) before'
        raise check.argument_error("preflight", "model", needed, got, write)
    return found


def _check(per_replica_batch: Any, timeout_s: Any) -> None:
    check.optional(check.integer, "preflight", "per_replica_batch", per_replica_batch, example=128)
    check.number("preflight", "timeout_s", timeout_s, above=0, what="a number of seconds", example=600)


def _cache_folder(cache_dir: Any) -> Any:
    if isinstance(cache_dir, bool):
        return default_cache_dir() if cache_dir else None
    return os.path.expanduser(cache_dir)
