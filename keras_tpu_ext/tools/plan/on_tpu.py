"""A training on a TPU that is not there: the compiler's step, and the input of this machine."""

from __future__ import annotations

import os
from typing import NamedTuple

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.machine.tpu_table import host_vcpus
from keras_tpu_ext.preflight import PreflightReport
from keras_tpu_ext.preflight._batch import Rate
from keras_tpu_ext.preflight._published import published_for
from keras_tpu_ext.preflight.targets import Target
from keras_tpu_ext.tools.plan.data import PlannedData
from keras_tpu_ext.tools.plan.here import faster_input, kept_programs
from keras_tpu_ext.tools.plan.report import Cost, Seconds

_BACKWARD = 3.0  # a step over its forward pass: each product has two more of its size in the backward pass


class Feeding(NamedTuple):
    """What the host delivers, beside what the chips eat."""

    seconds: Seconds  # for a batch, on the target's host
    how: str  # how that was found


def check_batch(data: PlannedData, target: Target) -> None:
    """Check that a batch can be shared by the replicas of the target."""
    rest = data.batch_size % target.devices
    if rest:
        needed = f"a multiple of the {target.devices} replicas of {target.name}"
        whole = data.batch_size - rest or target.devices
        raise check.argument_error("plan", "batch_size", needed, str(data.batch_size), f"batch_size={whole}")


def feeding_on(target: Target, rate: Rate, cores: int | None = None) -> Feeding:
    """Return how long the target's host takes for a batch, from the rate of this machine.

    A pipeline that keeps more than one core busy here is said to keep all of the host's busy; at worst it is no
    faster there. Another one is no faster; at best it is faster by the number of vCPUs.
    """
    here = cores or os.cpu_count() or 1
    there = host_vcpus(target.generation.name, target.chips)
    measured = f"{rate.seconds * 1e3:.3g} ms a batch on the {here} cores here, of which it kept {rate.cores:.1f} busy"
    if there is None or there <= here:
        return Feeding(
            Seconds.exactly(rate.seconds), f"{measured}; as fast on {target.name}, whose host is not known"
        )
    fastest = rate.seconds * here / there
    middle = fastest if rate.cores > 1 else rate.seconds
    words = f"{there / here:.3g} times as fast" if rate.cores > 1 else "as fast"
    how = f"{measured}; counted as {words} on the {there} vCPUs of {target.name}"
    return Feeding(Seconds(middle, fastest, rate.seconds), how)


def step_seconds(report: PreflightReport) -> Seconds | None:
    """Return the time of a step by `preflight`, and on either side its largest error on published training steps.

    These ran on chips of the generation, or of all generations if there are none.
    """
    time = report.time
    if time is None:
        return None
    others = published_for(None, time.corrections)  # type: ignore[arg-type]  # a report's are plain strings
    assert others is not None, "published.json has training steps"
    low, high = time.seconds_range or (time.seconds * others.lowest, time.seconds * others.highest)
    error = max(time.seconds - low, high - time.seconds)
    return Seconds(time.seconds, time.seconds - error, time.seconds + error)


def problem(report: PreflightReport) -> str:
    """Return why it cannot be trained on the target; empty if it can."""
    if report.ok:
        return ""
    return str(report.fault) if report.fault else "It does not fit into memory: print(kte.preflight(...)) says more"


def costs_on_tpu(
    report: PreflightReport,
    step: Seconds,
    feeding: Feeding,
    data: PlannedData,
    validation: PlannedData | None,
    epochs: int,
) -> list[Cost]:
    """Return what a training costs by a preflight of its step, saves aside."""
    steps = data.steps * epochs
    forward = step * _forward_share(report)
    found = [
        Cost(
            "training", step * steps, f"{steps:,} steps of {step.middle * 1e3:.3g} ms by preflight", _training(report)
        ),
        Cost("input", feeding.seconds.beyond(step) * steps, feeding.how, faster_input(data)),
        _compiling(report, data, validation is not None),
    ]
    if validation is not None:
        each = forward + feeding.seconds.beyond(forward)
        how = f"{validation.steps * epochs:,} forward passes of {forward.middle * 1e3:.3g} ms, from preflight's step"
        # A forward pass that keeps nothing for a backward pass may be faster; nothing was published about it.
        times = validation.steps * epochs * validation.batch_size / data.batch_size
        found.append(Cost("validation", each * times, how, "model.fit(..., validation_freq=5)"))
    return found


def _forward_share(report: PreflightReport) -> float:
    """Return the forward pass's share of a step: that of the layers, or a third if they are not known."""
    layers = sum(layer.seconds for layer in report.layers)
    forward = sum(one.seconds - one.backward_seconds for one in report.layers if one.layer != "(optimizer)")
    return forward / layers if layers and forward else 1 / _BACKWARD


def _compiling(report: PreflightReport, data: PlannedData, validates: bool) -> Cost:
    """Return the cost of compiling: as here, at least for one program on all cores of the host."""
    here = report.compile_seconds
    programs = len(data.shapes()) + validates
    vcpus = host_vcpus(report.target.rpartition("-")[0], report.chips) or os.cpu_count() or 1
    fastest = here * min((os.cpu_count() or 1) / vcpus, 1.0)
    how = f"{here:.3g} s for the step on this machine; at most {programs} programs, and at best all cores of the host"
    write = kept_programs() if len(data.shapes()) == 1 else "drop_remainder=True, for batches of one shape"
    return Cost("compile", Seconds(here, fastest, here * programs), how, write)


def _training(report: PreflightReport) -> str:
    largest = report.largest_per_replica_batch or 0
    if largest >= 2 * report.per_replica_batch and report.time is not None and report.time.bound != "matrix units":
        return f"batch_size={2 * report.global_batch}; up to {largest * report.num_replicas:,} fit into memory"
    return "with kte.strategy_scope(for_tpu=True): around the model"
