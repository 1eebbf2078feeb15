"""What keeps a step of TensorFlow from becoming a program for TPUs, in the user's words."""

from __future__ import annotations

import re
from typing import Any

from keras_tpu_ext._runtime.common.lowering import LoweringError
from keras_tpu_ext._runtime.common.lowering_errors import fault_at, lookup_fault

_NO_KERNEL = re.compile(r"(\w+) \(No registered '(\w+)' OpKernel for \w+ devices.*?\{\{node ([^}]+)\}\}", re.DOTALL)
# What a shape of any size has become; one with a known bound is for the compiler to judge.
_DYNAMIC = re.compile(r"mhlo\.unknown|tensor<\?")
_LOCATION = re.compile(r"loc\(([^\n]*)\)\s*$", re.MULTILINE)
_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)


def without_kernel(error: Exception, model: Any, graph: Any) -> LoweringError | None:
    """Return the fault of operations that no TPU has; `None` where it is another one.

    Args:
        error: What TensorFlow says.
        model: The model.
        graph: The graph that was traced, whose operations know where they were made.
    """
    # A table is a resource and no variable.
    if "is_initialized" in str(error) or "is a resource and no variable" in str(error):
        return lookup_fault("the model looks something up in a table of TensorFlow, which a TPU does not have", model)
    found = _NO_KERNEL.findall(str(error))
    if not found:
        return None
    names = sorted({operation for _, operation, _ in found})
    operations = f"the operation {names[0]}" if len(names) == 1 else f"the operations {', '.join(names)}"
    nodes = [node for _, _, node in found]
    return fault_at(nodes, f"a TPU does not have {operations} of TensorFlow", model, _made_at(graph, nodes))


def check_static(program: str, model: Any) -> None:
    """Check that every shape in a program is known.

    Raises:
        LoweringError: With the layer of the first operation whose result may have any size.
    """
    found = _DYNAMIC.search(program)
    if found is None:
        return
    end = program.find("\n", found.start())
    line = program[program.rfind("\n", 0, found.start()) + 1 : end]
    definitions = dict(_DEFINITION.findall(program))
    location = _LOCATION.search(line)
    names = _names(location[1] if location else "", definitions)
    raise fault_at(names, "the shape of a tensor depends on values, which is a dynamic shape", model)


def _made_at(graph: Any, nodes: list[str]) -> list[tuple[str, int]]:
    """Return files and lines of the frames in which the first of the operations that the graph has was made."""
    made = {operation.name: operation for operation in graph.get_operations()}
    operation = next((made[node] for node in nodes if node in made), None)
    return [] if operation is None else [(frame.filename, frame.lineno) for frame in operation.traceback]


def _names(location: str, definitions: dict[str, str], depth: int = 4) -> list[str]:
    """Return the names of operations in a location, and in those that it refers to."""
    names = re.findall(r'"([^"]+)"', location)
    if depth:
        for reference in re.findall(r"#loc\d*", location):
            names += _names(definitions.get(reference, ""), definitions, depth - 1)
    return names
