"""Count the FLOPs of a train step on TensorFlow: traced once more, with a batch of static size, and never run."""

from __future__ import annotations

import concurrent.futures
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import LOOP, FlopsCount, UncountableError, flops_of_einsum, flops_of_sizes
from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.compat.autograph import as_keras_traces
from keras_tpu_ext._runtime.tensorflow.graph_axis import graph_of_function
from keras_tpu_ext._runtime.tensorflow.replicas import is_none
from keras_tpu_ext._runtime.training.model import ExactModel, is_own_step


def count_flops(model: Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step of `model`, given the specs of a batch, of `Execution.batches`.

    It is traced outside the model's strategy, as the step of one device with the whole batch. For Keras's step and
    ours, the optimizer and the metrics are left out; for a user's own step, everything counts.
    """
    own = not is_own_step(type(model).train_step) and type(model).train_step is not keras.Model.train_step
    step = model.train_step if own else lambda data: _gradients(model, data)
    specs = [_with_size(spec, batch_size) for spec in tf.nest.flatten(batch)]

    def on_leaves(*tensors: tf.Tensor) -> Nest:
        rest = iter(tensors)
        with patched(_metric_updates(model)):
            return step(tf.nest.pack_sequence_as(batch, [None if spec is None else next(rest) for spec in specs]))

    traced = tf.function(as_keras_traces(on_leaves))
    # Keras 2 calls callbacks inside the scope of the strategy; a new thread is outside all scopes.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        present = [spec for spec in specs if spec is not None]
        graph = thread.submit(lambda: traced.get_concrete_function(*present)).result().graph
    return FlopsCount(flops_of_graph(graph, graph.outputs) / batch_size, batch_size)


def _gradients(model: Model, data: Nest) -> list[tf.Tensor | None]:
    """Compute the gradients as Keras's step or ours does."""
    if isinstance(model, ExactModel):
        return model._kte.gradients_of_batch(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        takes_training = getattr(model, "_call_has_training_arg", True)
        y_pred = model(x, training=True) if takes_training else model(x)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return tape.gradient(loss, model.trainable_variables)


def _with_size(spec: tf.TypeSpec, batch_size: int) -> tf.TensorSpec | None:
    """Return the spec of one tensor of a batch with a static batch size; `None` for an absent tensor."""
    spec = next(iter(getattr(spec, "_value_specs", [spec])))  # that of the first replica
    if is_none(spec):
        return None
    if not isinstance(spec, tf.TensorSpec):
        raise UncountableError(f"its batches have a part that is no dense tensor ({type(spec).__name__})")
    if not spec.shape.rank:
        return spec
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _metric_updates(model: Model) -> list[Patch]:
    """Return patches that turn off the updates of metrics, which fail outside a strategy with several replicas."""
    methods: list[tuple[object, str]] = [(metric, "a metric's update_state") for metric in model.metrics]
    variables = [variable for metric in model.metrics for variable in metric.variables]
    methods += [(one, f"a metric's variable's {name}") for one in variables for name in ("assign", "assign_add")]
    return [(*method, lambda update: _do_nothing) for method in methods]


def _do_nothing(*args: object, **kwargs: object) -> None:
    pass


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
    """Count the FLOPs that `outputs` and the side effects of a `FuncGraph` need; TensorFlow prunes the rest."""
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


def _function(graph: tf.Graph, name: str) -> tf.Graph:
    function = graph_of_function(graph, name)
    if function is None:
        raise UncountableError(f"the body of one of its functions ({name}) cannot be seen")
    return function


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


def _matrix_product(op: tf.Operation) -> float:
    is_transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return flops_of_sizes(_sizes(op.inputs[0])[-2 if is_transposed else -1], *_sizes(op.outputs[0]))


def _einsum(op: tf.Operation) -> float:
    return flops_of_einsum(op.get_attr("equation").decode(), [_sizes(tensor) for tensor in op.inputs])


def _convolution(op: tf.Operation) -> float:
    """Count a convolution or one of its two gradients, which have the same multiply-adds."""
    is_gradient = "Backprop" in op.type
    output = op.inputs[2] if is_gradient else op.outputs[0]
    kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
    # The dimensions of the kernel that an element of the output is summed over.
    taps = slice(0, -2) if op.type.startswith("Depthwise") else slice(0, -1)
    return flops_of_sizes(*_sizes(output), *_sizes(kernel)[taps])


_PRODUCTS: dict[str, Callable[[tf.Operation], float]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matrix_product),
    "Einsum": _einsum,
    "Conv": _convolution,
    **{
        f"{convolution}{gradient}": _convolution
        for convolution in ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
        for gradient in ("", "BackpropInput", "BackpropInputV2", "BackpropFilter", "BackpropFilterV2")
    },
}
