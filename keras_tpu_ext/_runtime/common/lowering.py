"""A train step lowered for a TPU compiler, with the names needed to read the compiler's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_tpu_ext._runtime.common.layouts import VariableLayout


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A train step in StableHLO."""

    program: bytes  # the module, as MLIR bytecode or text
    # True if it is the program of all devices, which the compiler partitions; False for that of one replica.
    partitions: bool
    examples: int  # examples in the batch of all replicas
    batch_bytes: int  # bytes of that batch as the host sends it to the devices
    layers: tuple[str, ...]  # the names of the model's layers, at any depth
    roles: Mapping[str, str]  # what other parts of operation names stand for, such as `{"sgd": "(optimizer)"}`
    arguments: Mapping[str, str]  # the variables, such as `"conv1/kernel"`, by the program's names for its arguments
    framework: str  # name of the framework
    # Number of leading results that are not variables; all others alias the variables that they update. `None` if the
    # program says itself which arguments it donates.
    results: int | None = None
    # The program without source locations, which change nothing; `None` if it has none.
    without_lines: bytes | None = None
    layouts: tuple[VariableLayout, ...] = ()  # the layout of each variable of the model
    complaints: tuple[str, ...] = ()  # likely mistakes in these layouts

    @property
    def identity(self) -> bytes:
        """Everything that the compiler's result depends on, as a cache key."""
        if self.without_lines is None:
            return self.program
        # Without locations there are no names of operations, and so no names of layers.
        return b"\n".join([self.without_lines, repr((self.layers, sorted(self.roles.items()))).encode()])


class LoweringError(Exception):
    """A train step cannot be lowered for a TPU.

    Attributes:
        cause: What is wrong, in one sentence.
        layer: Name of the layer at fault; empty if unknown.
        line: The user's line, such as `"model.py:12"`; empty if unknown.
        cure: What to write instead; empty if unknown.
    """

    def __init__(self, cause: str, *, layer: str = "", line: str = "", cure: str = "") -> None:
        super().__init__(cause)
        self.layer, self.line, self.cause, self.cure = layer, line, cause, cure
