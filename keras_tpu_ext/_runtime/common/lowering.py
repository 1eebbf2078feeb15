"""A train step lowered for a TPU compiler, with the names needed to read the compiler's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_tpu_ext._runtime.common.layouts import VariableLayout


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A train step in StableHLO.

    Attributes:
        program: The module, as MLIR bytecode or text.
        partitions: True if it is the program of all devices, which the compiler partitions; False for that of one
            replica.
        examples: Examples in the batch of all replicas.
        batch_bytes: Bytes of that batch as the host sends it to the devices.
        layers: The names of the model's layers, at any depth.
        roles: What other parts of operation names stand for, such as `{"sgd": "(optimizer)"}`.
        arguments: The variables, such as `"conv1/kernel"`, by the program's names for its arguments.
        framework: Name of the framework.
        results: Number of leading results that are not variables; all others alias the variables that they update.
            `None` if the program says itself which arguments it donates.
        without_lines: The program without source locations, which change nothing; `None` if it has none.
        layouts: The layout of each variable of the model.
        complaints: Likely mistakes in these layouts.
    """

    program: bytes
    partitions: bool
    examples: int
    batch_bytes: int
    layers: tuple[str, ...]
    roles: Mapping[str, str]
    arguments: Mapping[str, str]
    framework: str
    results: int | None = None
    without_lines: bytes | None = None
    layouts: tuple[VariableLayout, ...] = ()
    complaints: tuple[str, ...] = ()

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
