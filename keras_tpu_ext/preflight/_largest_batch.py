"""The largest batch that fits into memory, extrapolated from one compile or searched by a few more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext.preflight._analysis import StepAnalysis, parse_out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.targets import Target

_MAX_COMPILES = 6
_RESOLUTION = 16  # the search ends within a sixteenth of the batch
_TILE_ROWS = 8  # larger batches are multiples of it


def with_largest_batch(
    report: PreflightReport, target: Target, compile_step: Callable[[int], tuple[LoweredStep, Compiled]] | None
) -> PreflightReport:
    """Return `report` with the largest per-replica batch that fits.

    Args:
        report: Report of a batch that compiles or runs out of memory.
        target: The TPU slice.
        compile_step: Compiles the step for a global batch size; `None` to extrapolate from `report`.
    """
    assert report.memory is not None
    needed = {report.per_replica_batch: report.memory.needed}
    available = report.memory.available
    fixed = 0 if report.memory.arguments is None else report.memory.arguments - report.host_bytes // report.devices
    guess = _extrapolate(needed, available, fixed)
    if compile_step is None:
        return dataclasses.replace(report, largest_per_replica_batch=guess)
    fits = {batch: size is not None and size <= available for batch, size in needed.items()}
    for _ in range(_MAX_COMPILES):
        batch = _next_batch(guess, fits)
        if batch is None:
            break
        try:
            lowered, compiled = compile_step(batch * target.devices)
        except LoweringError:  # a model may take some batch sizes only
            break
        if compiled.error:
            memory = parse_out_of_memory(compiled.error, target)
        else:
            memory = StepAnalysis(lowered, compiled, target).memory()
        needed[batch] = None if memory is None else memory.needed
        fits[batch] = memory is not None and memory.fits
        guess = _extrapolate(needed, available, fixed) or guess
    best = max((batch for batch, does in fits.items() if does), default=None)
    return dataclasses.replace(report, largest_per_replica_batch=best, largest_was_compiled=best is not None)


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
    batch = guess
    if batch is None:
        batch = 2 * low if high is None else _round_down((low + high) / 2)
    if batch <= low:
        batch = low + step
    if high is not None and batch >= high:
        batch = _round_down((low + high) / 2)
        if batch <= low:
            batch = low + step
    return batch if batch not in fits else None


def _round_down(batch: float) -> int:
    return int(batch) // _TILE_ROWS * _TILE_ROWS if batch >= _TILE_ROWS else int(batch)
