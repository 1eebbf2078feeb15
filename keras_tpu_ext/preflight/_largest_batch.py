"""The largest batch that fits into memory, extrapolated from one compile or searched with a few more."""

from __future__ import annotations

import dataclasses

from keras_tpu_ext._runtime.common.lowering import LoweringError
from keras_tpu_ext.errors import PreflightError
from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_out_of_memory
from keras_tpu_ext.preflight._step import Step
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.results import MemoryUse

_MAX_COMPILES = 6
_RESOLUTION = 16  # the search ends within a sixteenth of the batch
_TILE_ROWS = 8  # larger batches are multiples of it
# Least part of the memory for extrapolating from a step: a smaller one is kept in the core's own memory, not in HBM.
_LEAST_PART = 0.01
_PARTS_OF_GUESS = (1.0, 0.75, 0.5)  # tried in this order, to find a batch that fits


def with_largest_batch(report: PreflightReport, step: Step, *, search: bool) -> PreflightReport:
    """Return `report` with the largest per-replica batch that fits, and its buffers if its own does not fit."""
    assert report.memory is not None
    needed = {report.per_replica_batch: report.memory.needed}
    available, arguments = report.memory.available, report.memory.arguments
    fixed = 0 if arguments is None else arguments - report.host_bytes // report.num_replicas
    guess = _extrapolate(needed, available, fixed)
    if not search:
        if (report.memory.needed or available) < _LEAST_PART * available:
            guess = None
        return _with_extrapolated(report, step, guess)
    fits = {batch: size is not None and size <= available for batch, size in needed.items()}
    found: dict[int, MemoryUse] = {}
    for _ in range(_MAX_COMPILES):
        batch = _next_batch(guess, fits)
        if batch is None:
            break
        try:
            memory = _memory_of(step, batch * report.num_replicas)
        except LoweringError:  # a model may accept only some batch sizes
            break
        needed[batch] = None if memory is None else memory.needed
        fits[batch] = memory is not None and memory.fits
        if memory is not None:
            found[batch] = memory
        guess = _extrapolate(needed, available, fixed) or guess
    best = max((batch for batch, does in fits.items() if does), default=None)
    return _with_batch(report, best, found.get(best) if best is not None else None)


def _with_extrapolated(report: PreflightReport, step: Step, guess: int | None) -> PreflightReport:
    """Return `report` with the guessed batch, or with one that was compiled if its own does not fit."""
    assert report.memory is not None
    if guess and not report.memory.fits:
        for batch in dict.fromkeys(max(_round_down(part * guess), 1) for part in _PARTS_OF_GUESS):
            try:
                memory = _memory_of(step, batch * report.num_replicas)
            except (LoweringError, PreflightError):  # this is an extra: the report is valid without it
                break
            if memory is not None and memory.fits:
                return _with_batch(report, batch, memory)
    return dataclasses.replace(report, largest_per_replica_batch=guess)


def _with_batch(report: PreflightReport, batch: int | None, fitting: MemoryUse | None) -> PreflightReport:
    """Return `report` with a batch that was compiled, and with its buffers if the report's own does not fit."""
    memory = report.memory
    if memory is not None and not memory.fits and fitting is not None:
        memory = dataclasses.replace(memory, buffers=fitting.buffers, buffers_batch=batch)
    return dataclasses.replace(
        report, memory=memory, largest_per_replica_batch=batch, largest_was_compiled=batch is not None
    )


def _memory_of(step: Step, examples: int) -> MemoryUse | None:
    """Return the memory use of a global batch; `None` if it fails to compile for another reason."""
    lowered, compiled = step.compile(examples)
    if compiled.error:
        return parse_out_of_memory(compiled.error, step.target)
    return StepAnalysis(lowered, compiled, step.target, ()).memory()


def _extrapolate(needed: dict[int, int | None], available: int, fixed: int) -> int | None:
    """Return the batch at which a line through the known points reaches `available`; a batch of 0 needs `fixed`."""
    known = sorted((batch, size) for batch, size in needed.items() if size is not None)
    if not known:
        return None
    nearest = min(known, key=lambda point: abs(point[1] - available))
    others = [point for point in known if point != nearest]
    other = min(others, key=lambda point: abs(point[1] - available)) if others else (0, fixed)
    slope = (nearest[1] - other[1]) / (nearest[0] - other[0])
    if slope <= 0:
        return None
    return max(_round_down(nearest[0] + (available - nearest[1]) / slope), 0)


def _next_batch(guess: int | None, fits: dict[int, bool]) -> int | None:
    """Return the batch to compile next; `None` if the search is at its resolution."""
    low = max((batch for batch, does in fits.items() if does), default=0)
    high = min((batch for batch, does in fits.items() if not does), default=None)
    step = max(low // _RESOLUTION // _TILE_ROWS, 1) * _TILE_ROWS if low >= _TILE_ROWS else 1
    if high is not None and high - low <= step:
        return None
    middle = 2 * low if high is None else _round_down((low + high) / 2)
    batch = middle if guess is None else guess
    if high is not None and batch >= high:
        batch = middle
    if batch <= low:
        batch = low + step
    return batch if batch not in fits else None


def _round_down(batch: float) -> int:
    return int(batch) // _TILE_ROWS * _TILE_ROWS if batch >= _TILE_ROWS else int(batch)
