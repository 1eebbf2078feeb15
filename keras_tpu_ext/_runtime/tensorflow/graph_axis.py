"""Follow the batch axis through a TensorFlow graph: which results belong to a row, and what is assigned to variables.

The number of rows must be the only size that the graph does not know. The rules are in `graph_rules/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.batch_axis import CONSTANT, Operand, Value, first_mixed, mixed, of_examples, rows
from keras_tpu_ext.errors import ArgumentError

_WHOLE_BATCH = "kte_of_whole_batch"
_ROWS = "kte_of_rows"

_LIBRARIES = ("/keras/", "/tf_keras/", "/tensorflow/", "/keras_tpu_ext/_runtime/")


def is_of_library(file: str) -> bool:
    """Return whether a file of code is not the user's."""
    return any(part in file for part in _LIBRARIES)


def of_whole_batch(value: tf.Tensor) -> tf.Tensor:
    """Return `value`, a sum over the rows, marked for a walk as the same on every replica."""
    return tf.identity(value, name=_WHOLE_BATCH)


def of_rows(value: tf.Tensor, given: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return `value`, made of what is `given`, marked for a walk as right if that is.

    It is of the rows, if their number is its first size, else of no row.
    """
    with tf.control_dependencies(given):
        return tf.identity(value, name=_ROWS)


class Size(NamedTuple):
    """`per_row` times the number of rows, in a shape."""

    per_row: int


class Assignment(NamedTuple):
    """A value that is assigned, or added if `adds`, to the variable of a resource tensor outside all functions."""

    handle: Any
    value: Value
    adds: bool


class Lookup(NamedTuple):
    """Rows of a variable that are looked up, and the value of their indices."""

    handle: Any
    indices: Value


class UnknownAxesError(Exception):
    """A rank, or an axis, is not known, so a rule cannot be applied."""


class Walk:
    """A walk through a graph and the functions that it calls, which collects assignments to variables and lookups.

    Args:
        partial: Ids of the handles of variables of which each replica has a part.
    """

    def __init__(self, partial: Collection[int] = ()) -> None:
        self.partial = partial
        self.assignments: list[Assignment] = []
        self.lookups: list[Lookup] = []

    def through(self, graph: Any, known: Known, first: int = 0) -> None:
        """Follow the inputs of a `FuncGraph`, of which something is `known`, to its tensors from the `first`."""
        for operation in graph.get_operations()[first:]:
            if not operation.outputs or operation.outputs[0].ref() not in known.values:
                step = Step(operation, known, self)
                for tensor, value in zip(operation.outputs, self._results(step), strict=True):
                    known.values[tensor.ref()] = value

    def _results(self, step: Step) -> Sequence[Value]:
        number = len(step.operation.outputs)
        bad = first_mixed(step.values)
        if _WHOLE_BATCH in step.operation.name:
            is_sum = all(value.kind in ("constant", "sum", "size") for value in step.values)
            return [bad or (CONSTANT if is_sum else step.mixed(" of what is no sum", is_certain=False))] * number
        if _ROWS in step.operation.name:
            return [_of_rows(step)]
        if number and step.kind not in _ALWAYS_BY_RULE:
            if bad is not None:
                return [bad] * number
            if all(value == CONSTANT for value in step.values):
                return [CONSTANT] * number
        try:
            found = RULES.get(step.kind, _without_rule)(step)
        except UnknownAxesError:
            found = bad or step.mixed(", whose axes are not known", is_certain=False)
        results = [found] * number if isinstance(found, Value) else list(found)
        if not number:
            self._note_effect(step)
        if step.kind not in _OF_SHAPES_ONLY:
            results = [_checked(step, value) for value in results]
        return [_multiple(step, *each) for each in zip(step.operation.outputs, results, strict=True)]

    def _note_effect(self, step: Step) -> None:
        """Note that an operation without a rule changes something by what is not the same for every batch."""
        has_effect = step.kind not in RULES and step.kind not in _WITHOUT_EFFECT
        if has_effect and any(value != CONSTANT for value in step.values):
            if step.kind.startswith("LookupTable"):
                raise ArgumentError(
                    f"{step.where} changes a lookup table, of which there is one for all replicas: each of them "
                    "would change it. Keep what the step learns in variables, self.add_weight(...), or change the "
                    "table in a callback."
                )
            self.assignments.append(Assignment(None, _without_rule(step), adds=False))


# Calls follow every result by itself; of the others a result is of the shape of an input, not of what it holds.
_OF_SHAPES_ONLY = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase", "While"),
    *("StatelessWhile", "IdentityN", "Shape", "Size", "Rank", "TensorListReserve", "EmptyTensorList"),
    *("TensorListLength", "RngReadAndSkip"),
}
# Their rules also note something, or see which of the inputs is mixed; other rules see no mixed input.
_ALWAYS_BY_RULE = {
    *_OF_SHAPES_ONLY,
    *("ReadVariableOp", "Cast", "Identity", "PlaceholderWithDefault", "Reshape", "DenseBincount"),
    *("ResourceGather", "ResourceGatherNd", "GatherV2", "Gather", "Add", "AddV2"),
}
_TAKES_SIZES = re.compile(
    "Reshape|Conv.*BackpropInput|Depthwise|BroadcastTo|Slice|StridedSlice|Tile|Fill|.*Random|TensorList|.*Normal"
)
_WITHOUT_EFFECT = {"Assert", "PrintV2", "Print", "NoOp"} | {
    f"Write{kind}Summary" for kind in ("Scalar", "Histogram", "")
}


def _checked(step: Step, value: Value) -> Value:
    """Return the value that a rule gives, unless an input that it has not looked at depends on the batch."""
    if value.kind == "mixed":
        return value
    bad = first_mixed(step.values)
    if bad is not None:
        is_reshaped = step.kind == "Reshape" and step.values[0].kind == "rows" == value.kind
        return value if is_reshaped else bad
    others = [each for each in step.values if each.kind in ("size", "sum", "mean")]
    if value.kind == "rows" and others and not _TAKES_SIZES.match(step.kind):
        return mixed(others[0].reason, is_certain=False)
    is_of_sizes = step.output.ref() in step.known.sizes or step.kind in ("RealDiv", "Div", "DivNoNan")
    if value == CONSTANT and any(each != CONSTANT for each in step.values) and not is_of_sizes:
        return step.mixed(", which depends on the batch", is_certain=False)
    return value


def _multiple(step: Step, tensor: tf.Tensor, value: Value) -> Value:
    """Return the value of a result, unless it has several sizes of which it is not known that all are of rows."""
    if value.kind != "size" or tensor.shape.rank == 0 or tensor.ref() in step.known.sizes:
        return value
    given = [each for each, of_each in zip(step.inputs, step.values, strict=True) if of_each.kind == "size"]
    is_multiple = step.kind not in _OF_SHAPES_ONLY and all(each.shape.rank == 0 for each in given)
    return value if is_multiple else mixed(value.reason, is_certain=False)


def _of_rows(step: Step) -> Value:
    given = [tensor for operation in step.operation.control_inputs for tensor in operation.outputs]
    value, shape = of_examples([step.known.value(tensor) for tensor in given]), step.output.shape
    return rows() if value == CONSTANT and shape.rank and shape[0] is None else value


def _without_rule(step: Step) -> Value:
    is_constant = all(value.kind == "constant" for value in step.values)
    unknown = step.mixed(", of which it is not known what it does with a batch", is_certain=False)
    return CONSTANT if is_constant else first_mixed(step.values) or unknown


class Known:
    """What is known of the tensors of one graph; each is a dictionary by a tensor's `ref()`.

    Attributes:
        values: Where the batch axis is.
        handles: Of a resource tensor, or of a tensor read from a variable, the resource tensor outside all functions.
        sizes: Of a tensor that holds sizes: these, with `None` for one that is not known.
        sums: The handle of the variable that a sum over the rows was added to, and that sum.
    """

    def __init__(self, values: dict[Any, Value]) -> None:
        self.values = values
        self.handles: dict[Any, Any] = {}
        self.sizes: dict[Any, tuple[Any, ...]] = {}
        self.sums: dict[Any, tuple[Any, Value]] = {}

    def value(self, tensor: tf.Tensor) -> Value:
        """Return where the batch axis of a tensor is."""
        return self.values.get(tensor.ref(), CONSTANT)

    def handle(self, tensor: Any) -> tf.Tensor:
        """Return the resource tensor outside all functions."""
        return self.handles.get(tensor.ref(), tensor)


class Step:
    """An operation with what is known of its inputs."""

    def __init__(self, operation: Any, known: Known, walk: Walk) -> None:
        self.operation = operation
        self.kind: str = operation.type
        self.known = known
        self.walk = walk
        self.inputs: list[Any] = list(operation.inputs)
        self.values = [known.value(tensor) for tensor in self.inputs]

    @property
    def where(self) -> str:
        """The operation, and the line of the user's code that made it."""
        frames = [frame for frame in self.operation.traceback if not is_of_library(frame.filename)]
        if not frames:
            return f"{self.kind} in {self.operation.name}"
        return f"{self.kind} in line {frames[-1].lineno} of {os.path.basename(frames[-1].filename)}"

    def mixed(self, what: str = "", *, is_certain: bool = True) -> Value:
        """Return the value of a result that mixes rows, as `what` says."""
        return mixed(f"{self.where}{what}", is_certain=is_certain)

    def of_one_number(self) -> Value:
        """Return the value of a result that some numbers of rows only can have."""
        return self.mixed(" fits one number of rows")

    @property
    def output(self) -> tf.Tensor:
        """The first output."""
        return self.operation.outputs[0]

    def attribute(self, name: str) -> Any:
        """Return an attribute of the operation."""
        return self.operation.get_attr(name)

    def rank(self, index: int) -> int:
        """Return the rank of an input."""
        rank = self.inputs[index].shape.rank
        if rank is None:
            raise UnknownAxesError
        return int(rank)

    def operands(self) -> list[Operand]:
        """Return the inputs and their ranks; that of a constant may be wrong if TensorFlow does not know it.

        A vector of sizes, some of which are not the number of rows, is no multiple of it.
        """
        operands = []
        for index, (tensor, value) in enumerate(zip(self.inputs, self.values, strict=True)):
            rank = (tensor.shape.rank or 0) if value.kind == "constant" else self.rank(index)
            sizes = self.known.sizes.get(tensor.ref(), ())
            if value.kind == "size" and any(not isinstance(size, Size) for size in sizes):
                value = mixed(value.reason, is_certain=False)
            operands.append(Operand(value, rank))
        return operands

    def static(self, index: int) -> np.ndarray:
        """Return a constant input as an array."""
        found = static_value(self.inputs[index])
        if found is None:
            raise UnknownAxesError
        return found

    def is_zero(self, index: int) -> bool:
        """Return whether an input is a constant of nothing but zeros."""
        static = tf.get_static_value(self.inputs[index])
        return static is not None and not np.any(static)

    def axes(self, index: int, rank: int | None = None) -> list[int]:
        """Return axes, not negative, that an input holds: of the first input, unless another `rank` is given."""
        rank = self.rank(0) if rank is None else rank
        return [int(axis) % rank for axis in np.ravel(self.static(index))] if rank else []

    def shape(self, index: int) -> list[int]:
        """Return the shape of an input; -1 for the number of rows."""
        self.rank(index)
        return [-1 if size is None else int(size) for size in self.inputs[index].shape]

    def sizes(self, index: int) -> tuple[Any, ...] | None:
        """Return the sizes that an input holds, with `None` for one that is not known."""
        known = self.known.sizes.get(self.inputs[index].ref())
        if known is not None:
            return known
        static = tf.get_static_value(self.inputs[index], partial=True)
        if static is None or np.ndim(static) > 1:
            return None
        return tuple(map(_size, np.ravel(static)))

    def known_sizes(self, index: int) -> tuple[Any, ...]:
        """Return the sizes that an input holds, or raise `UnknownAxesError`."""
        sizes = self.sizes(index)
        if sizes is None:
            raise UnknownAxesError
        return sizes

    def keep_sizes(self, sizes: Sequence[Any], output: int = 0) -> Value:
        """Note the sizes that an output holds, with `None` for an unknown constant, and return its value."""
        self.known.sizes[self.operation.outputs[output].ref()] = tuple(sizes)
        has_rows = any(isinstance(size, Size) for size in sizes)
        return Value("size", reason=f"{self.where}, the number of rows") if has_rows else CONSTANT


Result = Value | Sequence[Value]
# For each type of operation a function that returns the value of every output, or one for all.
RULES: dict[str, Callable[[Step], Result]] = {}

_Rule = TypeVar("_Rule", bound=Callable[[Step], Result])


def rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of some types of operations."""

    def register(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def graph_of_function(graph: Any, name: str) -> tf.Graph | None:
    """Return the graph of a function that `graph` calls; `None` if it cannot be seen."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return getattr(function, "graph", None)
        graph = getattr(graph, "outer_graph", None)
    return None


def _size(value: Any) -> int | None:
    """Return a constant as a size; `None` if it is none: a fraction, NaN, infinity, a text."""
    try:
        return int(value) if value == int(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _item(operation: Any, parts: Sequence[Any]) -> np.ndarray | None:
    is_item = parts[0].ndim == 1 and operation.get_attr("shrink_axis_mask") == 1
    return parts[0][int(parts[1][0])] if is_item else None


# How a constant is computed from others, by the type of operation.
_FOLDED: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Add": lambda operation, parts: np.add(*parts),
    "AddV2": lambda operation, parts: np.add(*parts),
    "Sub": lambda operation, parts: np.subtract(*parts),
    "Mul": lambda operation, parts: np.multiply(*parts),
    "FloorMod": lambda operation, parts: np.mod(*parts),
    "ConcatV2": lambda operation, parts: np.concatenate(parts[:-1], axis=int(parts[-1])),
    "Pack": lambda operation, parts: np.stack(parts, axis=operation.get_attr("axis")),
    "Range": lambda operation, parts: np.arange(*parts),
    "Cast": lambda operation, parts: parts[0],
    "Identity": lambda operation, parts: parts[0],
    "StridedSlice": _item,
}


def static_value(tensor: Any) -> np.ndarray | None:
    """Return a constant that is computed from others, as an array; `None` if it is not known."""
    found = tf.get_static_value(tensor)
    if found is not None:
        return np.asarray(found)
    if tensor.op.type not in _FOLDED:
        return None
    parts = [static_value(each) for each in tensor.op.inputs]
    return None if any(part is None for part in parts) else _FOLDED[tensor.op.type](tensor.op, parts)
