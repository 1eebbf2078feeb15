"""A traced function of TensorFlow with values in place of its variables, for lowerings that take no resources.

Its operations are copied in the order in which they were made, in which TensorFlow lets a function read and write its
variables too. A variable becomes a value that is handed on from write to write, also through branches and loops.

Private names of TensorFlow that this module leans on (tests/_runtime/test_tensorflow_private_names.py watches them):
`Graph._create_op_internal`, `Graph._get_function`, `Graph._add_function_recursive` and
`resource_variable_ops.get_eager_safe_handle_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from keras_tpu_ext._runtime.common.lowering import LoweringError

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_IFS, _WHILES = ("If", "StatelessIf"), ("While", "StatelessWhile")


class _Place(int):
    """Stands for a variable: where its value is in the list of them."""


class Functionalized:
    """A function with values in place of its variables.

    Args:
        concrete: A concrete function; of what it captures nothing but its variables may be resources.

    Attributes:
        handles: The variables that it reads or writes, as resources, in their order among the values.
        specs: The specs of these values.

    Raises:
        ValueError: If it captures another resource, a table say.
    """

    def __init__(self, concrete: Any) -> None:
        self._graph = concrete.graph
        captured = [outside for outside, _ in concrete.graph.captures]
        self.handles = [one for one in captured if one.dtype == tf.resource]
        self.specs = [_spec_of(handle) for handle in self.handles]
        places = iter(map(_Place, range(len(self.handles))))
        self._captured = [next(places) if one.dtype == tf.resource else one for one in captured]

    def __call__(self, values: Iterable[Any], *inputs: Any) -> tuple[list[Any], list[Any]]:
        """Return the function's results, and the values that its variables have afterwards.

        Args:
            values: The values of its variables.
            inputs: The function's own inputs.
        """
        after = list(values)
        results = _replay(self._graph, [*inputs, *self._captured], after)
        return results, after


def _spec_of(handle: Any) -> Any:
    data = resource_variable_ops.get_eager_safe_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        raise ValueError(f"what it captures, {handle!r}, is a resource and no variable")
    (found,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(found.shape), tf.as_dtype(found.dtype))


def _replay(graph: Any, arguments: list[Any], values: list[Any]) -> list[Any]:
    """Copy the operations of a graph into the one that is being traced; `values` are those of all variables."""
    known: dict[int, Any] = {id(tensor): one for tensor, one in zip(graph.inputs, arguments, strict=True)}
    for operation in graph.get_operations():
        if operation.type in ("Placeholder", "NoOp"):
            continue
        inputs = [known[id(tensor)] for tensor in operation.inputs]
        outputs = _copied(operation, inputs, values)
        known.update((id(tensor), one) for tensor, one in zip(operation.outputs, outputs, strict=True))
    return [known[id(tensor)] for tensor in graph.outputs]


def _copied(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    """Return what an operation makes of its inputs."""
    if not any(isinstance(one, _Place) for one in inputs):
        return _same(operation, inputs)
    if operation.type in _CALLS:
        return _replay(_graph_of(operation, "f"), inputs, values)
    if operation.type in _IFS:
        return _branches(operation, inputs, values)
    if operation.type in _WHILES:
        return _loop(operation, inputs, values)
    if operation.type in ("Identity", "IdentityN"):
        return inputs
    deed = _DEEDS.get(operation.type)
    if deed is None:
        raise LoweringError(
            f"the operation {operation.type} of TensorFlow changes a variable in a way that preflight cannot follow "
            "with TensorFlow for TPUs",
            cure="ask with tensorflow-cpu, or with an optimizer of keras.optimizers that is not a legacy one",
        )
    return deed(operation, inputs, values)


def _same(operation: Any, inputs: list[Any]) -> list[Any]:
    """Make the same operation, under the same name, in the graph that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    attributes = {name: value for name, value in operation.node_def.attr.items() if name != "_class"}
    for value in attributes.values():
        for named in (value.func, *value.list.func):
            if named.name:
                graph._add_function_recursive(operation.graph._get_function(named.name))
    kinds = [tensor.dtype for tensor in operation.outputs]
    return list(
        graph._create_op_internal(operation.type, inputs, kinds, name=operation.name, attrs=attributes).outputs
    )


def _graph_of(operation: Any, attribute: str) -> Any:
    return operation.graph._get_function(operation.get_attr(attribute).name).graph


def _branches(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    condition, *arguments = inputs
    places = [one for one in arguments if isinstance(one, _Place)]

    def branch(attribute: str) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            own = list(values)
            results = _replay(_graph_of(operation, attribute), arguments, own)
            return [*results, *(own[place] for place in places)]

        return run

    found = tf.nest.flatten(tf.cond(condition, branch("then_branch"), branch("else_branch")))
    count = len(operation.outputs)
    for place, value in zip(places, found[count:], strict=True):
        values[place] = value
    return found[:count]


def _loop(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    places = [one for one in inputs if isinstance(one, _Place)]
    carried = [one for one in inputs if not isinstance(one, _Place)]

    def begin(state: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """Return what the loop's functions take, and the values of all variables."""
        own, rest = list(values), iter(state)
        for place, value in zip(places, state[len(carried) :], strict=True):
            own[place] = value
        return [one if isinstance(one, _Place) else next(rest) for one in inputs], own

    def goes_on(*state: Any) -> Any:
        return _replay(_graph_of(operation, "cond"), *begin(state))[0]

    def body(*state: Any) -> list[Any]:
        arguments, own = begin(state)
        results = _replay(_graph_of(operation, "body"), arguments, own)
        return [*(one for one in results if not isinstance(one, _Place)), *(own[place] for place in places)]

    found = tf.while_loop(goes_on, body, [*carried, *(values[place] for place in places)])
    for place, value in zip(places, found[len(carried) :], strict=True):
        values[place] = value
    rest = iter(found)
    return [one if isinstance(one, _Place) else next(rest) for one in inputs]


def _read(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    return [values[inputs[0]]]


def _is_initialized(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    return [tf.constant(True)]


def _shape(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    return [tf.shape(values[inputs[0]], out_type=operation.outputs[0].dtype)]


def _gather(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    return [tf.gather(values[inputs[0]], inputs[1], batch_dims=operation.get_attr("batch_dims"))]


def _gather_nd(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
    return [tf.gather_nd(values[inputs[0]], inputs[1])]


def _writes(new: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return what replaces a value by that which `new` makes of it and of the other inputs."""

    def write(operation: Any, inputs: list[Any], values: list[Any]) -> list[Any]:
        place, *others = inputs
        values[place] = new(values[place], *others)
        return []

    return write


def _scattered(scatter: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, indices, updates: scatter(value, tf.expand_dims(indices, -1), updates)


_DEEDS: dict[str, Callable[..., list[Any]]] = {
    "ReadVariableOp": _read,
    "VarIsInitializedOp": _is_initialized,
    "VariableShape": _shape,
    "ResourceGather": _gather,
    "ResourceGatherNd": _gather_nd,
    "AssignVariableOp": _writes(lambda value, new: new),
    "AssignAddVariableOp": _writes(lambda value, more: value + more),
    "AssignSubVariableOp": _writes(lambda value, less: value - less),
    "ResourceScatterAdd": _writes(_scattered(tf.tensor_scatter_nd_add)),
    "ResourceScatterSub": _writes(_scattered(tf.tensor_scatter_nd_sub)),
    "ResourceScatterUpdate": _writes(_scattered(tf.tensor_scatter_nd_update)),
}
