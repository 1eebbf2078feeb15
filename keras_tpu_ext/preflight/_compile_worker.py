"""The process that runs the TPU compiler: `python _compile_worker.py FOLDER`.

It is run as a file, so that it imports only JAX, not this package. It reads `job.json` and `program` (StableHLO)
from the folder, and writes `module.hlo` and `result.json` there.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: str) -> int:
    """Compile the program in `folder`."""
    path = Path(folder)
    job = json.loads((path / "job.json").read_text())
    result = compile_program(job, (path / "program").read_bytes(), path / "module.hlo")
    (path / "result.json").write_text(json.dumps(result))
    return 0


def compile_program(job: dict[str, Any], program: bytes, out: Path) -> dict[str, Any]:
    """Compile a program and write its HLO to `out`; return its sizes and times, or the compiler's error."""
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    topology = topologies.get_topology_desc(platform="tpu", topology_name=job["topology"], **job["options"])
    devices = topology.devices
    count = len(devices)
    shape = (1, count) if job["partitions"] else (count, 1)
    options = compiler.get_compile_options(*shape, device_assignment=np.arange(count).reshape(shape))
    build = options.executable_build_options
    build.use_spmd_partitioning = bool(job["partitions"])
    build.use_shardy_partitioner = bool(job["partitions"])
    start = time.monotonic()
    try:
        with mlir.make_ir_context():
            module = ir.Module.parse(_replace_mhlo_copy(program))
            if job["results"] is not None:
                _donate_arguments(module, job["results"])
            executable = _compile(devices[0].client, module, xla_client.DeviceList(tuple(devices)), options)
    except TypeError:  # a bug in this program
        raise
    except Exception as error:  # any error of the compiler is a result
        return {"error": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - start
    try:
        out.write_text(executable.hlo_modules()[0].to_string())
    except Exception as error:  # libtpu writes what this jaxlib does not know
        return {"unreadable": f"{type(error).__name__}: {error}"}
    memory = executable.get_compiled_memory_stats()
    return {
        "compile_seconds": seconds,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }


def _compile(client: Any, module: Any, devices: Any, options: Any) -> Any:
    """Compile a module; JAX before 0.8 takes it as bytes, and JAX before 0.7 without devices."""
    from jax._src.interpreters import mlir

    try:
        return client.compile(module, devices, options)
    except TypeError:
        program = mlir.module_to_bytecode(module)
    try:
        return client.compile(program, devices, options)
    except TypeError:
        return client.compile(program, options)


def _replace_mhlo_copy(program: bytes) -> Any:
    """Replace `mhlo.copy`, which TensorFlow puts around returned variables and the compiler does not accept."""
    if b"mhlo.copy" not in program:
        return program
    pattern = r"mhlo\.copy (%[\w#]+)(?: \{[^}]*\})? : (tensor<[^>]*>)"
    return re.sub(pattern, r"stablehlo.reshape \1 : (\2) -> \2", program.decode())


def _donate_arguments(module: Any, first: int) -> None:
    """Alias each result from `first` on with an argument of the same type, as a variable's new value and its old."""
    from jaxlib.mlir import ir

    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    free = list(range(len(signature.inputs)))
    attributes: dict[int, Any] = {}
    for result in range(first, len(signature.results)):
        argument = next((i for i in free if signature.inputs[i] == signature.results[result]), None)
        if argument is not None:
            free.remove(argument)
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
            attributes[argument] = ir.DictAttr.get({"tf.aliasing_output": number})
    empty = ir.DictAttr.get({})
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes.get(i, empty) for i in range(len(signature.inputs))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
