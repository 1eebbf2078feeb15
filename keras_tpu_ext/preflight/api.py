"""`preflight()`: does a train step compile for a TPU, does it fit into memory, and how fast can it be?"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Collection
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError, MissingExtraError, PreflightError
from keras_tpu_ext.hardware import Hardware
from keras_tpu_ext.preflight import _batch
from keras_tpu_ext.preflight._compiler import compiler_versions, default_cache_dir
from keras_tpu_ext.preflight._published import wanted_corrections
from keras_tpu_ext.preflight._step import Step
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.targets import parse_target
from keras_tpu_ext.sharding.arguments import check_sharding

_LOG = logging.getLogger("keras_tpu_ext")


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

    The step is the one that `fit` runs, with one replica per device of the target; a sharded model has as many
    replicas as the size of the mesh's data axis. It is lowered in this process from shapes alone, and nothing is
    executed. The compiler (libtpu) runs in its own process, so this process keeps its backend and devices. A model
    that is not built is built as `fit` would build it.

    Args:
        model: A compiled `TPUModel` or any compiled Keras model; or a function without arguments that returns one. On
            Keras 3 on JAX such a function is called with variables that have shapes and take no memory, so a model of
            any size can be checked. With `shard` it is called as in `strategy_scope`: a plain Keras model gets the
            step of `TPUModel`.
        batch: The global batch, as a dataset yields it to `fit`: `x`, `(x, y)` or `(x, y, sample_weight)`, each a
            structure of arrays or of objects with `shape` and `dtype`; values are not used. It must divide evenly
            among the replicas.
        target: A TPU slice: `"v5e-8"` (default), `"v2-8"`, `"v3-8"`, `"v4-8"`, `"v5p-8"`, `"v6e-8"`, `"7x-8"`, or a
            pod such as `"v5e-256"`. The number counts TensorCores. `"cpu"`, or `"cpu-8"` for eight virtual devices,
            is this machine's CPU, on Keras 3 on JAX: the report then has memory and no time.
        per_replica_batch: Batch size of one replica, instead of that of `batch`. Defaults to `None`, an even share of
            `batch`.
        shard: How the model is sharded over the devices, as in `strategy_scope`. Defaults to `None`, no sharding.
        mesh: Name and size of each axis of the mesh, as in `strategy_scope`. Default: all devices along `"data"`.
        find_largest_batch: Whether to search for the largest batch that fits, with a few more compiles. Defaults to
            `False`, which extrapolates from one compile; if `batch` does not fit, a batch that fits is compiled, to
            report its largest buffers.
        pipeline: An iterable of batches, such as a `tf.data.Dataset`, whose rate is measured for two seconds and
            compared with the step's. Defaults to `None`.
        corrections: Which estimates use measurements on real chips: `"copies"` (of copies, for all that takes numbers
            in order and is limited by memory, if that is less than the compiler says) and `"collectives"`. Defaults
            to `True`, all that there are for the generation; `False` uses the compiler and the nominal bandwidths
            alone. docs/preflight.md has the sources.
        timeout_s: Seconds after which the compiler is stopped. Defaults to 600.
        cache_dir: Folder of the compile cache; `True` (default) uses one in the user's cache folder, `False` none.
        progress: Whether to show progress on stderr. Defaults to `True`.

    Returns:
        A `PreflightReport`. `report.ok` says whether the step compiles and fits; if it does not compile,
        `report.fault` says why.

    Raises:
        ArgumentError: If an argument is invalid.
        RuntimeNotSupportedError: If `shard` is given on a runtime other than Keras 3 on JAX.
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
    from keras_tpu_ext.preflight._ranking import ranked_report

    parsed = parse_target(target)
    check.optional(check.integer, "preflight", "per_replica_batch", per_replica_batch, example=128)
    check.number("preflight", "timeout_s", timeout_s, above=0, what="a number of seconds", example=600)
    axes = check_sharding("preflight", shard, mesh, devices=parsed.devices)
    ranks = isinstance(shard, str) and shard == "auto"
    opened = _runtime.devices.abstract_strategy(parsed.devices)
    if shard is not None:
        opened = _runtime.devices.shard(opened, "fsdp" if ranks else shard, axes)
    wanted = wanted_corrections(corrections)
    folder = default_cache_dir() if cache_dir is True else cache_dir
    compiler_versions(parsed)  # fail before anything that takes time
    built = _built(model, exact=shard is not None)
    replicas = 1 if ranks and per_replica_batch is None else opened.num_replicas  # each layout has its own number
    step = Step(
        built,
        _batch.batch_spec(batch, parsed.name, replicas, per_replica_batch),
        parsed,
        opened,
        None if shard is None else dict(axes or (("data", parsed.devices),)),
        wanted,
        timeout_s,
        None if folder is False else check.path(folder),
        progress,
    )
    rate = None if pipeline is None else _batch.batches_per_sec(pipeline, step.examples)
    if ranks:
        rebuild = None if built is model else functools.partial(_built, model, exact=True)
        only = None if axes is None else dict(axes)
        return ranked_report(step, only, rebuild, search=find_largest_batch, pipeline_batches_per_sec=rate)
    report = step.report(pipeline_batches_per_sec=rate)
    if report.fault is not None:
        return report
    return with_largest_batch(report, step, search=find_largest_batch)


def fastest_mesh(hardware: Hardware, model: Any, batch: Any) -> dict[str, int] | None:
    """Return the size of each axis of the mesh on which the model trains fastest; `None` to leave it as it is.

    An empty mesh means that every device holds the whole model.
    """
    generation, devices = hardware.generation, hardware.num_devices
    if hardware.kind != "tpu" or generation is None or devices is None:
        return None
    target = generation.slice_name(devices // generation.cores_per_chip)
    try:
        report = preflight(model, batch, target, shard="auto")
    except (ArgumentError, MissingExtraError, PreflightError) as error:
        _LOG.warning('The layout of %r stays that of shard="fsdp": %s', model.name, str(error).splitlines()[0])
        return None
    best = report.candidates[0]
    if not best.fits:
        _LOG.warning(
            "No layout of %r fits on %s by its compiler. print(kte.preflight(...)) says more.", model.name, target
        )
        return None
    _LOG.info(
        "%r is laid out for %s as %s: %.4g s a step by its compiler", model.name, target, best.name, best.step_seconds
    )
    return best.mesh or {}


def _built(model: Any, *, exact: bool) -> Any:
    """Return the compiled model, or the one that the user's function returns."""
    is_model = isinstance(model, _runtime.keras.Model)
    if not is_model and callable(model):
        with _runtime.models.exact_models(_runtime.TrainStep) if exact else contextlib.nullcontext():
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
