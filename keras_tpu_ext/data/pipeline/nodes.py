"""The nodes of a `tf.data` pipeline, its sources and transformations, and the effects of their functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from keras_tpu_ext.data._tensorflow import tf

Node: TypeAlias = "tf.data.Dataset"

_MODULE = "tensorflow.python.data.ops."

MAP, PARALLEL_MAP = "map_op._MapDataset", "map_op._ParallelMapDataset"
FLAT_MAP, INTERLEAVE = "flat_map_op._FlatMapDataset", "interleave_op._InterleaveDataset"
SHUFFLE = "shuffle_op._ShuffleDataset"
CACHE, PREFETCH = "cache_op.CacheDataset", "prefetch_op._PrefetchDataset"
SLICES, TENSORS = "from_tensor_slices_op._TensorSliceDataset", "from_tensors_op._TensorDataset"
ANY_BATCH = frozenset(
    {"batch_op._BatchDataset", "batch_op._ParallelBatchDataset", "padded_batch_op._PaddedBatchDataset"}
)

# Methods whose effect on the size of elements is known.
_KNOWN = re.compile(
    "map|filter|flat_map|interleave|batch|padded_batch|unbatch|window|shuffle|cache|prefetch|repeat|take|take_while|"
    "skip|shard|options|zip|concatenate"
)
# Operations that read files, run Python, or draw from a generator with a state.
_READERS = {
    *("ReadFile", "TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset"),
    *("FixedLengthRecordDataset", "FixedLengthRecordDatasetV2"),
}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_DRAWS = ("Random", "Rng", "Multinomial", "Truncated", "StatefulRandom", "StatefulStandard", "StatefulUniform")


def class_name(node: Node) -> str:
    """Return the name of a node's class, without TensorFlow's module; empty for a class that is not TensorFlow's."""
    cls = type(node)
    return f"{cls.__module__.removeprefix(_MODULE)}.{cls.__name__}" if cls.__module__.startswith(_MODULE) else ""


def method_name(node: Node) -> str:
    """Return the method of `tf.data.Dataset` that makes a node, such as `"map"`, as its class is named after it."""
    name = type(node).__name__.strip("_").removeprefix("Parallel").removesuffix("Dataset")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def is_known(node: Node) -> bool:
    """Return whether it is known what a transformation does to the size of elements."""
    return bool(class_name(node)) and _KNOWN.fullmatch(method_name(node)) is not None


def inputs_of(node: Node) -> list[Node]:
    """Return the datasets that a node reads from."""
    return list(node._inputs())


def nodes_of(dataset: Node) -> Iterator[Node]:
    """Yield every node of a pipeline once, from its end to its sources."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop(0)
        if id(node) not in seen:
            seen.add(id(node))
            waiting += inputs_of(node)
            yield node


def attribute(node: Node, name: str) -> Any:
    """Return an attribute of a node as a Python value; `None` if it has none."""
    value: Any = getattr(node, name, None)
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    return value.item() if hasattr(value, "item") and not value.shape else value


def source_tensors(node: Node) -> list[tf.Tensor]:
    """Return the tensors whose slices a source yields."""
    return [tensor for tensor in getattr(node, "_tensors", ()) if isinstance(tensor, tf.Tensor)]


def functions_of(node: Node) -> list[tf.types.experimental.ConcreteFunction]:
    """Return the traced functions of a node."""
    traced = [getattr(wrapper, "function", None) for wrapper in node._functions()]
    return [function for function in traced if hasattr(function, "graph")]


def function_name(node: Node) -> str:
    """Return the name of the Python function that was given to a transformation."""
    names = [getattr(getattr(wrapper, "_func", None), "__name__", "") for wrapper in node._functions()]
    return names[0] if names and names[0].isidentifier() else "function"


class FunctionEffects(NamedTuple):
    """The effects of the functions of a transformation."""

    draws: bool  # whether they draw stateful random numbers
    runs_python: bool  # whether they run Python, as `tf.numpy_function` does
    is_generator: bool  # whether they are those of `from_generator`
    reads_files: bool  # whether they open files
    casts_bytes: bool  # whether they cast uint8 to floats


def effects_of(node: Node) -> FunctionEffects:
    """Return the effects of the functions of `node`, and of those that they call."""
    operations = list(_operations(node))
    names = {operation.op for operation in operations}
    return FunctionEffects(
        draws=any(name.startswith(_DRAWS) for name in names),
        runs_python=bool(names & _PYTHON),
        is_generator="GeneratorDataset" in names,
        reads_files=bool(names & _READERS),
        casts_bytes=any(map(_is_cast_of_bytes, operations)),
    )


def _operations(node: Node) -> Iterator[Any]:
    for function in functions_of(node):
        graph = function.graph.as_graph_def()
        yield from graph.node
        for called in graph.library.function:
            yield from called.node_def


def _is_cast_of_bytes(operation: Any) -> bool:
    if operation.op != "Cast":
        return False
    return bool(
        operation.attr["SrcT"].type == tf.uint8.as_datatype_enum
        and tf.as_dtype(operation.attr["DstT"].type).is_floating
    )
