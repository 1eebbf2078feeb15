"""Compares the outcomes of two processes and makes the rows of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_tpu_ext.tools.parity.checks import PARTS, Key, Part, Quantities, Quantity
from keras_tpu_ext.tools.parity.process import Outcome
from keras_tpu_ext.tools.parity.report import ParityRow, short_number

# N replicas add float32 in another order: a sum is off by about 1e-7 of its size, and a few steps accumulate to some
# 1e-6. A wrong denominator is never below 1e-3.
FLOAT32_TOLERANCE = 1e-5
# Each replica rounds its part of a gradient to the 8 (bfloat16) or 11 (float16) bits of its significand before the
# sum, where one device rounds once: four times the unit roundoff.
TOLERANCES = {"bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}
# Two frameworks round exp, tanh and matrix products differently.
OTHER_FRAMEWORK = 1e-4
# How many times the difference of one device from itself is allowed; below it, the limits of this allowance.
ROUNDING_FACTOR = 4.0
WIDEST, WIDEST_OF_ALL = 100.0, 0.1

_TINY = 1e-7  # below this, differences are absolute: one rounding of a float32 near 1


class Difference(NamedTuple):
    """The difference of two quantities."""

    # Relative difference; `None` if there is no number: other shapes, or not finite on one side only.
    off: float | None
    note: str = ""  # where the difference is largest, or why there is no number


def default_tolerance(compute_dtypes: tuple[str, ...], frameworks: tuple[str, ...] = ()) -> float:
    """Return the relative difference that rounding in these dtypes and frameworks explains."""
    float32 = OTHER_FRAMEWORK if len(set(frameworks)) > 1 else FLOAT32_TOLERANCE
    return max([float32, *(TOLERANCES.get(dtype, 0.0) for dtype in compute_dtypes)])


def compare(one: Outcome, many: Outcome, tolerance: float, replicas: int) -> tuple[ParityRow, ...]:
    """Return one row for each quantity; `one` is the reference on one device, `many` is from the replicas."""
    rows = [row for name in PARTS for row in _rows_of_part(name, one, many, tolerance, replicas)]
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    return tuple(sorted(rows, key=lambda row: scenarios.index(row.scenario)))


def _rows_of_part(name: str, one: Outcome, many: Outcome, tolerance: float, replicas: int) -> Iterator[ParityRow]:
    reference, got, label = one.parts[name], many.parts[name], PARTS[name][0]
    quantity = {"gradients": "gradients", "predict": "predictions"}.get(name, "all")
    if reference.unchecked or reference.error:
        reason = reference.unchecked or f"fails on one device: {reference.error}"
        yield ParityRow(label, quantity, None, tolerance, None, reason)
    elif got.unchecked or got.error:
        reason = (
            f"fails on {replicas} replicas: {got.error}" if got.error else f"{replicas} replicas: {got.unchecked}"
        )
        yield ParityRow(label, quantity, None, tolerance, False, reason)
    else:
        rounding = one.rounding.get(name, Part())
        yield from _rows_of_quantities(_renamed(reference, one.parts["steps"]), got, rounding, tolerance, replicas)


def _renamed(part: Part, steps: Part) -> Quantities:
    """Return a part's quantities with loss and metrics named as in the first model: later ones have auc_1, auc_2."""
    names = [name for (label, name), one in steps.quantities.items() if (label, one.kind) == ("one step", "series")]
    found: Quantities = {}
    count: Counter[str] = Counter()
    for (label, name), quantity in part.quantities.items():
        is_named = quantity.kind == "series" and count[label] < len(names)
        found[label, names[count[label]] if is_named else name] = quantity
        count[label] += 1
    return found


def _rows_of_quantities(
    reference: Quantities, got: Part, rounding: Part, tolerance: float, replicas: int
) -> Iterator[ParityRow]:
    # By position, because names of metrics differ.
    on_replicas, rounded = list(got.quantities.values()), list(rounding.quantities.values())
    for i, (key, quantity) in enumerate(reference.items()):
        if i >= len(on_replicas):
            yield ParityRow(*key, None, tolerance, False, f"missing on {replicas} replicas")
        else:
            yield _row(key, quantity, on_replicas[i], rounded[i : i + 1], tolerance, replicas)


def _row(
    key: Key, reference: Quantity, got: Quantity, rounded: list[Quantity], tolerance: float, replicas: int
) -> ParityRow:
    if reference.kind == "exact":
        same = difference(reference, got).off == 0
        note = reference.note
        if not same:
            note = "" if note == got.note else f"one device: {note}; {replicas} replicas: {got.note}"
        return ParityRow(*key, None, 0.0, same, note)
    found = difference(reference, got)
    if found.off is None:
        return ParityRow(*key, None, tolerance, False, found.note)
    if found.off <= tolerance:
        return ParityRow(*key, found.off, tolerance, True)
    if not rounded:
        return ParityRow(*key, found.off, tolerance, False, found.note)
    return _judge_by_rounding(key, found.off, found.note, difference(reference, rounded[0]).off or 0.0, tolerance)


def _judge_by_rounding(key: Key, off: float, note: str, by_rounding: float, tolerance: float) -> ParityRow:
    """Judge a difference above the tolerance by the effect of rounding alone on one device."""
    widest = min(WIDEST * tolerance, max(tolerance, WIDEST_OF_ALL))
    explained = ROUNDING_FACTOR * by_rounding
    allowed = max(tolerance, min(explained, widest))
    if off <= allowed:
        by_itself = f"rounding: with it alone changed, one device is {short_number(by_rounding)} off itself"
        return ParityRow(*key, off, allowed, True, by_itself)
    if off <= explained:
        unclear = f"rounding alone moves one device by {short_number(by_rounding)}, so nothing can be told"
        return ParityRow(*key, off, allowed, None, unclear)
    return ParityRow(*key, off, allowed, False, note)


def difference(reference: Quantity, got: Quantity) -> Difference:
    """Return the difference of `got` from `reference`, relative to the size of `reference`."""
    pairs = list(zip(reference.values, got.values, strict=False))
    if len(reference.values) != len(got.values) or any(np.shape(a) != np.shape(b) for a, b in pairs):
        return Difference(None, "other shapes")
    if reference.kind == "exact":
        return Difference(0.0 if all(np.array_equal(a, b) for a, b in pairs) else None)
    pairs = [(np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in pairs]
    if any(not np.array_equal(np.isfinite(a), np.isfinite(b)) for a, b in pairs):
        return Difference(None, "inf or NaN on one side only")
    pairs = [(_finite(a), _finite(b)) for a, b in pairs]
    if reference.kind == "series":
        return Difference(max((_worst_number(a, b) for a, b in pairs), default=0.0))
    return _of_arrays(pairs, reference.names)


def _of_arrays(pairs: list[tuple[np.ndarray, np.ndarray]], names: tuple[str, ...]) -> Difference:
    """Compare arrays as one long vector, and name the one that contributes most to the difference."""
    differences = [float(np.linalg.norm(b - a)) for a, b in pairs]
    sizes = [float(np.linalg.norm(a)) for a, _ in pairs]
    off = float(np.linalg.norm(differences)) / max(float(np.linalg.norm(sizes)), _TINY)
    if not names or not off:
        return Difference(off)
    worst = int(np.argmax(differences))
    return Difference(
        off, f"most in {names[worst]}, which is {short_number(differences[worst] / max(sizes[worst], _TINY))} off"
    )


def _worst_number(reference: np.ndarray, got: np.ndarray) -> float:
    if not reference.size:
        return 0.0
    return float(np.max(np.abs(got - reference) / np.maximum(np.abs(reference), _TINY)))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).ravel()
