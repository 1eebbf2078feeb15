"""Where the batch axis of a value goes when an operation is applied: rules for TensorFlow's graphs and JAX's jaxprs.

They follow it as the batching rules of `jax.vmap` and of TensorFlow's `pfor` do, and know two more kinds of value: a
sum and a mean over the rows, which can be put together from those of the parts of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["constant", "rows", "sum", "mean", "size", "mixed"]
Linear = Literal["add", "multiply", "divide"]


@dataclass(frozen=True)
class Value:
    """What is known of a tensor."""

    # `constant`: the same for every batch. `rows`: each row depends on that row of the batch alone. `sum`, `mean`: of
    # such rows over the batch. `size`: the number of rows, or a multiple. `mixed`: anything else.
    kind: Kind
    axis: int = 0  # the axis of the rows
    per_row: int = 1  # how many entries of that axis belong to one row; they follow each other
    reason: str = ""  # for what is no longer rows, the operation that ended them
    # Whether a `mixed` value does mix the rows; else an operation has no rule, or the number of rows is used.
    is_certain: bool = True


CONSTANT = Value("constant")


def rows(axis: int = 0, per_row: int = 1) -> Value:
    """Return the value of a tensor of rows."""
    return Value("rows", axis, per_row)


def mixed(reason: str, *, is_certain: bool = True) -> Value:
    """Return the value of a tensor that mixes rows."""
    return Value("mixed", reason=reason, is_certain=is_certain)


def first_mixed(values: Sequence[Value]) -> Value | None:
    """Return the first mixed value, one that is certain if there is any."""
    there = [value for value in values if value.kind == "mixed"]
    return next((value for value in there if value.is_certain), there[0] if there else None)


def of_examples(given: Sequence[Value]) -> Value:
    """Return the value of what is right for the examples of any batch, if what is `given` has their rows."""
    if (bad := first_mixed(given)) is not None:
        return bad
    for value in given:
        if value.kind in ("sum", "mean", "size") or (value.kind == "rows" and value.axis):
            return mixed(value.reason or "the rows are not the first axis")
    return CONSTANT


class Operand(NamedTuple):
    """A value and the rank of its tensor."""

    value: Value
    rank: int


def elementwise(operands: Sequence[Operand], where: str, how: Linear | None = None) -> Value:
    """Return the value of an element-wise operation, whose operands are broadcast from the right.

    `where` names the operation, for a reason. `how` is `"add"` for a cast or a sign, too.
    """
    values = [value for value, _ in operands]
    if (bad := first_mixed(values)) is not None:
        return bad
    kinds = {value.kind for value in values} - {"constant"}
    if not kinds:
        return CONSTANT
    if kinds == {"rows"}:
        axes = {(value.axis - rank, value.per_row) for value, rank in operands if value.kind == "rows"}
        if len(axes) > 1:
            return mixed(f"{where} combines different rows")
        ((from_right, per_row),) = axes
        return rows(max(rank for _, rank in operands) + from_right, per_row)
    if "rows" in kinds:
        return mixed(_reasons(values) or where, is_certain=bool(kinds - {"rows", "size"}))
    return _of_reduced(values, kinds, where, how)


def _of_reduced(values: Sequence[Value], kinds: set[Kind], where: str, how: Linear | None) -> Value:
    reason, has_constant = _reasons(values) or where, any(value.kind == "constant" for value in values)
    if how == "add" and len(values) == 1:
        return values[0]
    if how == "add" and kinds <= {"sum", "size"} and not has_constant:
        return Value("sum", reason=reason)
    if how == "add" and kinds == {"mean"}:
        return Value("mean", reason=reason)
    if how == "multiply" and len(values) == 2 and has_constant:
        return next(value for value in values if value.kind != "constant")
    if how == "multiply" and kinds == {"mean", "size"}:
        return Value("sum", reason=reason)
    if how == "divide":
        above, below = values
        if below.kind == "constant":
            return above
        if above.kind == "sum" and below.kind == "size":
            return Value("mean", reason=reason)
        if above.kind == below.kind == "size":
            return CONSTANT
    return mixed(reason, is_certain=kinds != {"size"})


def _reasons(values: Sequence[Value]) -> str:
    return next((value.reason for value in values if value.reason), "")


def reduce(value: Value, axes: Sequence[int], where: str, how: str, *, keeps_axes: bool = False) -> Value:
    """Return the value of a reduction, a `"sum"`, a `"mean"` or any other, over `axes`, which are not negative."""
    if value.kind in ("constant", "mixed"):
        return value
    if value.kind != "rows":
        return value if how in ("sum", "mean") else mixed(value.reason, is_certain=value.kind != "size")
    if value.axis not in axes:
        below = 0 if keeps_axes else sum(axis < value.axis for axis in axes)
        return rows(value.axis - below, value.per_row)
    if how == "sum":
        return Value("sum", reason=where)
    return Value("mean", reason=where) if how == "mean" else mixed(where)


def along(value: Value, axes: Sequence[int], where: str) -> Value:
    """Return the value of an operation that keeps the shape and combines entries along `axes`, such as a sort."""
    if value.kind in ("constant", "mixed"):
        return value
    return value if value.kind == "rows" and value.axis not in axes else mixed(value.reason or where)


def transpose(value: Value, permutation: Sequence[int]) -> Value:
    """Return the value with its axes in another order."""
    return rows(list(permutation).index(value.axis), value.per_row) if value.kind == "rows" else value


def reshape(value: Value, old: Sequence[int], new: Sequence[int | None], where: str) -> Value:
    """Return the value in a `new` shape, which has `None` where the number of rows is."""
    if value.kind != "rows":
        return value
    if list(new).count(None) != 1:
        return mixed(where, is_certain=False)
    axis = list(new).index(None)
    inner, rest = value.per_row * math.prod(old[value.axis + 1 :]), _product(new[axis + 1 :])
    if math.prod(old[: value.axis]) != _product(new[:axis]) or not rest or inner % rest:
        return mixed(f"{where} moves entries from row to row")
    return rows(axis, inner // rest)


def _product(sizes: Sequence[int | None]) -> int:
    return math.prod(size or 0 for size in sizes)


def concatenate(values: Sequence[Value], axis: int, where: str) -> Value:
    """Return the value of tensors joined along `axis`."""
    if (bad := first_mixed(values)) is not None:
        return bad
    there = {value for value in values if value.kind != "constant"}
    if not there:
        return CONSTANT
    if len({(value.kind, value.axis, value.per_row) for value in there}) > 1:
        return mixed(_reasons(values) or where)
    value = next(iter(there))
    if value.kind == "rows":
        return mixed(f"{where} joins rows") if value.axis == axis else value
    return value if value.kind == "mean" or len(there) == len(values) else mixed(value.reason)


class Contraction(NamedTuple):
    """One operand of a product: its value, its rank, its batch axes and those that are contracted, in order."""

    value: Value
    rank: int
    batch: tuple[int, ...]
    contracted: tuple[int, ...]


def contract(left: Contraction, right: Contraction, where: str) -> Value:
    """Return the value of a product like `jax.lax.dot_general`: batch axes first, then those of each operand."""
    operands = (left, right)
    values = [operand.value for operand in operands]
    if (bad := first_mixed(values)) is not None:
        return bad
    if any(value.kind in ("sum", "mean", "size") for value in values):
        reduced = next(value for value in values if value.kind in ("sum", "mean", "size"))
        other_is_constant = sum(value.kind == "constant" for value in values) == 1
        return reduced if other_is_constant else mixed(reduced.reason)
    found = {_axis_of_rows(operand, left) for operand in operands if operand.value.kind == "rows"}
    if not found:
        return CONSTANT
    if len(found) > 1:
        return mixed(f"{where} combines different rows")
    ((role, axis, per_row),) = found
    is_both = all(value.kind == "rows" for value in values)
    if role == "contracted":
        return Value("sum", reason=where) if is_both else mixed(where)
    if role == "free" and is_both:
        return mixed(f"{where} combines different rows")
    return rows(axis, per_row)


def _axis_of_rows(operand: Contraction, left: Contraction) -> tuple[str, int, int]:
    """Return the role of the axis of an operand's rows, its position in that role or in the result, and `per_row`."""
    value, rank, batch, contracted = operand
    if value.axis in batch:
        return "batch", batch.index(value.axis), value.per_row
    if value.axis in contracted:
        return "contracted", contracted.index(value.axis), value.per_row
    free = [axis for axis in range(rank) if axis not in (*batch, *contracted)]
    before = 0 if operand is left else left.rank - len(left.batch) - len(left.contracted)
    return "free", len(batch) + before + free.index(value.axis), value.per_row


def join(first: Value, second: Value, where: str) -> Value:
    """Return the value of a result that is one or the other, as after a condition or a round of a loop."""
    if first == second:
        return first
    if (bad := first_mixed((first, second))) is not None:
        return bad
    kinds = {first.kind, second.kind}
    if "constant" in kinds and kinds & {"rows", "mean"}:
        return second if first.kind == "constant" else first
    if len(kinds) == 1 and first.axis == second.axis and first.per_row == second.per_row:
        return first
    return mixed(first.reason or second.reason or where)
