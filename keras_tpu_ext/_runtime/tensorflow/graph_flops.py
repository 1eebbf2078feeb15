"""Count the FLOPs of a TensorFlow graph, from its static shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import LOOP, UncountableError, flops_of_einsum, flops_of_sizes

_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
_HIDDEN = re.compile(
    r"CudnnRNN|XlaDot|XlaConv|XlaCustomCall|QuantizedMatMul|QuantizedConv|SparseMatMul|SparseTensorDense"
)
_SCALAR_IDENTITIES = {"Identity", "Cast", "Max", "Min", "Squeeze"}  # on a scalar

# Known values of integer scalars among a function's arguments, by tensor name.
_Known = Mapping[str, int]


def flops_of_graph(graph: tf.Graph, outputs: Sequence[tf.Tensor], known: _Known | None = None) -> float:
    """Count the FLOPs that `outputs` and the side effects of `graph` need; TensorFlow prunes the rest.

    Args:
        graph: A `FuncGraph`.
        outputs: The tensors of it that are read.
        known: Known values of its integer arguments.
    """
    known = known or {}
    return math.fsum(_flops_of(graph, op, indices, known) for op, indices in _reachable(graph, outputs))


def _reachable(graph: tf.Graph, outputs: Sequence[tf.Tensor]) -> list[tuple[tf.Operation, set[int]]]:
    """Return the operations that run, each with the indices of its outputs that are read."""
    found: dict[str, tuple[tf.Operation, set[int]]] = {}
    waiting: list[tuple[tf.Operation, int | None]] = [(tensor.op, tensor.value_index) for tensor in outputs]
    waiting += [(op, None) for op in graph.control_outputs]
    while waiting:
        op, index = waiting.pop()
        if op.name not in found:
            found[op.name] = (op, set())
            waiting += [(tensor.op, tensor.value_index) for tensor in op.inputs]
            waiting += [(before, None) for before in op.control_inputs]
        if index is not None:
            found[op.name][1].add(index)
    return list(found.values())


def _flops_of(graph: tf.Graph, op: tf.Operation, indices: set[int], known: _Known) -> float:
    if op.type in _PRODUCTS:
        return _PRODUCTS[op.type](op)
    if _HIDDEN.search(op.type):
        raise UncountableError(f"it has an operation whose products cannot be seen ({op.type})")
    functions = _functions_of(graph, op)
    if not functions:
        return 0.0
    if op.type in _CALLS:
        (called,) = functions
        outputs = [called.outputs[index] for index in sorted(indices)]
        return flops_of_graph(called, outputs, _known_arguments(graph, called, op.inputs, known))
    # The first input of a branch is the predicate.
    inputs = op.inputs[1:] if op.type in _BRANCHES else op.inputs
    read = _loop_carried(functions, indices) if op.type in _LOOPS else indices
    each = [
        flops_of_graph(one, _select(one.outputs, read), _known_arguments(graph, one, inputs, known))
        for one in functions
    ]
    if op.type in _BRANCHES:
        return max(each)
    times = _trip_count(graph, op, known) if op.type in _LOOPS else None
    if times is None and any(each):
        raise UncountableError(LOOP)
    return (times or 0) * math.fsum(each)


def _loop_carried(functions: Sequence[tf.Graph], indices: set[int]) -> set[int]:
    """Return the indices of the loop variables that these outputs of a loop depend on."""
    carried, before = set(indices), -1
    while len(carried) > before:
        before = len(carried)
        for function in functions:
            read = {op.name for op, _ in _reachable(function, _select(function.outputs, carried))}
            carried |= {i for i, argument in enumerate(function.inputs) if argument.op.name in read}
    return carried


def _select(outputs: Sequence[tf.Tensor], indices: set[int]) -> list[tf.Tensor]:
    """Return these outputs of a function; if it has only one, such as a loop's condition, return that."""
    return [outputs[i] for i in sorted(indices)] if len(outputs) > 1 else list(outputs)


def _functions_of(graph: tf.Graph, op: tf.Operation) -> list[tf.Graph]:
    """Return the graphs of the functions that `op` may call."""
    names = [attribute.name for attribute in op.op_def.attr if attribute.type in ("func", "list(func)")]
    values = [op.get_attr(name) for name in names]
    each = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [_function(graph, one.name) for one in each if one.name]


def _function(graph: tf.Graph | None, name: str) -> tf.Graph:
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise UncountableError(f"the body of one of its functions ({name}) cannot be seen")


def _known_arguments(graph: tf.Graph, function: tf.Graph, inputs: Sequence[tf.Tensor], known: _Known) -> _Known:
    """Return the known values of the integer scalars that `function` is called with."""
    values = {}
    for argument, tensor in zip(function.inputs, inputs, strict=False):
        if argument.dtype in (tf.int32, tf.int64) and argument.shape.rank == 0:
            value = _static_int(graph, tensor, known)
            if value is not None:
                values[argument.name] = value
    return values


def _trip_count(graph: tf.Graph, op: tf.Operation, known: _Known) -> int | None:
    """Return the trip count of a loop, as if it never ended early; `None` if it is not static."""
    body = _function(graph, op.get_attr("body").name)
    condition = _function(graph, op.get_attr("cond").name)
    initial = _known_arguments(graph, condition, op.inputs, known)
    counts = []
    for less in _comparisons(condition.outputs[0]):
        index = next((i for i, one in enumerate(condition.inputs) if one is less.inputs[0]), None)
        if index is None or not _increments(body, index):
            continue
        start, end = initial.get(less.inputs[0].name), _static_int(condition, less.inputs[1], initial)
        if start is not None and end is not None:
            counts.append(max(0, end - start))
    return min(counts, default=None)


def _comparisons(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Yield the operations `a < b` of which `tensor` is the conjunction."""
    if tensor.op.type == "Less":
        yield tensor.op
    elif tensor.op.type in ("Identity", "LogicalAnd"):
        for one in tensor.op.inputs:
            yield from _comparisons(one)


def _increments(body: tf.Graph, index: int) -> bool:
    """Return True if a loop's body adds one to the loop variable at `index`."""
    op = body.outputs[index].op
    while op.type == "Identity":
        op = op.inputs[0].op
    return (
        op.type in ("Add", "AddV2") and op.inputs[0] is body.inputs[index] and tf.get_static_value(op.inputs[1]) == 1
    )


def _static_int(graph: tf.Graph, tensor: tf.Tensor, known: _Known) -> int | None:
    """Return the value of an integer scalar; `None` if it is not static."""
    value = tf.get_static_value(tensor)
    op = tensor.op
    if value is not None:
        return int(value) if value.size == 1 else None
    if op.type == "Placeholder":
        return known.get(tensor.name)
    if op.type in _SCALAR_IDENTITIES and op.inputs[0].shape.num_elements() == 1:
        return _static_int(graph, op.inputs[0], known)
    if op.type == "StridedSlice":  # of a shape, for example, for which TensorFlow has no value
        whole, begin = map(tf.get_static_value, op.inputs[:2])
        return None if whole is None or begin is None else int(whole[tuple(begin)])
    if op.type in _CALLS:
        (called,) = _functions_of(graph, op)
        arguments = _known_arguments(graph, called, op.inputs, known)
        return _static_int(called, called.outputs[tensor.value_index], arguments)
    if op.type in _LOOPS and tensor.value_index == 0:
        return _trip_count(graph, op, known)  # the first output of a loop is its counter
    return None


def _sizes(tensor: tf.Tensor) -> list[int | None]:
    if tensor.shape.rank is None:
        raise UncountableError(f"the shape of one of its products ({tensor.op.name}) is not known before it runs")
    return list(tensor.shape)


_Counter = Callable[[tf.Operation], float]


def _matrix_product(transposed: str) -> _Counter:
    def flops(op: tf.Operation) -> float:
        inner = _sizes(op.inputs[0])[-2 if op.get_attr(transposed) else -1]
        return flops_of_sizes(inner, *_sizes(op.outputs[0]))

    return flops


def _einsum(op: tf.Operation) -> float:
    return flops_of_einsum(op.get_attr("equation").decode(), [_sizes(tensor) for tensor in op.inputs])


_TensorOf = Callable[[tf.Operation], tf.Tensor]


def _convolution(output: _TensorOf, kernel: _TensorOf, taps: slice) -> _Counter:
    """Return a counter for a convolution or one of its two gradients, which have the same multiply-adds.

    Args:
        output: Takes an operation, and returns the convolution's output, or the gradient of that.
        kernel: The same for its kernel.
        taps: The dimensions of the kernel that an element of the output is summed over.
    """

    def flops(op: tf.Operation) -> float:
        return flops_of_sizes(*_sizes(output(op)), *_sizes(kernel(op))[taps])

    return flops


def _convolutions(forward: str, of_input: str, of_kernel: str, taps: slice) -> dict[str, _Counter]:
    return {
        forward: _convolution(lambda op: op.outputs[0], lambda op: op.inputs[1], taps),
        of_input: _convolution(lambda op: op.inputs[2], lambda op: op.inputs[1], taps),
        of_kernel: _convolution(lambda op: op.inputs[2], lambda op: op.outputs[0], taps),
    }


_ALL_BUT_OUTPUTS, _SPATIAL = slice(0, -1), slice(0, -2)
_PRODUCTS: dict[str, _Counter] = {
    "MatMul": _matrix_product("transpose_a"),
    "BatchMatMul": _matrix_product("adj_x"),
    "BatchMatMulV2": _matrix_product("adj_x"),
    "BatchMatMulV3": _matrix_product("adj_x"),
    "Einsum": _einsum,
    "Conv": _convolution(lambda op: op.outputs[0], lambda op: op.inputs[1], _ALL_BUT_OUTPUTS),
    **_convolutions("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", _ALL_BUT_OUTPUTS),
    **_convolutions("Conv2D", "Conv2DBackpropInputV2", "Conv2DBackpropFilterV2", _ALL_BUT_OUTPUTS),
    **_convolutions("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2", _ALL_BUT_OUTPUTS),
    **_convolutions(
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropInput",
        "DepthwiseConv2dNativeBackpropFilter",
        _SPATIAL,
    ),
}
