"""Rules for lists of tensors, variables, conditions, loops and calls of functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Value, first_mixed, join, mixed
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.tensorflow.graph_axis import (
    Assignment,
    Known,
    Result,
    Step,
    UnknownAxesError,
    graph_of_function,
    is_of_library,
    rule,
    static_value,
)
from keras_tpu_ext._runtime.tensorflow.graph_rules.shapes import with_axis, without_axis

_gradients: Any = private("tensorflow.python.framework.ops:gradient_registry")


@rule("TensorListFromTensor")
def _list_from_tensor(step: Step) -> Value:
    return without_axis(step.values[0], 0, f"{step.where} takes rows one by one")


@rule("TensorListStack")
def _list_stack(step: Step) -> Value:
    return with_axis(step.values[0], 0)


@rule("TensorListGetItem", "TensorListPopBack")
def _list_item(step: Step) -> Value:
    index = step.values[1]
    is_known = step.kind == "TensorListPopBack" or index == CONSTANT
    return step.values[0] if is_known else mixed(index.reason or step.where, is_certain=False)


@rule("TensorListSetItem")
def _list_with_item(step: Step) -> Value:
    is_known = step.values[1] == CONSTANT
    return join(step.values[0], step.values[2], step.where) if is_known else step.mixed(is_certain=False)


@rule("TensorListPushBack")
def _list_with_last(step: Step) -> Value:
    return join(step.values[0], step.values[1], step.where)


@rule("TensorListReserve", "EmptyTensorList", "TensorListLength")
def _list(step: Step) -> Value:
    *_, number = step.values  # of its items; the other is the shape of an item
    is_as_long_as_batch = step.kind == "TensorListReserve" and number != CONSTANT
    return step.mixed(is_certain=False) if is_as_long_as_batch else first_mixed(step.values) or CONSTANT


@rule("Rank", "RngReadAndSkip")
def _constant(step: Step) -> Value:
    """Return the same for every batch: as to a random generator, each replica draws its own numbers anyway."""
    return CONSTANT


@rule("ReadVariableOp")
def _read(step: Step) -> Value:
    handle = step.known.handle(step.inputs[0])
    step.known.handles[step.output.ref()] = handle
    if id(handle) in step.walk.partial:
        return step.mixed(" reads a sum, of which each replica has a part")
    return CONSTANT


@rule("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def _assign(step: Step) -> Result:
    handle, value = step.known.handle(step.inputs[0]), step.values[1]
    adds = step.kind != "AssignVariableOp"
    added = step.known.sums.get(step.inputs[1].ref())
    if not adds and added is not None and added[0] is handle:
        adds, value = True, added[1]
    step.walk.assignments.append(Assignment(handle, value, adds))
    return []


@rule(
    *(f"ResourceScatter{name}" for name in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max", "NdUpdate", "NdAdd"))
)
def _scatter(step: Step) -> Result:
    is_constant = all(value == CONSTANT for value in step.values)
    value = CONSTANT if is_constant else first_mixed(step.values) or step.mixed()
    handle = step.known.handle(step.inputs[0])
    step.walk.assignments.append(Assignment(handle, value, step.kind == "ResourceScatterAdd"))
    return []


@rule("IdentityN")
def _identities(step: Step) -> Result:
    """Follow values, and the gradient that a user's `tf.custom_gradient` gives them."""
    gradient = _own_gradient(step.operation)
    if gradient is None:
        return step.values
    try:
        is_by_row = _is_by_row(step, gradient)
    except Exception:  # of the user's code, which may want anything of the operation
        is_by_row = False
    if is_by_row:
        return step.values
    unknown = mixed(f"the gradient of {step.where}, which may combine rows", is_certain=False)
    return [value if value.kind == "mixed" else unknown for value in step.values]


def _own_gradient(operation: Any) -> Any:
    """Return the gradient of an operation, if it is a user's."""
    try:
        name = operation.get_attr("_gradient_op_type").decode()
    except ValueError:
        return None
    gradient = _gradients.lookup(name)
    functions = [held for wrapper in _held(gradient) for held in _held(wrapper)]  # TensorFlow wraps it twice
    return gradient if any(not is_of_library(each.__code__.co_filename) for each in functions) else None


def _held(function: Any) -> list[Any]:
    found = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return [each for each in found if hasattr(each, "__code__")]


def _is_by_row(step: Step, gradient: Any) -> bool:
    """Return whether the gradient of each row depends on that row alone; sums over rows are those of constants."""
    graph = step.operation.graph
    before, known = len(graph.get_operations()), step.known
    with graph.as_default():
        above = []
        for tensor, value in zip(step.operation.outputs, step.values, strict=True):
            above.append(tf.compat.v1.placeholder(tensor.dtype, tensor.shape))
            known.values[above[-1].ref()] = value
        below = tf.nest.flatten(gradient(step.operation, *above))
    step.walk.through(graph, known, before)
    kinds = {value.kind for value in step.values}
    pairs = [pair for pair in zip(below, step.values, strict=True) if pair[0] is not None]
    return kinds <= {"rows", "constant"} and all(
        known.value(each) == value if value.kind == "rows" else known.value(each).kind == "sum" or _is_zero(each)
        for each, value in pairs
    )


def _is_zero(tensor: tf.Tensor) -> bool:
    static = static_value(tensor)
    return static is not None and not static.any()


@rule("PartitionedCall", "StatefulPartitionedCall")
def _call(step: Step) -> Result:
    return _through(step, "f", step.values, step.inputs)


@rule("If", "StatelessIf")
def _if(step: Step) -> Result:
    return _one_of(step, [step.attribute(name) for name in ("then_branch", "else_branch")])


@rule("Case", "StatelessCase")
def _case(step: Step) -> Result:
    return _one_of(step, step.attribute("branches"))


def _one_of(step: Step, functions: Sequence[Any]) -> Result:
    decides, begin = step.values[0], len(step.walk.assignments)
    branches = [_through(step, each, step.values[1:], step.inputs[1:]) for each in functions]
    if decides != CONSTANT:
        return _undecided(step, decides, begin)
    results = []
    for output, values in zip(step.operation.outputs, zip(*branches, strict=True), strict=True):
        joined = functools.reduce(lambda one, two: join(one, two, step.where), values)
        has_both = any(value.kind == "rows" for value in values) and CONSTANT in values
        if has_both and joined.kind != "mixed" and output.dtype != tf.variant:
            joined = step.mixed(" chooses between rows and something else", is_certain=False)
        results.append(joined)
    return results


def _undecided(step: Step, decides: Value, begin: int) -> Value:
    """Return what depends on a decision, as do all assignments since the one that begins them."""
    value = decides if decides.kind == "mixed" else mixed(decides.reason or step.where)
    step.walk.assignments[begin:] = [Assignment(each.handle, value, False) for each in step.walk.assignments[begin:]]
    return value


@rule("While", "StatelessWhile")
def _while(step: Step) -> Result:
    values, begin = list(step.values), len(step.walk.assignments)
    while True:
        (decides,) = _through(step, "cond", values, step.inputs)
        after = _through(step, "body", values, step.inputs)
        if decides != CONSTANT:
            return _undecided(step, decides, begin)
        joined = [join(one, two, step.where) for one, two in zip(values, after, strict=True)]
        if joined == values:
            return values
        values = joined


def _through(step: Step, function: Any, values: Sequence[Value], inputs: Sequence[Any]) -> list[Value]:
    """Return the values of the results of a function that the operation calls."""
    name = step.attribute(function).name if isinstance(function, str) else function.name
    inner = graph_of_function(step.operation.graph, name)
    if inner is None:
        raise UnknownAxesError
    known = Known({tensor.ref(): value for tensor, value in zip(inner.inputs, values, strict=True)})
    for tensor, outer, value in zip(inner.inputs, inputs, values, strict=True):
        if outer.dtype == tf.resource:
            known.handles[tensor.ref()] = step.known.handle(outer)
        if outer.ref() in step.known.sizes and value.kind != "mixed":  # as a size that a loop has changed
            known.sizes[tensor.ref()] = step.known.sizes[outer.ref()]
    step.walk.through(inner, known)
    return [known.value(tensor) for tensor in inner.outputs]
