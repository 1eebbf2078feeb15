"""The largest batch that fits, worked out from one compile or found by a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from keras_tpu_ext._runtime.common.lowering import LoweredStep, LoweringError
from keras_tpu_ext.preflight._analysis import Analysis, out_of_memory
from keras_tpu_ext.preflight._compiler import Compiled
from keras_tpu_ext.preflight.report import PreflightReport
from keras_tpu_ext.preflight.targets import Target

_MOST_COMPILES = 6
_NEAR = 16  # of a batch: how near the largest is found
_ROWS = 8  # of a tile: a batch is a multiple of it, once it is larger


def largest_batch(
    report: PreflightReport, target: Target, compiled_for: Callable[[int], tuple[LoweredStep, Compiled]] | None
) -> PreflightReport:
    """Return the report with the largest batch of a replica that fits.

    Args:
        report: That of a batch that compiles, or does not for want of memory.
        target: What it is compiled for.
        compiled_for: Compiles the step with so many examples in all; `None` to work the batch out.
    """
    assert report.memory is not None
    needed = {report.per_replica_batch: report.memory.needed}
    available = report.memory.available
    fixed = 0 if report.memory.arguments is None else report.memory.arguments - report.host_bytes // report.devices
    guess = _guess(needed, available, fixed)
    if compiled_for is None:
        return dataclasses.replace(report, largest_per_replica_batch=guess)
    fits = {batch: size is not None and size <= available for batch, size in needed.items()}
    for _ in range(_MOST_COMPILES):
        batch = _next(guess, fits)
        if batch is None:
            break
        try:
            lowered, compiled = compiled_for(batch * target.devices)
        except LoweringError:  # a model may be made for some sizes only
            break
        memory = (
            out_of_memory(compiled.error, target) if compiled.error else Analysis(lowered, compiled, target).memory()
        )
        needed[batch] = None if memory is None else memory.needed
        fits[batch] = memory is not None and memory.fits
        guess = _guess(needed, available, fixed) or guess
    best = max((batch for batch, does in fits.items() if does), default=None)
    return dataclasses.replace(report, largest_per_replica_batch=best, largest_was_compiled=best is not None)


def _guess(needed: dict[int, int | None], available: int, fixed: int) -> int | None:
    """Return where a line through what is known reaches `available`; what weights and state take is on it at 0."""
    known = sorted((batch, size) for batch, size in needed.items() if size is not None)
    if not known:
        return None
    nearest = min(known, key=lambda point: abs(point[1] - available))
    others = [point for point in known if point != nearest]
    other = min(others, key=lambda point: abs(point[1] - available)) if others else (0, fixed)
    slope = (nearest[1] - other[1]) / (nearest[0] - other[0])
    if slope <= 0:
        return None
    return max(_rounded(nearest[0] + (available - nearest[1]) / slope), 0)


def _next(guess: int | None, fits: dict[int, bool]) -> int | None:
    """Return the batch to compile next; `None` where no batch is left between one that fits and one that does not."""
    low = max((batch for batch, does in fits.items() if does), default=0)
    high = min((batch for batch, does in fits.items() if not does), default=None)
    step = max(low // _NEAR // _ROWS, 1) * _ROWS if low >= _ROWS else 1
    if high is not None and high - low <= step:
        return None
    wanted = guess
    if wanted is None:
        wanted = 2 * low if high is None else _rounded((low + high) / 2)
    if wanted <= low:
        wanted = low + step
    if high is not None and wanted >= high:
        wanted = _rounded((low + high) / 2)
        if wanted <= low:
            wanted = low + step
    return wanted if wanted not in fits else None


def _rounded(batch: float) -> int:
    return int(batch) // _ROWS * _ROWS if batch >= _ROWS else int(batch)
