"""Why a step was compiled again, by the shapes and dtypes of its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Nest

_PARTS = ("x", "y", "sample_weight")


class ArrayType(NamedTuple):
    """What a step is compiled for."""

    shape: tuple[int | None, ...]  # `None` where it may differ
    dtype: str


def types_of(batch: Nest) -> dict[str, ArrayType]:
    """Return the type of each array of a batch, or of its specs, by a name such as `x["image"]`."""
    found: dict[str, ArrayType] = {}
    parts = batch if isinstance(batch, (tuple, list)) else (batch,)
    for name, part in zip(_PARTS, parts, strict=False):
        _add(found, name, part)
    return found


def _add(found: dict[str, ArrayType], name: str, part: Any) -> None:
    if isinstance(part, Mapping):
        for key, value in part.items():
            _add(found, f'{name}["{key}"]', value)
    elif isinstance(part, (tuple, list)):
        for i, value in enumerate(part):
            _add(found, f"{name}[{i}]", value)
    elif part is not None:
        specs = getattr(part, "_value_specs", (part,))  # one for each replica
        shapes = [tuple(spec.shape) for spec in specs]
        rows = [shape[0] for shape in shapes if shape]
        together = (None if None in rows else sum(rows), *shapes[0][1:]) if rows else ()
        found[name] = ArrayType(together, getattr(specs[0].dtype, "name", str(specs[0].dtype)))


Types = Mapping[str, ArrayType]
_MOST = 3  # changes that are named

_ROWS = (
    "Give every batch {rows} rows: kte.data.pad_batches(dataset, {rows}), or "
    "dataset.batch({rows}, drop_remainder=True)"
)
_AXES = "Pad the data to one length, or to a few that you choose: each is compiled once"
_DTYPE = "Cast the data to one dtype before fit"
_ARGUMENTS = "Give every batch the same arguments, sample_weight for instance"
_CONSTANT = (
    "Make it a variable, self.add_weight(shape=(), initializer=..., trainable=False), and assign() it, or pass it as "
    "a tensor: one program then takes every value"
)
_MADE_AGAIN = "Call compile() and make_train_function() before fit, not within it"


class Reason(NamedTuple):
    """Why a step was compiled again, and what to do about it."""

    text: str
    cure: str


def reason_in_batches(batches: Sequence[Types], seen: Sequence[Types]) -> Reason | None:
    """Return how a batch differs from the nearest one that was seen; `None` if none differs."""
    new = next((batch for batch in batches if batch not in seen), None)
    if new is None or not seen:
        return None
    changes = min((_changes(old, new) for old in reversed(seen)), key=lambda found: sum(map(len, found.values())))
    texts = [f"{', '.join(names[:_MOST])}: {reason.text}" for reason, names in changes.items()]
    return Reason("; ".join(texts[:_MOST]), next(iter(changes)).cure)


def reason_in_constants(before: Mapping[str, object], now: Mapping[str, object], *, made_again: bool) -> Reason:
    """Return which Python constants changed, or else what can be said.

    Args:
        before: The constants with which the step was traced before.
        now: Those of now.
        made_again: Whether the model has another train function than before.
    """
    names = [name for name in now if name in before and before[name] != now[name]]
    if names:
        changed = "; ".join(f"{name} {before[name]!r} to {now[name]!r}" for name in names[:_MOST])
        # A constant alone is not looked at: the step keeps the one that it was traced with.
        maybe = "a Python constant changed" if made_again else "perhaps because a Python constant changed"
        return Reason(f"{maybe}: {changed}", _CONSTANT)
    if made_again:
        return Reason("the function of the step was made again, for equal batches and constants", _MADE_AGAIN)
    return Reason("for a reason that cannot be seen from here", _runtime.message_terms.why_compiled)


def _changes(old: Types, new: Types) -> dict[Reason, list[str]]:
    """Return the changes with the names of the arguments that they are of."""
    found: dict[Reason, list[str]] = {}
    for name in dict.fromkeys([*new, *old]):
        for reason in _changes_of(old.get(name), new.get(name)):
            found.setdefault(reason, []).append(name)
    return found


def _changes_of(old: ArrayType | None, new: ArrayType | None) -> list[Reason]:
    if old is None or new is None:
        return [Reason("is new" if old is None else "is gone", _ARGUMENTS)]
    found = []
    if len(old.shape) != len(new.shape):
        found.append(Reason(f"shape {old.shape} to {new.shape}", _AXES))
    else:
        for axis, (before, now) in enumerate(zip(old.shape, new.shape, strict=True)):
            if before != now:
                cure = _AXES if axis else _ROWS.format(rows=max(before or 0, now or 0))
                found.append(Reason(f"{f'axis {axis}' if axis else 'rows'} {_size(before)} to {_size(now)}", cure))
    if old.dtype != new.dtype:
        found.append(Reason(f"dtype {old.dtype} to {new.dtype}", _DTYPE))
    return found


def _size(size: int | None) -> str:
    return "any" if size is None else str(size)
