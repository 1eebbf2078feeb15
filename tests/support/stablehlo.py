"""The text of a lowered program."""

from jax._src.interpreters import mlir
from jaxlib.mlir import ir


def text_of(lowered):
    with mlir.make_ir_context():
        return str(ir.Module.parse(lowered.program))
