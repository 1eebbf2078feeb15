"""A train step as a program for a TPU compiler, and what is needed to read what comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A train step in StableHLO.

    Attributes:
        program: It, in MLIR's bytecode or text.
        partitions: Whether it is that of all devices, which the compiler cuts up, and not that of one replica.
        examples: Examples in the batch of all replicas.
        batch_bytes: Bytes of that batch as the host gives it to the devices.
        layers: The names of the model's layers, at any depth.
        roles: What other names stand for in the names of operations, such as `{"sgd": "(optimizer)"}`.
        arguments: What the arguments hold, such as `"conv1/kernel"`, by the names that operations have for them.
        framework: What the framework is called.
        without_lines: The program without the user's lines, which change nothing; `None` where it has none.
        results: How many of the program's first results are no variables, where it is for the compiler's caller to
            let the others take the place of the variables' old values; `None` where the program says that itself.
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

    @property
    def identity(self) -> bytes:
        """What the result depends on."""
        if self.without_lines is None:
            return self.program
        # With the lines go the names of operations, which are those of the layers.
        return b"\n".join([self.without_lines, repr((self.layers, sorted(self.roles.items()))).encode()])


class LoweringError(Exception):
    """A train step cannot be made a program for a TPU.

    Attributes:
        layer: The layer at fault; empty where nobody knows.
        line: The line of the user's, such as `"model.py:12"`; empty likewise.
        cause: What is the matter, in one sentence.
        cure: What to write instead; empty likewise.
    """

    def __init__(self, cause: str, *, layer: str = "", line: str = "", cure: str = "") -> None:
        super().__init__(cause)
        self.layer, self.line, self.cause, self.cure = layer, line, cause, cure
