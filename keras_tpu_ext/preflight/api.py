"""`preflight()`: does a train step compile for a TPU, does it fit, and how fast may it be?"""

from __future__ import annotations

import os
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._analysis import Analysis, compile_fault, out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled, compile_for, compiler_versions, default_cache_dir
from keras_tpu_ext.preflight._largest_batch import largest_batch
from keras_tpu_ext.preflight._progress import Progress
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import Fault
from keras_tpu_ext.preflight.targets import Target, parse_target


def preflight(
    model: Any,
    batch: Any,
    target: str = "v5e-8",
    per_replica_batch: int | None = None,
    *,
    find_largest_batch: bool = False,
    pipeline: Any = None,
    timeout_s: float = 600.0,
    cache_dir: str | os.PathLike[str] | bool = True,
    progress: bool = True,
) -> PreflightReport:
    """Compile a model's train step for a TPU with the real TPU compiler, on a machine that needs no TPU.

    The step is the one that `fit` would run, on as many replicas as the target has devices. It is lowered in this
    process, from shapes, without running anything; the compiler, libtpu, runs in a process of its own, so that this
    one keeps its backend and its devices. A model that is not built is built as `fit` would build it.

    Args:
        model: A compiled `TPUModel` or any compiled Keras model.
        batch: A batch of all replicas: `x`, `(x, y)` or `(x, y, sample_weight)`, structures of arrays, or of anything
            else with `shape` and `dtype`, because nothing but these is used. Replicas must share it evenly.
        target: A TPU slice: `"v5e-8"` (default), `"v2-8"`, `"v3-8"`, `"v4-8"`, `"v5p-8"`, `"v6e-8"`, `"7x-8"`, or a
            pod such as `"v5e-256"`. The number counts TensorCores.
        per_replica_batch: Examples on one replica; then of `batch` only the shape of one example is used. `None`
            (default) takes the number of examples of `batch`.
        find_largest_batch: Whether to find the largest batch that fits, by a few more compiles. Defaults to `False`,
            which works it out from one compile.
        pipeline: An iterable of batches, such as a `tf.data.Dataset`, whose own speed is measured for two seconds
            and set against what the step would take; or `None` (default).
        timeout_s: Seconds after which the compiler is ended. Defaults to 600. Interrupting this process ends it too.
        cache_dir: Folder in which results are kept, by content. `True` (default) is one in the user's cache folder,
            `False` keeps nothing.
        progress: Whether to show on stderr that the compiler is at work. Defaults to `True`.

    Returns:
        A `PreflightReport`. `report.ok` says whether the step compiles and fits. What keeps it from compiling is in
        the report too, and no error.

    Raises:
        ArgumentError: If an argument cannot work.
        MissingExtraError: If JAX or libtpu is not installed.
        PreflightError: If the compiler took too long, or ended without a result.

    Example:
        ```python
        report = kte.preflight(model, (images[:1024], labels[:1024]), target="v3-8")
        print(report)
        report.plot("preflight.png")
        ```
    """
    parsed = parse_target(target)
    _check(model, per_replica_batch, timeout_s)
    compiler_versions()  # before anything that takes time
    folder = _folder(cache_dir)
    shapes = _batch.shapes_of(batch, parsed, per_replica_batch)
    rate = None if pipeline is None else _batch.batches_per_sec(pipeline, _batch.examples_of(shapes))

    def compiled_for(examples: int) -> tuple[LoweredStep, Compiled]:
        lowered = _runtime.probes.lower_step(model, _batch.with_examples(shapes, examples), parsed.devices)
        with Progress(f"preflight: compiling for {parsed.name}", shown=progress) as shown:
            return lowered, compile_for(
                parsed,
                lowered,
                timeout_s=timeout_s,
                cache_dir=folder,
                progress=shown.after,
            )

    examples = _batch.examples_of(shapes)
    facts: dict[str, Any] = {
        "model": model.name,
        "target": parsed.name,
        "framework": _runtime.message_terms.framework,
        "chips": parsed.chips,
        "devices": parsed.devices,
        "global_batch": examples,
        "per_replica_batch": examples // parsed.devices,
        "pipeline_batches_per_sec": rate,
    }
    try:
        lowered, compiled = compiled_for(examples)
    except LoweringError as error:
        fault = Fault(error.cause, error.layer, error.line, error.cure)
        return PreflightReport(**facts, fault=fault)
    facts |= {"host_bytes": lowered.batch_bytes, "versions": compiled.facts.get("versions", {})}
    report = _reported(facts, lowered, compiled, parsed)
    if report.fault is not None:
        return report
    return largest_batch(report, parsed, compiled_for if find_largest_batch else None)


def _reported(facts: dict[str, Any], lowered: LoweredStep, compiled: Compiled, target: Target) -> PreflightReport:
    if compiled.error:
        memory = out_of_memory(compiled.error, target)
        if memory is not None:
            return PreflightReport(**facts, memory=memory)
        return PreflightReport(**facts, fault=compile_fault(compiled.error, lowered))
    found = Analysis(lowered, compiled, target)
    return PreflightReport(
        **facts,
        memory=found.memory(),
        time=found.time(),
        layers=found.layers(),
        collectives=found.collectives(),
        compile_seconds=compiled.facts["compile_seconds"],
    )


def _check(model: Any, per_replica_batch: Any, timeout_s: Any) -> None:
    if not isinstance(model, _runtime.keras.Model):
        raise ArgumentError(
            f"`model` must be a compiled Keras model; got {type(model).__name__}. "
            "Write preflight(model, (images, labels), target=...)."
        )
    if not _runtime.models.is_compiled(model):
        raise ArgumentError(
            f"`model` must be compiled, because its optimizer and losses are part of a train step; {model.name!r} is "
            'not. Write model.compile("adam", loss) before.'
        )
    is_number = isinstance(per_replica_batch, int) and not isinstance(per_replica_batch, bool)
    if per_replica_batch is not None and not (is_number and per_replica_batch >= 1):
        raise ArgumentError(
            f"`per_replica_batch` must be a whole number of at least 1; got {per_replica_batch!r}. "
            "Write per_replica_batch=128."
        )
    if isinstance(timeout_s, bool) or not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        raise ArgumentError(
            f"`timeout_s` must be a positive number of seconds; got {timeout_s!r}. Write timeout_s=600."
        )


def _folder(cache_dir: Any) -> Any:
    if isinstance(cache_dir, bool):
        return default_cache_dir() if cache_dir else None
    return os.path.expanduser(cache_dir)
