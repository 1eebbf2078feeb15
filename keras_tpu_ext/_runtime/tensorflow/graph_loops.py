"""How often a loop in a graph of TensorFlow turns, as far as that is known before it runs.

Private names of TensorFlow that this module leans on (tests/_runtime/test_tensorflow_flops.py watches them):
`Graph._get_function`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import UncountableError

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_PASS_ON = {"Identity", "Cast", "Max", "Min", "Squeeze"}  # of a single number they give that number
Given = Mapping[str, int]  # what is known of a function's arguments, by the name of their tensors


def functions_of(graph: Any, op: Any) -> list[Any]:
    """Return the graphs of the functions that an operation of `graph` may call."""
    names = [attribute.name for attribute in op.op_def.attr if attribute.type in ("func", "list(func)")]
    values = [op.get_attr(name) for name in names]
    each = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [_function(graph, one.name) for one in each if one.name]


def _function(graph: Any, name: str) -> Any:
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise UncountableError(f"the body of one of its functions ({name}) cannot be seen")


def arguments(graph: Any, function: Any, inputs: Sequence[Any], given: Given) -> Given:
    """Return the whole numbers that `function` is called with, as far as they are known."""
    known = {}
    for argument, tensor in zip(function.inputs, inputs, strict=False):
        if argument.dtype in (tf.int32, tf.int64) and argument.shape.rank == 0:
            value = _whole_number(graph, tensor, given)
            if value is not None:
                known[argument.name] = value
    return known


def turns(graph: Any, op: Any, given: Given) -> int | None:
    """Return how often a loop turns; a loop that may end early counts with all the turns that it may take."""
    body = _function(graph, op.get_attr("body").name)
    condition = _function(graph, op.get_attr("cond").name)
    at_first = arguments(graph, condition, op.inputs, given)
    found = []
    for less in _comparisons(condition.outputs[0]):
        index = next((i for i, one in enumerate(condition.inputs) if one is less.inputs[0]), None)
        if index is None or not _adds_one(body, index):
            continue
        start, end = at_first.get(less.inputs[0].name), _whole_number(condition, less.inputs[1], at_first)
        if start is not None and end is not None:
            found.append(max(0, end - start))
    return min(found, default=None)


def _comparisons(tensor: Any) -> Iterator[Any]:
    """Yield the operations `a < b` that all have to be true for `tensor` to be."""
    if tensor.op.type == "Less":
        yield tensor.op
    elif tensor.op.type in ("Identity", "LogicalAnd"):
        for one in tensor.op.inputs:
            yield from _comparisons(one)


def _adds_one(body: Any, index: int) -> bool:
    """Return whether every turn adds one to an argument."""
    op = body.outputs[index].op
    while op.type == "Identity":
        op = op.inputs[0].op
    return (
        op.type in ("Add", "AddV2") and op.inputs[0] is body.inputs[index] and tf.get_static_value(op.inputs[1]) == 1
    )


def _whole_number(graph: Any, tensor: Any, given: Given) -> int | None:
    """Return what a single number is, if that is known before it runs."""
    value = tf.get_static_value(tensor)
    op = tensor.op
    if value is not None:
        return int(value) if value.size == 1 else None
    if op.type == "Placeholder":
        return given.get(tensor.name)
    if op.type in _PASS_ON and op.inputs[0].shape.num_elements() == 1:
        return _whole_number(graph, op.inputs[0], given)
    if op.type == "StridedSlice":  # of a shape, say, for which TensorFlow has no value
        whole, begin = map(tf.get_static_value, op.inputs[:2])
        return None if whole is None or begin is None else int(whole[tuple(begin)])
    if op.type in CALLS:
        (called,) = functions_of(graph, op)
        return _whole_number(called, called.outputs[tensor.value_index], arguments(graph, called, op.inputs, given))
    if op.type in ("While", "StatelessWhile") and tensor.value_index == 0:
        return turns(graph, op, given)  # which is what a loop counts there
    return None
