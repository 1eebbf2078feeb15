"""What the functions of a `tf.data` pipeline do, told from the operations that TensorFlow has traced.

Imports TensorFlow only. Private name of TensorFlow that this leans on: `op_def_registry.get`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from keras_tpu_ext.data.pipeline.stages import functions_of, stages_of

_READERS = {
    "ReadFile",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_GENERATOR = "GeneratorDataset"
_VARIABLES = {"ReadVariableOp", "ResourceGather", "RngReadAndSkip", "StatefulUniform", "StatefulStandardNormalV2"}
# TensorFlow calls these stateful, and still they give the same whenever they run: sources, tables that are only read,
# checks, and calls, whose functions are looked at themselves.
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
    """What the functions of a stage do.

    Attributes:
        state: Operations that may give another result, or have another effect, if they run at another time.
        reads_variables: Whether a variable or a `tf.random.Generator` is among them.
        runs_python: Whether Python runs in them, as by `tf.numpy_function`.
        is_generator: Whether they make the dataset of `from_generator`.
        reads_files: Whether they open files.
        casts_bytes: Whether they make floats of bytes.
    """

    state: tuple[str, ...]
    reads_variables: bool
    runs_python: bool
    is_generator: bool
    reads_files: bool
    casts_bytes: bool

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn with a state."""
        return any(name.startswith(("Random", "Stateful", "Rng", "Multinomial", "Truncated")) for name in self.state)


def effects_of(stage: Any) -> FunctionEffects:
    """Return what the functions of `stage` do, and those that they call."""
    nodes = list(_nodes(stage))
    names = {node.op for node in nodes}
    return FunctionEffects(
        state=tuple(sorted(name for name in names - _HARMLESS if _is_stateful(name))),
        reads_variables=bool(names & _VARIABLES),
        runs_python=bool(names & _PYTHON),
        is_generator=_GENERATOR in names,
        reads_files=bool(names & _READERS),
        casts_bytes=any(_is_cast_of_bytes(node) for node in nodes),
    )


def has_side_effects(dataset: Any) -> bool:
    """Return whether running `dataset` runs Python of the user's or changes a state that another run would see."""
    return any(deeds.state or deeds.runs_python for deeds in map(effects_of, stages_of(dataset)))


def _nodes(stage: Any) -> Iterator[Any]:
    for function in functions_of(stage):
        graph = function.graph.as_graph_def()
        yield from graph.node
        for called in graph.library.function:
            yield from called.node_def


def _is_stateful(name: str) -> bool:
    definition = op_def_registry.get(name)
    placeholder = name == "Placeholder"
    return not placeholder and (definition is None or definition.is_stateful)


def _is_cast_of_bytes(node: Any) -> bool:
    if node.op != "Cast":
        return False
    return bool(
        node.attr["SrcT"].type == tf.uint8.as_datatype_enum and tf.as_dtype(node.attr["DstT"].type).is_floating
    )
