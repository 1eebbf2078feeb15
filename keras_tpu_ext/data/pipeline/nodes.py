"""The nodes of a `tf.data` pipeline, its sources and transformations: reading and rebuilding them.

A node is rebuilt from its attributes and the function that TensorFlow has already traced for it. The methods of
`tf.data.Dataset` would trace the function again and draw new seeds, which can change the elements of a pipeline.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import explain_missing_names

Node: TypeAlias = tf.data.Dataset

_MODULE = "tensorflow.python.data.ops."
_BASE = frozenset({"_variant_tensor_attr", "_graph_attr", "_options_attr", "_name"})
# Arguments of operations that are not attributes of a dataset: inputs and functions, those that `_common_args` and
# `_special` give, those that no method of `tf.data.Dataset` sets, and those that TensorFlow's own optimizer sets.
_NO_ATTRIBUTES = frozenset(
    {"input_dataset", "other_arguments", "f", "predicate", "name"}
    | {"output_types", "output_shapes", "metadata", "cache", "seed_generator", "legacy_autotune"}
    | {"slack_period", "buffer_size_min", "require_non_empty", "parallel_copy"}
)
_OPTIONAL = frozenset({"_force_synchronous", "_use_unbounded_threadpool"})  # TensorFlow 2.15 lacks them


class NodeType(NamedTuple):
    """A class of datasets that can be rebuilt, each with one input."""

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
JOINS = {ZIP: "zip", CONCATENATE: "concatenate"}  # of several inputs: not rebuilt

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
}


@functools.cache
def op_attributes(op: str) -> frozenset[str]:
    """Return the arguments of an operation that are attributes of its dataset, by the attributes' names."""
    arguments = inspect.signature(getattr(tf.raw_ops, op)).parameters if op else ()
    return frozenset(f"_{name}" for name in arguments if name not in _NO_ATTRIBUTES)


def class_name(node: Node) -> str:
    """Return the name of a node's class, as in `NODE_TYPES`; empty for a class that is not TensorFlow's."""
    cls = type(node)
    return f"{cls.__module__.removeprefix(_MODULE)}.{cls.__name__}" if cls.__module__.startswith(_MODULE) else ""


def method_name(node: Node) -> str:
    """Return the method of `tf.data.Dataset` that makes a node, such as `"map"`, or else the name of its class."""
    known = NODE_TYPES.get(class_name(node))
    return known.method if known else JOINS.get(class_name(node), type(node).__name__)


def node_type(node: Node) -> NodeType | None:
    """Return the type of a node that can be rebuilt, and `None` for one that cannot."""
    known = NODE_TYPES.get(class_name(node))
    if known is None:
        return None
    # A private attribute that is not an argument of the operation is an option of another TensorFlow.
    found = {name for name in vars(node) if name.startswith("_")}
    arguments = op_attributes(known.op)
    needed = _BASE | (arguments - _OPTIONAL) | ({known.function} - {""})
    return known if needed <= found <= needed | arguments | {"_input_dataset", "_structure"} else None


@explain_missing_names()
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


def with_attributes_of(node: Node, made: Node) -> Node:
    """Return `made` with the attributes that were set on `node` from outside, such as Keras's `class_names`."""
    vars(made).update({name: value for name, value in vars(node).items() if not name.startswith("_")})
    return made


@explain_missing_names()
def functions_of(node: Node) -> list[tf.types.experimental.ConcreteFunction]:
    """Return the traced functions of a node."""
    traced = [getattr(wrapper, "function", None) for wrapper in node._functions()]
    return [function for function in traced if hasattr(function, "graph")]


@explain_missing_names()
def function_name(node: Node) -> str:
    """Return the name of the Python function that was given to a transformation."""
    names = [getattr(getattr(wrapper, "_func", None), "__name__", "") for wrapper in node._functions()]
    return names[0] if names and names[0].isidentifier() else "function"


def rewrite(
    dataset: Node,
    change: Callable[[Node, Node | None], Node | None],
    keeps_input: Callable[[Node], bool] = lambda node: False,
) -> Node:
    """Return `dataset` with `change` applied to each node, and the nodes after a changed one rebuilt.

    `change` is called from the source to the end with a node and its rewritten input, which is `None` for the first
    node, before which nothing may change; it returns what replaces the node, or `None` for no change.
    """
    chain = [dataset]
    while not keeps_input(chain[-1]) and node_type(chain[-1]):
        chain += inputs_of(chain[-1])
    first = chain.pop()
    before, made = first, change(first, None) or first
    for node in reversed(chain):
        unchanged = node if made is before else None
        before, made = node, change(node, made) or unchanged or rebuild(node, made)
    return made


@explain_missing_names()
def rebuild(node: Node, source: Node, into: str = "", **changed: tf.Tensor | str | bool) -> Node:
    """Return a node like `node` that reads from `source`, of class `into`, with `changed` attributes."""
    if class_name(node) == OPTIONS:
        return with_attributes_of(node, source.with_options(node.options()))
    into = into or class_name(node)
    kind = NODE_TYPES[into]
    module, _, name = into.rpartition(".")
    made = with_attributes_of(node, object.__new__(getattr(importlib.import_module(_MODULE + module), name)))
    private = op_attributes(kind.op) | {kind.function, "_name", "_structure"}
    vars(made).update({key: value for key, value in {**vars(node), **changed}.items() if key in private})
    made._input_dataset = source
    variant = getattr(tf.raw_ops, kind.op)(**_arguments(made, into, kind))
    tf.data.Dataset.__init__(made, variant)  # the constructors in between would trace the function again
    return made


def _arguments(node: Node, name: str, kind: NodeType) -> dict[str, Any]:
    """Return the arguments of the operation that makes a node."""
    arguments = {key[1:]: vars(node)[key] for key in op_attributes(kind.op) if key in vars(node)}
    arguments.update(node._common_args, input_dataset=node._input_dataset._variant_tensor)
    if kind.function:
        function = vars(node)[kind.function].function
        arguments["f" if kind.function == "_map_func" else "predicate"] = function
        arguments["other_arguments"] = function.captured_inputs
    # Those that are not attributes.
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
