"""What the functions in a `tf.data` pipeline do beside computing, by the operations that TensorFlow has traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from keras_tpu_ext.data.pipeline import nodes

_READERS = {
    "ReadFile",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# Of operations that draw from a generator with a state.
_DRAWS = ("Random", "Rng", "Multinomial", "Truncated", "StatefulRandom", "StatefulStandard", "StatefulUniform")


class FunctionEffects(NamedTuple):
    """The effects of the functions of a transformation."""

    draws: bool  # whether they draw stateful random numbers
    runs_python: bool  # whether they run Python, as `tf.numpy_function` does
    is_generator: bool  # whether they are those of `from_generator`
    reads_files: bool  # whether they open files
    casts_bytes: bool  # whether they cast uint8 to floats


def effects_of(node: nodes.Node) -> FunctionEffects:
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


def _operations(node: nodes.Node) -> Iterator[Any]:
    for function in nodes.functions_of(node):
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
