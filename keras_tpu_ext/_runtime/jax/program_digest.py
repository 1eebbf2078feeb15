"""A name for a lowered program: the same wherever it is lowered, and from whatever lines of code."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from typing import Any

from keras_tpu_ext._runtime.common.missing_names import private

_ir: Any = private("jax._src.lib.mlir:ir")
_make_ir_context: Any = private("jax._src.interpreters.mlir:make_ir_context")
_tpu_dialect: Any = private("jax._src.lib:tpu")


def digest_of(module: Any) -> str:
    """Return the SHA-256 of a module of StableHLO, an `ir.Module`, as 64 hexadecimal digits; see `canonical_text`."""
    return hashlib.sha256(canonical_text(module).encode()).hexdigest()


def canonical_text(module: Any) -> str:
    """Return the text of a module without what the compiler does not need.

    That is where the code came from, also in Pallas kernels, and the names of the module and of its inner functions.
    """
    with module.context:
        copy = module.operation.clone()
        copy.attributes["sym_name"] = _ir.StringAttr.get("step")
        functions = [op.operation for block in copy.regions[0] for op in block if op.operation.name == "func.func"]
        for i, function in enumerate(functions):
            name = _ir.StringAttr(function.attributes["sym_name"]).value
            if name != "main":
                # Not a name that JAX gives; callers are renamed first, while the old name is still there.
                _ir.SymbolTable.replace_all_symbol_uses(name, f"<{i}>", copy)
                _ir.SymbolTable.set_symbol_name(function, f"<{i}>")
        copy.walk(_without_origin)
        return str(copy.get_asm())


def _without_origin(operation: Any) -> Any:
    """Replace the body of a Pallas kernel, bytecode with files and lines in it, by its text."""
    name = operation.attributes["call_target_name"] if operation.name == "stablehlo.custom_call" else None
    if name is not None and _ir.StringAttr(name).value == "tpu_custom_call":
        config = json.loads(_ir.StringAttr(operation.attributes["backend_config"]).value)
        inner = config["custom_call_config"]
        inner["body"] = _kernel_text(inner["body"])
        operation.attributes["backend_config"] = _ir.StringAttr.get(json.dumps(config, sort_keys=True))
    return _ir.WalkResult.ADVANCE


@functools.lru_cache(maxsize=256)  # the kernels of a model's layers are the same
def _kernel_text(body: str) -> str:
    context = _make_ir_context()
    _tpu_dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        kernel = _ir.Module.parse(base64.b64decode(body))
        kernel.operation.attributes["sym_name"] = _ir.StringAttr.get("kernel")
        return str(kernel.operation.get_asm())
