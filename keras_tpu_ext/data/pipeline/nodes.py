"""The nodes of a `tf.data` pipeline, its sources and transformations: reading and rebuilding them.

A node is rebuilt from its attributes and the function that TensorFlow has already traced for it. The methods of
`tf.data.Dataset` would trace the function again and draw new seeds, which can change the elements of a pipeline.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import explain_missing_names

_MODULE = "tensorflow.python.data.ops."
_BASE = frozenset({"_variant_tensor_attr", "_graph_attr", "_options_attr", "_name"})
_INPUTS = frozenset({"_input_dataset", "_datasets", "_dataset_to_concatenate", "_input_datasets"})
# Arguments of operations that are not attributes of a dataset: inputs and functions, those that `_common_args` and
# `_special` give, those that no method of `tf.data.Dataset` sets, and those that TensorFlow's own optimizer sets.
_NO_ATTRIBUTES = frozenset(
    {"input_dataset", "input_datasets", "another_dataset", "other_arguments", "f", "predicate", "name"}
    | {"output_types", "output_shapes", "metadata", "cache", "seed_generator", "legacy_autotune"}
    | {"slack_period", "buffer_size_min", "require_non_empty", "parallel_copy"}
)
_OPTIONAL = frozenset({"_force_synchronous", "_use_unbounded_threadpool"})  # TensorFlow 2.15 lacks them


class NodeType(NamedTuple):
    """A class of datasets that can be rebuilt."""

    method: str  # the method of `tf.data.Dataset` that makes it, such as `"map"`
    op: str  # the operation that makes it; empty for options, which have a public method
    function: str = ""  # the attribute that holds its function; empty if there is none


MAP, PARALLEL_MAP = "map_op._MapDataset", "map_op._ParallelMapDataset"
BATCH, PARALLEL_BATCH = "batch_op._BatchDataset", "batch_op._ParallelBatchDataset"
FLAT_MAP, INTERLEAVE = "flat_map_op._FlatMapDataset", "interleave_op._InterleaveDataset"
PARALLEL_INTERLEAVE = "interleave_op._ParallelInterleaveDataset"
PADDED_BATCH, SHUFFLE = "padded_batch_op._PaddedBatchDataset", "shuffle_op._ShuffleDataset"
CACHE, PREFETCH, OPTIONS = "cache_op.CacheDataset", "prefetch_op._PrefetchDataset", "dataset_ops._OptionsDataset"
ZIP, CONCATENATE = "zip_op._ZipDataset", "concatenate_op._ConcatenateDataset"
REPEAT, TAKE, SKIP = "repeat_op._RepeatDataset", "take_op._TakeDataset", "skip_op._SkipDataset"
SLICES, TENSORS = "from_tensor_slices_op._TensorSliceDataset", "from_tensors_op._TensorDataset"
ANY_BATCH = frozenset({BATCH, PARALLEL_BATCH, PADDED_BATCH})

NODE_TYPES: Mapping[str, NodeType] = {
    MAP: NodeType("map", "MapDataset", "_map_func"),
    PARALLEL_MAP: NodeType("map", "ParallelMapDatasetV2", "_map_func"),
    BATCH: NodeType("batch", "BatchDatasetV2"),
    PARALLEL_BATCH: NodeType("batch", "ParallelBatchDataset"),
    PADDED_BATCH: NodeType("padded_batch", "PaddedBatchDatasetV2"),
    SHUFFLE: NodeType("shuffle", "ShuffleDatasetV3"),
    CACHE: NodeType("cache", "CacheDatasetV2"),
    PREFETCH: NodeType("prefetch", "PrefetchDataset"),
    REPEAT: NodeType("repeat", "RepeatDataset"),
    TAKE: NodeType("take", "TakeDataset"),
    SKIP: NodeType("skip", "SkipDataset"),
    "filter_op._FilterDataset": NodeType("filter", "FilterDataset", "_predicate"),
    "take_while_op._TakeWhileDataset": NodeType("take_while", "TakeWhileDataset", "_predicate"),
    FLAT_MAP: NodeType("flat_map", "FlatMapDataset", "_map_func"),
    INTERLEAVE: NodeType("interleave", "InterleaveDataset", "_map_func"),
    # TensorFlow does not keep `deterministic`: the user's nodes cannot be rebuilt, those made here can.
    PARALLEL_INTERLEAVE: NodeType("interleave", "ParallelInterleaveDatasetV4", "_map_func"),
    OPTIONS: NodeType("with_options", ""),
    "shard_op._ShardDataset": NodeType("shard", "ShardDataset"),
    "window_op._WindowDataset": NodeType("window", "WindowDataset"),
    "unbatch_op._UnbatchDataset": NodeType("unbatch", "UnbatchDataset"),
    ZIP: NodeType("zip", "ZipDataset"),
    CONCATENATE: NodeType("concatenate", "ConcatenateDataset"),
}


@functools.cache
def op_attributes(op: str) -> frozenset[str]:
    """Return the arguments of an operation that are attributes of its dataset, by the attributes' names."""
    arguments = inspect.signature(getattr(tf.raw_ops, op)).parameters if op else ()
    return frozenset(f"_{name}" for name in arguments if name not in _NO_ATTRIBUTES)


def class_name(node: Any) -> str:
    """Return the name of a node's class, as in `NODE_TYPES`; empty for a class that is not TensorFlow's."""
    cls = type(node)
    return f"{cls.__module__.removeprefix(_MODULE)}.{cls.__name__}" if cls.__module__.startswith(_MODULE) else ""


def method_name(node: Any) -> str:
    """Return the method of `tf.data.Dataset` that makes a node, such as `"map"`, or else the name of its class."""
    known = NODE_TYPES.get(class_name(node))
    return known.method if known else type(node).__name__


def node_type(node: Any) -> NodeType | None:
    """Return the type of a node that can be rebuilt, and `None` for one that cannot.

    A private attribute that is not an argument of the operation is an option of another TensorFlow: such a node
    cannot.
    """
    known = NODE_TYPES.get(class_name(node))
    if known is None:
        return None
    found = {name for name in vars(node) if name.startswith("_")}
    arguments = op_attributes(known.op)
    needed = _BASE | (arguments - _OPTIONAL) | ({known.function} - {""})
    return known if needed <= found <= needed | arguments | _INPUTS | {"_structure"} else None


@explain_missing_names()
def inputs_of(node: Any) -> list[Any]:
    """Return the datasets that a node reads from."""
    return list(node._inputs())


def nodes_of(dataset: Any) -> Iterator[Any]:
    """Yield every node of a pipeline once, from its end to its sources."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop(0)
        if id(node) not in seen:
            seen.add(id(node))
            waiting += inputs_of(node)
            yield node


def attribute(node: Any, name: str) -> Any:
    """Return an attribute of a node as a Python value; `None` if it has none."""
    value: Any = getattr(node, name, None)
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    return value.item() if hasattr(value, "item") and not value.shape else value


def source_tensors(node: Any) -> list[Any]:
    """Return the tensors whose slices a source yields."""
    return [tensor for tensor in getattr(node, "_tensors", ()) if isinstance(tensor, tf.Tensor)]


def public_attributes(node: Any) -> dict[str, Any]:
    """Return the attributes that were set on a dataset from outside, such as Keras's `class_names`."""
    return {name: value for name, value in vars(node).items() if not name.startswith("_")}


@explain_missing_names()
def functions_of(node: Any) -> list[Any]:
    """Return the traced functions of a node."""
    traced = [getattr(wrapper, "function", None) for wrapper in node._functions()]
    return [function for function in traced if hasattr(function, "graph")]


@explain_missing_names()
def function_name(node: Any) -> str:
    """Return the name of the Python function that was given to a transformation."""
    names = [getattr(getattr(wrapper, "_func", None), "__name__", "") for wrapper in node._functions()]
    return names[0] if names and names[0].isidentifier() else "function"


def rewrite(
    dataset: Any, change: Callable[[Any, list[Any]], Any], keeps_inputs: Callable[[Any], bool] = lambda node: False
) -> Any:
    """Return `dataset` with `change` applied to each node, and the nodes after a changed one rebuilt.

    Args:
        dataset: The dataset.
        change: Called from the sources to the end with a node and its rewritten inputs; returns what replaces the
            node, or `None` for no change. A node that keeps its inputs is passed none.
        keeps_inputs: Whether nothing before a node may change, as with a node that cannot be rebuilt anyway.
    """
    done: dict[int, Any] = {}

    def rewritten(node: Any) -> Any:
        if id(node) not in done:
            before = [] if keeps_inputs(node) or node_type(node) is None else inputs_of(node)
            inputs = [rewritten(one) for one in before]
            made = change(node, inputs)
            if made is None:
                is_same = all(old is new for old, new in zip(before, inputs, strict=True))
                made = node if is_same else rebuild(node, inputs)
            done[id(node)] = made
        return done[id(node)]

    return rewritten(dataset)


@explain_missing_names()
def rebuild(node: Any, inputs: list[Any], into: str = "", **changed: Any) -> Any:
    """Return a node like `node` that reads from `inputs`.

    Args:
        node: One that has a `node_type`.
        inputs: The datasets to read from, as many as `node` has.
        into: Class of the new one in `NODE_TYPES`; by default that of `node`.
        changed: Attributes with new values.
    """
    if class_name(node) == OPTIONS:
        made = inputs[0].with_options(node.options())
        vars(made).update(public_attributes(node))
        return made
    into = into or class_name(node)
    kind = NODE_TYPES[into]
    module, _, name = into.rpartition(".")
    cls = getattr(sys.modules.get(_MODULE + module) or importlib.import_module(_MODULE + module), name)
    made = object.__new__(cls)
    keep = op_attributes(kind.op) | {kind.function, "_name", "_structure"}
    vars(made).update({key: value for key, value in vars(node).items() if key in keep or key[:1] != "_"})
    vars(made).update({key: value for key, value in changed.items() if key in keep})
    _connect(made, node, inputs)
    variant = getattr(tf.raw_ops, kind.op)(**_arguments(made, into, kind, inputs))
    tf.data.Dataset.__init__(made, variant)  # the constructors in between would trace the function again
    return made


def _connect(made: Any, node: Any, inputs: list[Any]) -> None:
    """Set the attributes that hold the inputs."""
    if class_name(node) == ZIP:
        made._datasets = tf.nest.pack_sequence_as(node._datasets, inputs)
        return
    made._input_dataset = inputs[0]
    if class_name(node) == CONCATENATE:
        made._dataset_to_concatenate, made._input_datasets = inputs[1], list(inputs)


def _arguments(node: Any, name: str, kind: NodeType, inputs: list[Any]) -> dict[str, Any]:
    """Return the arguments of the operation that makes a node."""
    variants = [one._variant_tensor for one in inputs]
    arguments = {key[1:]: vars(node)[key] for key in op_attributes(kind.op) if key in vars(node)}
    arguments.update(node._common_args)
    if name == ZIP:
        return {**arguments, "input_datasets": variants}
    arguments["input_dataset"] = variants[0]
    if name == CONCATENATE:
        arguments["another_dataset"] = variants[1]
    if kind.function:
        function = vars(node)[kind.function].function
        arguments["f" if kind.function == "_map_func" else "predicate"] = function
        arguments["other_arguments"] = function.captured_inputs
    return _special(node, name, arguments)


def _special(node: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add the arguments that are not attributes."""
    if name == CACHE:
        arguments["cache"] = tf.raw_ops.DummyMemoryCache()
    elif name == SHUFFLE:
        arguments["seed_generator"] = tf.raw_ops.DummySeedGenerator()
    elif name == PREFETCH:
        arguments["legacy_autotune"] = attribute(node, "_buffer_size") == tf.data.AUTOTUNE
    elif name == PADDED_BATCH:
        arguments["padded_shapes"] = tf.nest.flatten(arguments["padded_shapes"])
        arguments["padding_values"] = tf.nest.flatten(arguments["padding_values"])
        arguments.pop("output_types")
    return arguments
