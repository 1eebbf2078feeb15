"""Rules for operations that move, select or repeat entries, and for sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common import batch_axis
from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Value, first_mixed, mixed, rows
from keras_tpu_ext._runtime.tensorflow.graph_axis import (
    Lookup,
    Result,
    Size,
    Step,
    UnknownAxesError,
    rule,
    static_value,
)
from keras_tpu_ext._runtime.tensorflow.graph_rules.arithmetic import elementwise, first_axis, fitting

_RANDOM = "RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt ParameterizedTruncatedNormal"
_STATELESS = "RandomUniform RandomNormal RandomTruncatedNormal RandomUniformInt RandomUniformFullInt TruncatedNormal"
_DEPENDS = " takes a part that depends on the batch"
_TAKES_SOME = " takes some rows"


@rule("Reshape")
def _reshape(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "size" and step.output.shape.rank is not None and step.output.shape.rank < 2:
        return value if (sizes := step.sizes(0)) is None else step.keep_sizes(sizes)
    if value.kind != "rows":
        return value
    old = step.shape(0)
    if any(size < 0 for axis, size in enumerate(old) if axis != value.axis):
        raise UnknownAxesError
    new = _new_shape(step, math.prod(size for axis, size in enumerate(old) if axis != value.axis) * value.per_row)
    if value.per_row < 0 and old[1:] != new[1:]:
        return step.mixed(is_certain=False)
    step.output.set_shape(new)  # which TensorFlow does not know beside an unknown number of rows
    return batch_axis.reshape(value, old, new, step.where)


def _new_shape(step: Step, entries: int) -> list[int | None]:
    """Return the new shape of rows with so many `entries` each; `None` for the number of rows."""
    sizes, static = step.sizes(1) or (), step.output.shape
    if static.rank is None:
        raise UnknownAxesError
    new: list[int | None] = static.as_list()
    axes = [axis for axis, size in enumerate(sizes) if isinstance(size, Size)]
    axes = axes or [axis for axis, size in enumerate(new) if size is None]
    unknown = [axis for axis, size in enumerate(new) if size is None and axis not in axes]
    if len(axes) != 1 or len(unknown) > 1:
        raise UnknownAxesError
    for axis in unknown:  # -1, beside the number of rows
        others = math.prod(size or 1 for other, size in enumerate(new) if other not in (*axes, axis))
        new[axis] = entries // (sizes[axes[0]].per_row * others)
    new[axes[0]] = None
    return new


@rule("Squeeze")
def _squeeze(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return value
    axes = [axis % step.rank(0) for axis in step.attribute("squeeze_dims")]
    if not axes:
        return step.mixed(" without an axis, which does otherwise with a single row", is_certain=False)
    for axis in sorted(axes, reverse=True):
        value = without_axis(value, axis, step.where)
    return value


@rule("ExpandDims")
def _expand(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "size":
        sizes = step.sizes(0)
        return value if sizes is None or step.rank(0) else step.keep_sizes(sizes)
    return with_axis(value, step.axes(1, step.rank(0) + 1)[0] if value.kind == "rows" else 0)


def with_axis(value: Value, axis: int) -> Value:
    """Return the value with a new axis."""
    return rows(value.axis + (axis <= value.axis), value.per_row) if value.kind == "rows" else value


def without_axis(value: Value, axis: int, where: str) -> Value:
    """Return the value without an axis of which one entry is taken, or all one by one."""
    if value.kind != "rows":
        return value
    return mixed(where) if axis == value.axis else rows(value.axis - (axis < value.axis), value.per_row)


@rule("Transpose")
def _transpose(step: Step) -> Value:
    value = step.values[0]
    return batch_axis.transpose(value, step.axes(1)) if value.kind == "rows" else value


@rule("Pack")
def _pack(step: Step) -> Value:
    if any(value.kind == "size" for value in step.values) and step.rank(0) == 0:
        return _of_sizes(step, len(step.inputs))
    axis = step.attribute("axis") % (step.rank(0) + 1)
    value = batch_axis.concatenate([with_axis(value, axis) for value in step.values], axis, step.where)
    return fitting(step, value, value.axis - (axis < value.axis)) if value.kind == "rows" else value


def _of_sizes(step: Step, count: int) -> Value:
    """Return the value of sizes that are put together, each an input or a part of it."""
    parts: list[Any] = []
    for index, value in enumerate(step.values[:count]):
        known = step.sizes(index)
        if value.kind not in ("size", "constant") or (known is None and (value.kind == "size" or step.rank(index))):
            return mixed(value.reason or step.where, is_certain=False)
        parts.extend((None,) if known is None else known)
    return step.keep_sizes(parts)


@rule("Unpack")
def _unpack(step: Step) -> Result:
    value = step.values[0]
    if value.kind == "size":
        return [step.keep_sizes([size], output) for output, size in enumerate(step.known_sizes(0))]
    return without_axis(value, step.attribute("axis") % step.rank(0), step.where) if value.kind == "rows" else value


@rule("ConcatV2")
def _concatenate(step: Step) -> Value:
    *parts, _ = step.values
    if any(value.kind == "size" for value in parts) and step.rank(0) == 1:
        return _of_sizes(step, len(parts))
    if all(value == CONSTANT for value in parts):
        return CONSTANT
    rank = next(step.rank(index) for index, value in enumerate(parts) if value != CONSTANT)
    value = batch_axis.concatenate(parts, step.axes(len(parts), rank)[0], step.where)
    return fitting(step, value, value.axis) if value.kind == "rows" else value


@rule("Split")
def _split(step: Step) -> Result:
    count = len(step.operation.outputs)
    return _parts(step, 1, 0, [1] * count)


@rule("SplitV")
def _split_unevenly(step: Step) -> Result:
    is_size = step.values[0].kind == "size"
    return _parts(step, 0, 2, [int(size) for size in step.static(1)] if is_size else [])


def _parts(step: Step, index: int, axis: int, parts: Sequence[int]) -> Result:
    """Return the values of parts of an input; `axis` is the input that holds the axis."""
    value, sizes = step.values[index], step.sizes(index)
    if value.kind == "rows":
        return batch_axis.along(value, step.axes(axis, step.rank(index)), step.where)
    if value.kind != "size" or sizes is None:
        return mixed(value.reason, is_certain=False) if value.kind == "size" else value
    if -1 in parts:
        raise UnknownAxesError
    ends = [len(sizes) * sum(parts[:i]) // sum(parts) for i in range(len(parts) + 1)]
    return [step.keep_sizes(sizes[ends[i] : ends[i + 1]], i) for i in range(len(parts))]


@rule("Pad", "PadV2", "MirrorPad")
def _pad(step: Step) -> Value:
    padded = [axis for axis, sizes in enumerate(step.static(1)) if sizes.any()]
    return batch_axis.along(step.values[0], padded, step.where)


@rule("Tile")
def _tile(step: Step) -> Value:
    return _stretch(step, lambda size: size == 1)


@rule("BroadcastTo")
def _broadcast(step: Step) -> Value:
    return _stretch(step, lambda size: size in (-1, None) or isinstance(size, Size))


def _stretch(step: Step, keeps: Callable[[Any], bool]) -> Value:
    value = step.values[0]
    if value.kind not in ("constant", "rows"):
        return value
    sizes = step.known_sizes(1)
    if value.kind == "constant":
        filled, rank = _filled(sizes), step.inputs[0].shape.rank or 0
        axis = filled.axis - len(sizes)
        has_rows = filled.kind == "rows" and rank >= -axis and step.inputs[0].shape[axis] not in (None, 1)
        return step.mixed(" fits some numbers of rows") if has_rows else filled
    axis = value.axis + len(sizes) - step.rank(0)
    if step.values[1] != CONSTANT and not _are_known(sizes, axis):
        return mixed(step.values[1].reason or step.where, is_certain=False)
    return rows(axis, value.per_row) if keeps(sizes[axis]) else step.mixed()


def _filled(sizes: Sequence[Any]) -> Value:
    """Return the value of a tensor with these sizes whose entries do not depend on the batch."""
    axes = [axis for axis, size in enumerate(sizes) if isinstance(size, Size)]
    if len(axes) > 1:
        return mixed("a tensor with as many columns as rows", is_certain=False)
    return rows(axes[0], sizes[axes[0]].per_row) if axes else CONSTANT


@rule("Fill", *_RANDOM.split(), *(f"Stateless{kind}{end}" for kind in _STATELESS.split() for end in ("", "V2")))
def _fill(step: Step) -> Value:
    is_constant = all(value.kind == "constant" for value in step.values[1:])
    filled = _filled(step.known_sizes(0)) if is_constant else step.mixed(is_certain=False)
    is_fixed = step.kind.startswith("Stateless") and _is_fixed(step.inputs[1])
    return step.mixed(" draws the same for each part of a batch") if filled.kind == "rows" and is_fixed else filled


def _is_fixed(seed: Any) -> bool:
    """Return whether a seed, or a key that is made of one, is a constant."""
    return static_value(seed.op.inputs[0] if seed.op.type.startswith("StatelessRandomGetKey") else seed) is not None


@rule("MatrixSolve", "MatrixTriangularSolve", "CholeskyGrad", "BatchMatrixSolve")
def _solve(step: Step) -> Value:
    value = elementwise(step)
    axes = range(step.rank(0) - 2, step.rank(0))
    return batch_axis.along(value, axes, step.where) if value.kind == "rows" else value


@rule("Shape")
def _shape(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "rows":
        sizes = [Size(value.per_row) if axis == value.axis else size for axis, size in enumerate(step.shape(0))]
        return step.keep_sizes(sizes)
    return value if value.kind == "mixed" and not step.inputs[0].shape.is_fully_defined() else CONSTANT


@rule("Size")
def _size(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return CONSTANT if value.kind != "mixed" else value
    others = math.prod(size for axis, size in enumerate(step.shape(0)) if axis != value.axis)
    return step.keep_sizes([Size(value.per_row * others)])


@rule("Range")
def _range(step: Step) -> Value:
    has_size = any(value.kind == "size" for value in step.values)
    return step.mixed(", the place of a row in its part of the batch") if has_size else CONSTANT


@rule("Slice")
def _slice(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return value
    begins, sizes = step.known_sizes(1), step.known_sizes(2)
    if step.values[1] != CONSTANT or (step.values[2] != CONSTANT and not _are_known(sizes, value.axis)):
        return step.mixed(_DEPENDS, is_certain=False)
    is_whole = begins[value.axis] == 0 and sizes[value.axis] in (-1, Size(value.per_row))
    return value if is_whole else step.mixed(_TAKES_SOME)


def _are_known(sizes: Sequence[Any], but: int) -> bool:
    return all(isinstance(size, int) for axis, size in enumerate(sizes) if axis != but)


@rule("StridedSlice")
def _strided_slice(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "size":
        return _sizes_taken(step)
    if value.kind != "rows":
        return value
    begins, ends, strides = (step.known_sizes(index) for index in (1, 2, 3))
    index, axis = _axis_taken(step, value, len(strides))
    is_known = step.values[2] == CONSTANT or (index >= 0 and _are_known(ends, index))
    if not is_known or step.values[1] != CONSTANT or step.values[3] != CONSTANT:
        return step.mixed(_DEPENDS, is_certain=False)
    if index >= 0:
        begin_is_free = step.attribute("begin_mask") >> index & 1 or begins[index] == 0
        end_is_free = step.attribute("end_mask") >> index & 1 or ends[index] == Size(value.per_row)
        is_item = step.attribute("shrink_axis_mask") >> index & 1
        if not (begin_is_free and end_is_free and strides[index] == 1) or is_item:
            return step.mixed(_TAKES_SOME)
    return rows(axis, value.per_row)


def _axis_taken(step: Step, value: Value, count: int) -> tuple[int, int]:
    """Return which of the `count` entries of a slice is for the axis of the rows, or -1, and that axis afterwards."""
    new, ellipsis, shrink = (step.attribute(f"{name}_mask") for name in ("new_axis", "ellipsis", "shrink_axis"))
    source, target = 0, 0
    for i in range(count):
        if new >> i & 1:
            target += 1
        elif ellipsis >> i & 1:
            later = sum(not new >> j & 1 for j in range(i + 1, count))
            skipped = step.rank(0) - source - later
            if value.axis < source + skipped:
                break
            source, target = source + skipped, target + skipped
        elif source == value.axis:
            return i, target
        else:
            source, target = source + 1, target + (not shrink >> i & 1)
    return -1, target + value.axis - source


def _sizes_taken(step: Step) -> Value:
    if step.attribute("new_axis_mask") or step.attribute("ellipsis_mask") or step.rank(0) != 1:
        return mixed(step.values[0].reason, is_certain=False)
    begin, end, stride = (int(step.static(index)[0]) for index in (1, 2, 3))
    sizes = step.known_sizes(0)
    if step.attribute("shrink_axis_mask"):
        return step.keep_sizes([sizes[begin]])
    first = None if step.attribute("begin_mask") else begin
    last = None if step.attribute("end_mask") else end
    return step.keep_sizes(sizes[first:last:stride])


@rule("GatherV2", "Gather")
def _gather(step: Step) -> Value:
    params, indices, *_ = step.values
    if params.kind == "size" and indices == CONSTANT:
        sizes = step.known_sizes(0)
        return step.keep_sizes([sizes[int(index)] for index in step.static(1).ravel()])
    if params == CONSTANT and step.inputs[0].ref() in step.known.handles:
        step.walk.lookups.append(Lookup(step.known.handle(step.inputs[0]), indices))
    if first_mixed(step.values) is not None or params == indices == CONSTANT:
        return first_mixed(step.values) or CONSTANT
    axis = step.axes(2)[0] if step.kind == "GatherV2" else 0
    batch = step.attribute("batch_dims") if step.kind == "GatherV2" else 0
    return _gathered(step, params, indices, axis, batch + step.rank(1) if batch < 0 else batch)


def _gathered(step: Step, params: Value, indices: Value, axis: int, batch: int) -> Value:
    if any(value.kind not in ("constant", "rows") for value in (params, indices)):
        return mixed(params.reason or indices.reason)
    if params == CONSTANT:
        if indices.axis < batch and step.inputs[0].shape[indices.axis] != 1:
            return step.of_one_number()
        return rows(indices.axis + (axis - batch if indices.axis >= batch else 0), indices.per_row)
    if params.axis == axis:
        return step.mixed(_TAKES_SOME)
    if params.axis < batch and indices == params:
        return params
    if indices == CONSTANT and params.axis >= batch:
        added = step.rank(1) - batch - 1 if params.axis > axis else 0
        return rows(params.axis + added, params.per_row)
    return step.mixed(" combines different rows")


@rule("ResourceGather", "ResourceGatherNd")
def _look_up(step: Step) -> Value:
    indices = step.values[1]
    step.walk.lookups.append(Lookup(step.known.handle(step.inputs[0]), indices))
    return indices if indices.kind in ("constant", "mixed") else _rows_looked_up(step, indices)


@rule("GatherNd")
def _gather_nd(step: Step) -> Value:
    params, indices = step.values
    return _rows_looked_up(step, indices) if params == CONSTANT else step.mixed()


def _rows_looked_up(step: Step, indices: Value) -> Value:
    is_index = step.kind != "ResourceGather" and indices.axis == step.rank(1) - 1
    return mixed(indices.reason or step.where) if indices.kind != "rows" or is_index else indices


@rule("OneHot")
def _one_hot(step: Step) -> Value:
    axis = step.attribute("axis")
    is_last = axis in (-1, step.rank(0))
    return step.values[0] if is_last else with_axis(step.values[0], axis)


@rule("LookupTableFindV2")
def _find(step: Step) -> Value:
    return step.values[1] if step.values[1].kind in ("constant", "rows") else step.mixed()


@rule("DenseBincount")
def _count(step: Step) -> Value:
    """Follow the counts of each row, if the number of columns is given: TensorFlow takes minima and maxima of it."""
    most, least = step.inputs[1].op, None
    if most.type == "Minimum":
        least = next((each.op for each in most.inputs if each.op.type == "Maximum"), None)
    if least is not None:
        numbers = [[tf.get_static_value(each) for each in operation.inputs] for operation in (most, least)]
        limits = [next((each for each in of_one if each is not None), None) for of_one in numbers]
        if limits[0] is not None and limits[0] == limits[1]:
            step.values[1] = CONSTANT
    if first_mixed(step.values) is not None or all(value == CONSTANT for value in step.values):
        return first_mixed(step.values) or CONSTANT
    return step.mixed() if step.values[0].kind == "rows" and step.rank(0) != 2 else first_axis(step, 0, [2])
