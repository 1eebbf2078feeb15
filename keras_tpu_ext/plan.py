"""`plan()`: how long a training will take, before it begins."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.output.display import memory_size
from keras_tpu_ext.preflight import preflight
from keras_tpu_ext.preflight.targets import parse_target
from keras_tpu_ext.tools.plan import here, on_tpu, saves
from keras_tpu_ext.tools.plan.data import PlannedData
from keras_tpu_ext.tools.plan.report import Cost as Cost
from keras_tpu_ext.tools.plan.report import PlanReport as PlanReport
from keras_tpu_ext.tools.plan.report import Seconds as Seconds


def plan(
    model: Any,
    data: Any,
    *,
    epochs: int,
    batch_size: int | None = None,
    target: str = "v5e-8",
    hours: float | None = None,
    validation_data: Any = None,
    callbacks: Sequence[Any] = (),
    steps_per_epoch: int | None = None,
    price_per_hour: float | None = None,
    progress: bool = True,
) -> PlanReport:
    """Estimate how long `fit` will take with these arguments, and which part of it costs most.

    For a TPU, which need not be there, the step is that of `preflight`, with its largest error on published training
    steps to either side, and the input is that of this machine, scaled to the target's host. No TPU has checked the
    sum of these. For `"cpu"`, this machine, parts of the training are run for some 10 seconds and more, by `fit`, and
    the range of a bucket is that of these parts, and a tenth of it more on either side. docs/tools/plan.md says how
    each bucket is found, and how often such ranges were right.

    Afterwards weights, optimizer, metrics, seeds and the global random generators of Python and NumPy are as before,
    to the bit; the program stays compiled, so `fit` of the same model starts faster than planned. A layer of Keras 2
    that draws random numbers without a generator has drawn some. The range of the sum is the sum of the ranges,
    because parts may all err to the same side.

    Args:
        model: A compiled model, or a function without arguments that returns one. For `"cpu"` a model that is not
            built, or whose own `train_step` makes variables, must come from a function.
        data: What `fit` gets: a `tf.data.Dataset` or a `PyDataset` of batches, or a tuple `(x, y)` or `(x, y,
            sample_weight)` of arrays.
        epochs: Number of epochs.
        batch_size: Examples in a batch of arrays; Keras's default is 32.
        target: A TPU slice, as for `preflight`, or `"cpu"` for this machine. Defaults to `"v5e-8"`.
        hours: The quota in hours. Defaults to `None`, no quota.
        validation_data: What `fit` gets as such, in the same forms as `data`. Defaults to `None`.
        callbacks: The callbacks of `fit`. Only the saves of `ModelCheckpoint`, `BackupAndRestore` and `AutoResume`
            are counted; none is called. Defaults to none.
        steps_per_epoch: Steps of an epoch, needed if the length of `data` is not known. Defaults to `None`, that
            length.
        price_per_hour: Dollars that an hour of the target costs. Defaults to `None`.
        progress: Whether to show progress on stderr. Defaults to `True`.

    Returns:
        A `PlanReport`; `report.ok` says whether the training compiles, fits into memory, and ends within `hours` by
        its middle estimate.

    Raises:
        ArgumentError: If an argument is invalid.
        MissingExtraError: If the target is a TPU, and JAX or libtpu is not installed.
        PreflightError: If the compiler timed out or crashed.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        def build_model():
            model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model

        x = np.random.default_rng(0).normal(size=(4096, 16))
        report = kte.plan(build_model, (x, x.sum(axis=1)), epochs=20, batch_size=64, target="cpu", hours=0.5)
        print(report)
        print(report.seconds, report.seconds_range, report.buckets)
        ```
    """
    check.integer("plan", "epochs", epochs, example=10)
    check.optional(check.integer, "plan", "batch_size", batch_size, example=128)
    check.optional(check.integer, "plan", "steps_per_epoch", steps_per_epoch, example=1000)
    check.optional(check.number, "plan", "hours", hours, above=0, what="a number of hours", example=9)
    check.optional(check.number, "plan", "price_per_hour", price_per_hour, above=0, what="dollars", example=9.6)
    training = PlannedData("data", data, batch_size, steps_per_epoch)
    validation = None
    if validation_data is not None:
        validation = PlannedData("validation_data", validation_data, batch_size, None)
    planned = _planned_here if target == "cpu" else functools.partial(_planned_for_tpu, progress=progress)
    report, one_save, how = planned(model, training, validation, epochs, target)
    report = dataclasses.replace(report, hours=hours, price_per_hour=price_per_hour)
    return _with_saves(report, callbacks, one_save, how) if report.costs else report


def _planned_here(
    model: Any, data: PlannedData, validation: PlannedData | None, epochs: int, target: str
) -> tuple[PlanReport, Callable[[bool], Seconds], str]:
    """Return the plan for this machine without its saves, how long one save takes, and how that was found."""
    built = _built(model)
    with here.restoring(built) if built is model else contextlib.nullcontext():
        costs = here.costs_here(built, data, validation, epochs)
    report = PlanReport(built.name, target, epochs, data.steps, data.batch_size, tuple(costs))
    return report, functools.partial(saves.measured_save, built), "the model was saved here, to measure it"


def _planned_for_tpu(
    model: Any, data: PlannedData, validation: PlannedData | None, epochs: int, target: str, *, progress: bool
) -> tuple[PlanReport, Callable[[bool], Seconds], str]:
    """Return the plan for a TPU without its saves, how long one save takes, and how that was found."""
    slice_ = parse_target(target)
    on_tpu.check_batch(data, slice_)
    found = preflight(model, data.first, slice_.name, progress=progress)
    report = PlanReport(found.model, slice_.name, epochs, data.steps, data.batch_size, problem=on_tpu.problem(found))
    roles = {} if found.memory is None else found.memory.by_role
    sizes = {True: roles.get("weights", 0), False: roles.get("weights", 0) + roles.get("optimizer", 0)}
    step = on_tpu.step_seconds(found)
    if step is not None:
        feeding = on_tpu.feeding_on(slice_, data.rate())
        costs = on_tpu.costs_on_tpu(found, step, feeding, data, validation, epochs)
        delivered = min(step.middle / max(feeding.seconds.middle, 1e-9), 1.0)
        note = "Not counted: how long the TPU takes to start, and how long batches take to reach it."
        report = dataclasses.replace(report, costs=tuple(costs), delivered=delivered, notes=(note,))
    how = f"{memory_size(sizes[False])} of weights and optimizer, at the rate of this machine's disk"
    return report, lambda weights_only: saves.written(sizes[weights_only]), how


def _with_saves(
    report: PlanReport, callbacks: Sequence[Any], one_save: Callable[[bool], Seconds], how: str
) -> PlanReport:
    """Return the report with what the callbacks save, the largest cost first, and what is not counted."""
    steps = report.steps_per_epoch
    found, others = saves.find_saves(callbacks, report.epochs, steps, report.seconds or 0.0)
    costs, notes = list(report.costs), list(report.notes)
    if found:
        costs.append(saves.save_cost(found, one_save, how))
    if others:
        notes.append(f"Not counted: what {', '.join(others)} does.")
    costs = sorted((cost for cost in costs if cost.seconds.high > 0), key=lambda cost: -cost.seconds.middle)
    return dataclasses.replace(report, costs=tuple(costs), notes=tuple(notes))


def _built(model: Any) -> Any:
    found = model() if callable(model) and not isinstance(model, _runtime.keras.Model) else model
    if not isinstance(found, _runtime.keras.Model) or not _runtime.models.is_compiled(found):
        needed = "a compiled Keras model, or a function without arguments that returns one"
        raise check.argument_error(
            "plan", "model", needed, type(found).__name__, 'model.compile("adam", loss) before'
        )
    return found
