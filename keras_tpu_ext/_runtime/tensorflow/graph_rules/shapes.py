"""Rules for operations that move, select or repeat entries, and for sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common import batch_axis
from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Value, first_mixed, mixed, rows
from keras_tpu_ext._runtime.tensorflow.graph_axis import Lookup, Size, Step, UnknownAxesError
from keras_tpu_ext._runtime.tensorflow.graph_rules.arithmetic import first_axis, fitting, fitting_at
from keras_tpu_ext._runtime.tensorflow.graph_rules.registry import RULES, Result, rule


@rule("Reshape")
def _reshape(step: Step) -> Value:
    if step.values[0].kind == "size" and step.output.shape.rank is not None and step.output.shape.rank < 2:
        return step.values[0] if (sizes := step.sizes(0)) is None else step.keep_sizes(sizes)
    value = step.values[0]
    if value.kind != "rows":
        return value
    if value.per_row < 0 and step.shape(0)[1:] != step.output.shape.as_list()[1:]:
        return mixed(step.where, is_certain=False)
    old = step.shape(0)
    if any(size < 0 for axis, size in enumerate(old) if axis != value.axis):
        raise UnknownAxesError
    new = _new_shape(step)
    step.output.set_shape(new)  # which TensorFlow does not know beside an unknown number of rows
    return batch_axis.reshape(value, old, new, step.where)


def _new_shape(step: Step) -> list[int | None]:
    """Return the new shape, with `None` for the number of rows."""
    sizes, static = step.sizes(1), step.output.shape
    if static.rank is None:
        raise UnknownAxesError
    place = [axis for axis, size in enumerate(sizes or ()) if isinstance(size, Size)]
    if not place:
        place = [axis for axis, size in enumerate(static) if size is None]
    if len(place) != 1:
        raise UnknownAxesError
    new: list[int | None] = [None if size is None else int(size) for size in static]
    unknown = [axis for axis, size in enumerate(new) if size is None and axis != place[0]]
    if len(unknown) == 1:  # -1, beside the number of rows
        old = step.shape(0)
        entries = step.values[0].per_row * math.prod(
            size for axis, size in enumerate(old) if axis != step.values[0].axis
        )
        of_rows = sizes[place[0]].per_row if sizes and isinstance(sizes[place[0]], Size) else 1
        others = of_rows * math.prod(size or 1 for axis, size in enumerate(new) if axis not in (place[0], unknown[0]))
        new[unknown[0]] = entries // others
    elif unknown:
        raise UnknownAxesError
    new[place[0]] = None
    return new


@rule("Squeeze")
def _squeeze(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return value
    rank = step.rank(0)
    axes = [axis % rank for axis in step.attribute("squeeze_dims")]
    if not axes:
        return mixed(f"{step.where} without an axis, which does otherwise with a single row", is_certain=False)
    return (
        mixed(step.where)
        if value.axis in axes
        else rows(value.axis - sum(a < value.axis for a in axes), value.per_row)
    )


@rule("ExpandDims")
def _expand(step: Step) -> Value:
    if step.values[0].kind == "size":
        sizes = step.sizes(0)
        return step.values[0] if sizes is None or step.rank(0) else step.keep_sizes(sizes)
    (axis,) = step.axes(1, step.rank(0) + 1) if step.values[0].kind == "rows" else [0]
    return with_axis(step.values[0], axis)


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
    return batch_axis.transpose(value, step.axes(1, step.rank(0))) if value.kind == "rows" else value


@rule("Pack")
def _pack(step: Step) -> Value:
    if any(value.kind == "size" for value in step.values) and step.rank(0) == 0:
        return _of_sizes(step, len(step.inputs))
    axis = step.attribute("axis") % (step.rank(0) + 1)
    value = batch_axis.concatenate([with_axis(value, axis) for value in step.values], axis, step.where)
    return fitting_at(step, value, value.axis - (axis < value.axis)) if value.kind == "rows" else value


def _of_sizes(step: Step, count: int) -> Value:
    """Return the value of sizes that are put together, each an input or a part of it."""
    parts: list[Any] = []
    for place, value in enumerate(step.values[:count]):
        known = step.sizes(place)
        if value.kind not in ("size", "constant") or (known is None and (value.kind == "size" or step.rank(place))):
            return first_mixed(step.values) or mixed(value.reason or step.where, is_certain=False)
        parts.extend(known or ((None,) if not step.rank(place) else ()))
    return step.keep_sizes(parts)


@rule("Unpack")
def _unpack(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "size":
        return mixed(value.reason)
    return without_axis(value, step.attribute("axis") % step.rank(0), step.where) if value.kind == "rows" else value


@rule("ConcatV2")
def _concatenate(step: Step) -> Value:
    *parts, _ = step.values
    if any(value.kind == "size" for value in parts) and step.rank(0) == 1:
        return _of_sizes(step, len(parts))
    if all(value.kind == "constant" for value in parts):
        return CONSTANT
    rank = next(step.rank(place) for place, value in enumerate(parts) if value.kind != "constant")
    value = batch_axis.concatenate(parts, step.axes(len(parts), rank)[0], step.where)
    return fitting_at(step, value, value.axis) if value.kind == "rows" else value


@rule("Split")
def _split(step: Step) -> Result:
    count = len(step.operation.outputs)
    return _parts(step, 1, 0, [1] * count, count)


@rule("SplitV")
def _split_unevenly(step: Step) -> Result:
    sizes = step.static(1) if step.values[0].kind == "size" else []
    return _parts(step, 0, 2, [int(size) for size in sizes], sum(sizes))


def _parts(step: Step, place: int, axis: int, parts: Sequence[int], whole: int) -> Result:
    value, sizes = step.values[place], step.sizes(place)
    if value.kind == "rows":
        return batch_axis.along(value, step.axes(axis, step.rank(place)), step.where)
    if value.kind != "size" or sizes is None:
        return value if value.kind in ("constant", "mixed", "sum", "mean") else mixed(value.reason, is_certain=False)
    ends = [len(sizes) * sum(parts[: i + 1]) // whole for i in range(len(parts))]
    return [
        step.keep_sizes(sizes[begin:end], i) for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


@rule("Pad", "PadV2", "MirrorPad")
def _pad(step: Step) -> Value:
    if step.values[0].kind != "rows":
        return step.values[0] if step.values[0].kind in ("constant", "mixed") else mixed(step.values[0].reason)
    padded = [axis for axis, sizes in enumerate(step.static(1)) if sizes.any()]
    return batch_axis.along(step.values[0], padded, step.where)


@rule("Tile")
def _tile(step: Step) -> Value:
    return _stretch(step, lambda size: size == 1)


@rule("BroadcastTo")
def _broadcast(step: Step) -> Value:
    return _stretch(step, lambda size: size in (-1, None) or isinstance(size, Size))


def _stretch(step: Step, keeps: Callable[[Any], bool]) -> Value:
    value, sizes = step.values[0], step.sizes(1)
    if value.kind not in ("constant", "rows"):
        return value
    if sizes is None:
        raise UnknownAxesError
    if value.kind == "constant":
        filled, rank = _filled(sizes), step.inputs[0].shape.rank or 0
        place = filled.axis - len(sizes)
        has_rows = filled.kind == "rows" and rank >= -place and step.inputs[0].shape[place] not in (None, 1)
        return mixed(f"{step.where} fits some numbers of rows") if has_rows else filled
    axis = value.axis + len(sizes) - step.rank(0)
    others = [size for place, size in enumerate(sizes) if place != axis]
    if any(size is None or isinstance(size, Size) for size in others) and step.values[1] != CONSTANT:
        return mixed(step.values[1].reason or step.where, is_certain=False)
    return rows(axis, value.per_row) if keeps(sizes[axis]) else mixed(step.where)


def _filled(sizes: Sequence[Any]) -> Value:
    """Return the value of a tensor with these sizes whose entries do not depend on the batch."""
    places = [axis for axis, size in enumerate(sizes) if isinstance(size, Size)]
    if len(places) > 1:
        return mixed("a tensor with as many columns as rows", is_certain=False)
    return rows(places[0], sizes[places[0]].per_row) if places else CONSTANT


@rule(
    "Fill",
    "RandomUniform",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomUniformInt",
    "ParameterizedTruncatedNormal",
)
def _fill(step: Step) -> Value:
    others = step.values[1:]
    bad = first_mixed(step.values)
    if bad is not None or any(value.kind != "constant" for value in others):
        return bad or mixed(step.where, is_certain=False)
    if step.values[0] == CONSTANT:
        return CONSTANT
    sizes = step.sizes(0)
    if sizes is None:
        raise UnknownAxesError
    return _filled(sizes)


for _name in ("Uniform", "Normal", "TruncatedNormal", "UniformInt", "UniformFullInt"):
    RULES[f"StatelessRandom{_name}V2"] = RULES[f"StatelessRandom{_name}"] = _fill
RULES["StatelessTruncatedNormalV2"] = RULES["StatelessTruncatedNormal"] = _fill


@rule("MatrixSolve", "MatrixTriangularSolve", "CholeskyGrad", "BatchMatrixSolve")
def _solve(step: Step) -> Value:
    value = fitting(step, batch_axis.elementwise(step.operands(), step.where))
    return (
        batch_axis.along(value, [step.rank(0) - 2, step.rank(0) - 1], step.where) if value.kind == "rows" else value
    )


@rule("Multinomial", "StatelessMultinomial")
def _draw(step: Step) -> Value:
    return first_axis(step, 0, [])


@rule("Shape")
def _shape(step: Step) -> Value:
    value = step.values[0]
    if value.kind == "rows":
        sizes = [Size(value.per_row) if axis == value.axis else size for axis, size in enumerate(step.shape(0))]
        return step.keep_sizes(sizes)
    return value if value.kind == "mixed" and None in (step.inputs[0].shape.as_list() or [None]) else CONSTANT


@rule("Size")
def _size(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return CONSTANT if value.kind != "mixed" else value
    others = math.prod(size for axis, size in enumerate(step.shape(0)) if axis != value.axis)
    return step.keep_sizes([Size(value.per_row * others)])


@rule("Rank")
def _rank(step: Step) -> Value:
    return CONSTANT


@rule("Range")
def _range(step: Step) -> Value:
    has_size = any(value.kind == "size" for value in step.values)
    there = f"{step.where}, the place of a row in its part of the batch"
    return first_mixed(step.values) or (mixed(there) if has_size else CONSTANT)


@rule("Slice")
def _slice(step: Step) -> Value:
    value = step.values[0]
    if value.kind != "rows":
        return value
    begins, sizes = step.sizes(1), step.sizes(2)
    if begins is None or sizes is None:
        raise UnknownAxesError
    size = sizes[value.axis]
    if step.values[1] != CONSTANT or (step.values[2] != CONSTANT and not _are_known(sizes, value.axis)):
        return mixed(f"{step.where} takes a part that depends on the batch", is_certain=False)
    is_whole = begins[value.axis] == 0 and (size == -1 or size == Size(value.per_row))
    return value if is_whole else mixed(f"{step.where} takes some rows")


def _are_known(sizes: Sequence[Any], but: int) -> bool:
    return all(isinstance(size, int) for place, size in enumerate(sizes) if place != but)


@rule("StridedSlice")
def _strided_slice(step: Step) -> Value:
    value = step.values[0]
    if value.kind in ("constant", "mixed"):
        return value
    if value.kind == "size":
        return _sizes_taken(step)
    if value.kind != "rows":
        return value
    begins, ends, strides = (step.sizes(place) for place in (1, 2, 3))
    if begins is None or ends is None or strides is None:
        raise UnknownAxesError
    return _entries_taken(step, value, begins, ends, strides)


def _entries_taken(
    step: Step, value: Value, begins: Sequence[Any], ends: Sequence[Any], strides: Sequence[Any]
) -> Value:
    source, target = 0, 0
    count, new = len(strides), step.attribute("new_axis_mask")
    depends = mixed(f"{step.where} takes a part that depends on the batch", is_certain=False)
    if step.values[1] != CONSTANT or (
        step.values[2] != CONSTANT and not any(_are_known(ends, i) for i in range(count))
    ):
        return depends
    for i in range(count):
        if new >> i & 1:
            target += 1
        elif step.attribute("ellipsis_mask") >> i & 1:
            later = sum(not new >> j & 1 for j in range(i + 1, count))
            skipped = step.rank(0) - source - later
            if value.axis < source + skipped:
                target += value.axis - source
                break
            source, target = source + skipped, target + skipped
        elif source == value.axis:
            if step.values[2] != CONSTANT and not _are_known(ends, i):
                return depends
            begin_is_free = step.attribute("begin_mask") >> i & 1 or begins[i] == 0
            end_is_free = step.attribute("end_mask") >> i & 1 or ends[i] == Size(value.per_row)
            is_whole = (
                begin_is_free and end_is_free and strides[i] == 1 and not step.attribute("shrink_axis_mask") >> i & 1
            )
            return rows(target, value.per_row) if is_whole else mixed(f"{step.where} takes some rows")
        else:
            source, target = source + 1, target + (not step.attribute("shrink_axis_mask") >> i & 1)
    else:
        target += value.axis - source
    return rows(target, value.per_row) if step.values[2] == CONSTANT else depends


def _sizes_taken(step: Step) -> Value:
    sizes = step.sizes(0)
    if step.attribute("new_axis_mask") or step.attribute("ellipsis_mask") or step.rank(0) != 1:
        return mixed(step.values[0].reason, is_certain=False)
    begin, end, stride = (int(step.static(place)[0]) for place in (1, 2, 3))
    if sizes is None:
        raise UnknownAxesError
    if step.attribute("shrink_axis_mask"):
        return step.keep_sizes([sizes[begin]])
    first = None if step.attribute("begin_mask") else begin
    last = None if step.attribute("end_mask") else end
    return step.keep_sizes(sizes[first:last:stride])


@rule("GatherV2", "Gather")
def _gather(step: Step) -> Value:
    params, indices, *_ = step.values
    if params.kind == "size" and indices == CONSTANT:
        sizes = step.sizes(0)
        if sizes is None:
            raise UnknownAxesError
        return step.keep_sizes([sizes[int(place)] for place in step.static(1).ravel()])
    if params == CONSTANT and step.inputs[0].ref() in step.known.reads:
        step.walk.lookups.append(Lookup(step.known.reads[step.inputs[0].ref()], indices))
    if first_mixed(step.values) is not None or params == indices == CONSTANT:
        return first_mixed(step.values) or CONSTANT
    axis = step.axes(2, step.rank(0))[0] if step.kind == "GatherV2" else 0
    batch = step.attribute("batch_dims") if step.kind == "GatherV2" else 0
    return _gathered(step, params, indices, axis, batch + step.rank(1) if batch < 0 else batch)


def _gathered(step: Step, params: Value, indices: Value, axis: int, batch: int) -> Value:
    if any(value.kind not in ("constant", "rows") for value in (params, indices)):
        return mixed(params.reason or indices.reason)
    if params == CONSTANT:
        if indices.axis < batch and step.inputs[0].shape[indices.axis] != 1:
            return mixed(f"{step.where} fits one number of rows")
        return rows(indices.axis + (axis - batch if indices.axis >= batch else 0), indices.per_row)
    if params.axis == axis:
        return mixed(f"{step.where} takes some rows")
    if params.axis < batch and indices == params:
        return params
    if indices == CONSTANT and params.axis >= batch:
        added = step.rank(1) - batch - 1 if params.axis > axis else 0
        return rows(params.axis + added, params.per_row)
    return mixed(f"{step.where} combines different rows")


@rule("ResourceGather", "ResourceGatherNd")
def _look_up(step: Step) -> Value:
    indices = step.values[1]
    step.walk.lookups.append(Lookup(step.known.handle(step.inputs[0]), indices))
    if indices.kind == "rows" and (step.kind == "ResourceGather" or indices.axis < step.rank(1) - 1):
        return indices
    return indices if indices.kind in ("constant", "mixed") else mixed(indices.reason or step.where)


@rule("GatherNd")
def _gather_nd(step: Step) -> Value:
    params, indices = step.values
    if params == CONSTANT and indices.kind == "rows" and indices.axis < step.rank(1) - 1:
        return indices
    return first_mixed(step.values) or (CONSTANT if params == indices == CONSTANT else mixed(step.where))


@rule("OneHot")
def _one_hot(step: Step) -> Value:
    axis = step.attribute("axis")
    is_last = axis in (-1, step.rank(0))
    return step.values[0] if is_last else with_axis(step.values[0], axis)


@rule("LookupTableFindV2")
def _find(step: Step) -> Value:
    return step.values[1] if step.values[1].kind in ("constant", "rows", "mixed") else mixed(step.where)


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
    if step.values[0].kind == "rows" and step.rank(0) != 2:
        return mixed(step.where)
    return first_axis(step, 0, [2])
