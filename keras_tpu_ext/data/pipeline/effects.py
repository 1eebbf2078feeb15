"""Side effects of a `tf.data` pipeline (state, Python and files), and whether it is deterministic.

Functions are judged by the operations that TensorFlow has traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext.data.pipeline import nodes

_get_op_def: Any = private("tensorflow.python.framework.op_def_registry:get")

_READERS = {
    "ReadFile",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_DETERMINISTIC_SOURCES = ("range_op.", "from_tensor_slices_op.", "from_tensors_op.", "readers.")
_GENERATOR = "GeneratorDataset"
_VARIABLES = {"ReadVariableOp", "ResourceGather", "RngReadAndSkip", "StatefulUniform", "StatefulStandardNormalV2"}
_UNKNOWN = (
    "{word} is not known well enough to be made again, nor what is below it. Write kte.data.optimize(dataset) "
    "for that."
)
# Stateful to TensorFlow, but deterministic: sources, lookups, checks, and calls, whose functions are examined too.
_HARMLESS = _READERS | {
    "Assert",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "TensorDataset",
    "TensorSliceDataset",
    "RangeDataset",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "While",
    "Case",
}


class FunctionEffects(NamedTuple):
    """The effects of the functions of a transformation."""

    state: tuple[str, ...]  # their stateful operations
    reads_variables: bool  # whether they read a variable or a `tf.random.Generator`
    runs_python: bool  # whether they run Python, as `tf.numpy_function` does
    is_generator: bool  # whether they are those of `from_generator`
    reads_files: bool  # whether they open files
    casts_bytes: bool  # whether they cast uint8 to floats

    @property
    def draws(self) -> bool:
        """Whether they draw stateful random numbers."""
        return any(name.startswith(("Random", "Stateful", "Rng", "Multinomial", "Truncated")) for name in self.state)


def effects_of(node: nodes.Node) -> FunctionEffects:
    """Return the effects of the functions of `node`, and of those that they call."""
    operations = list(_operations(node))
    names = {operation.op for operation in operations}
    return FunctionEffects(
        state=tuple(sorted(name for name in names - _HARMLESS if _is_stateful(name))),
        reads_variables=bool(names & _VARIABLES),
        runs_python=bool(names & _PYTHON),
        is_generator=_GENERATOR in names,
        reads_files=bool(names & _READERS),
        casts_bytes=any(map(_is_cast_of_bytes, operations)),
    )


def has_side_effects(dataset: nodes.Node) -> bool:
    """Return whether iterating over `dataset` runs the user's Python or changes a state."""
    return any(effects.state or effects.runs_python for effects in map(effects_of, nodes.nodes_of(dataset)))


def _operations(node: nodes.Node) -> Iterator[Any]:
    for function in nodes.functions_of(node):
        graph = function.graph.as_graph_def()
        yield from graph.node
        for called in graph.library.function:
            yield from called.node_def


def _is_stateful(name: str) -> bool:
    definition = _get_op_def(name)
    placeholder = name == "Placeholder"
    return not placeholder and (definition is None or definition.is_stateful)


def _is_cast_of_bytes(operation: Any) -> bool:
    if operation.op != "Cast":
        return False
    return bool(
        operation.attr["SrcT"].type == tf.uint8.as_datatype_enum
        and tf.as_dtype(operation.attr["DstT"].type).is_floating
    )


def is_source(node: nodes.Node) -> bool:
    """Return whether `node` is a source; a reader of files is one, whose input is a dataset of file names."""
    return not nodes.inputs_of(node) or nodes.class_name(node).startswith("readers.")


def reason_to_keep(node: nodes.Node) -> str:
    """Return the reason why nothing before `node` may be rewritten; empty if it may."""
    word = nodes.method_name(node)
    if nodes.node_type(node) is None:
        return "" if is_source(node) else _UNKNOWN.format(word=word)
    if is_unseeded_shuffle(node) and not node._reshuffle_each_iteration:
        return (
            "shuffle without a seed keeps one order, on which another dataset may rely, as the other part of a split "
            "does. Write shuffle(..., seed=1, reshuffle_each_iteration=False)."
        )
    if nodes.class_name(node) == nodes.CACHE and not is_deterministic(nodes.inputs_of(node)[0]):
        return "cache keeps random elements, on which another dataset may rely. Seed what is below it."
    return ""


def is_unseeded_shuffle(node: nodes.Node) -> bool:
    """Return whether `node` is a shuffle without a seed."""
    if nodes.class_name(node) != nodes.SHUFFLE:
        return False
    return not nodes.attribute(node, "_seed") and not nodes.attribute(node, "_seed2")


def is_deterministic(dataset: nodes.Node) -> bool:
    """Return whether every iteration gives the same elements in the same order."""
    return dataset.options().deterministic is not False and all(map(_gives_same_elements, nodes.nodes_of(dataset)))


def _gives_same_elements(node: nodes.Node) -> bool:
    if nodes.class_name(node).startswith(_DETERMINISTIC_SOURCES) or nodes.class_name(node) in nodes.JOINS:
        return True
    if nodes.node_type(node) is None or is_unseeded_shuffle(node):
        return False
    effects = effects_of(node)
    return getattr(node, "_deterministic", "") != "false" and not effects.state and not effects.runs_python
