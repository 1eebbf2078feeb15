"""FLOPs of a graph of TensorFlow, from its static shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.flops import LOOP, UncountableError, flops_of_einsum, flops_of_sizes
from keras_tpu_ext._runtime.tensorflow.graph_loops import CALLS, Given, arguments, functions_of, turns

_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_LOOPS = {"While", "StatelessWhile"}
_HIDDEN = re.compile(
    r"CudnnRNN|XlaDot|XlaConv|XlaCustomCall|QuantizedMatMul|QuantizedConv|SparseMatMul|SparseTensorDense"
)


def flops_of_graph(graph: Any, outputs: Sequence[Any], given: Given | None = None) -> float:
    """Return the FLOPs of what `outputs` and the side effects of `graph` need; of the rest nothing is ever run.

    Args:
        graph: A `FuncGraph`.
        outputs: Those of its tensors that are wanted.
        given: Whole numbers that its arguments are known to be.

    Raises:
        UncountableError: If that cannot be told from the graph.
    """
    given = given or {}
    needed = _needed(graph, outputs)
    return math.fsum(_flops_of(graph, op, indices, given) for op, indices in needed)


def _needed(graph: Any, outputs: Sequence[Any]) -> list[tuple[Any, set[int]]]:
    """Return the operations that have to run, each with the numbers of its outputs that are read."""
    found: dict[str, tuple[Any, set[int]]] = {}
    waiting: list[tuple[Any, int | None]] = [(tensor.op, tensor.value_index) for tensor in outputs]
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


def _flops_of(graph: Any, op: Any, indices: set[int], given: Given) -> float:
    if op.type in _PRODUCTS:
        return _PRODUCTS[op.type](op)
    if _HIDDEN.search(op.type):
        raise UncountableError(f"it has an operation whose products cannot be seen ({op.type})")
    functions = functions_of(graph, op)
    if not functions:
        return 0.0
    if op.type in CALLS:
        (called,) = functions
        outputs = [called.outputs[index] for index in sorted(indices)]
        return flops_of_graph(called, outputs, arguments(graph, called, op.inputs, given))
    # The first input of a branch is what it is chosen by.
    inputs = op.inputs[1:] if op.type in _BRANCHES else op.inputs
    wanted = _carried(functions, indices) if op.type in _LOOPS else indices
    each = [
        flops_of_graph(one, _some(one.outputs, wanted), arguments(graph, one, inputs, given)) for one in functions
    ]
    if op.type in _BRANCHES:
        return max(each)
    times = turns(graph, op, given) if op.type in _LOOPS else None
    if times is None and any(each):
        raise UncountableError(LOOP)
    return (times or 0) * math.fsum(each)


def _carried(functions: Sequence[Any], indices: set[int]) -> set[int]:
    """Return the numbers of what a loop has to carry from turn to turn so that these outputs of it are right."""
    carried, before = set(indices), -1
    while len(carried) > before:
        before = len(carried)
        for function in functions:
            read = {op.name for op, _ in _needed(function, _some(function.outputs, carried))}
            carried |= {i for i, argument in enumerate(function.inputs) if argument.op.name in read}
    return carried


def _some(outputs: Sequence[Any], indices: set[int]) -> list[Any]:
    """Return these outputs of a function; of one that has a single one, as a loop's condition has, all of them."""
    return [outputs[i] for i in sorted(indices)] if len(outputs) > 1 else list(outputs)


def _sizes(tensor: Any) -> list[int | None]:
    """Return the sizes of a tensor.

    Raises:
        UncountableError: If not even their number is known.
    """
    if tensor.shape.rank is None:
        raise UncountableError(f"the shape of one of its products ({tensor.op.name}) is not known before it runs")
    return list(tensor.shape)


def _matrix_product(transposed: str) -> Callable[[Any], float]:
    def flops(op: Any) -> float:
        inner = _sizes(op.inputs[0])[-2 if op.get_attr(transposed) else -1]
        return flops_of_sizes(inner, *_sizes(op.outputs[0]))

    return flops


def _einsum(op: Any) -> float:
    return flops_of_einsum(op.get_attr("equation").decode(), [_sizes(tensor) for tensor in op.inputs])


def _convolution(result: Callable[[Any], Any], kernel: Callable[[Any], Any], taps: slice) -> Callable[[Any], float]:
    """Return how to count a convolution, or one of its two gradients: all three have the same multiply-adds.

    Args:
        result: Gets an operation, and returns the tensor that the convolution's result, or its gradient, is.
        kernel: The same for the kernel.
        taps: Which of the kernel's dimensions one number of the result is summed over.
    """

    def flops(op: Any) -> float:
        return flops_of_sizes(*_sizes(result(op)), *_sizes(kernel(op))[taps])

    return flops


def _convolutions(forward: str, of_input: str, of_kernel: str, taps: slice) -> dict[str, Callable[[Any], float]]:
    return {
        forward: _convolution(lambda op: op.outputs[0], lambda op: op.inputs[1], taps),
        of_input: _convolution(lambda op: op.inputs[2], lambda op: op.inputs[1], taps),
        of_kernel: _convolution(lambda op: op.inputs[2], lambda op: op.outputs[0], taps),
    }


_ALL_BUT_OUTPUTS, _PLACES = slice(0, -1), slice(0, -2)
_PRODUCTS: dict[str, Callable[[Any], float]] = {
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
        _PLACES,
    ),
}
