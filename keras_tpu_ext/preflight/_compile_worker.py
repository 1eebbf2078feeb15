"""The process that drives the TPU compiler: `python _compile_worker.py FOLDER`.

It is run as a file, so that nothing of this package, nor a framework but JAX, is imported. It reads `job.json` and
`program`, StableHLO in MLIR's bytecode, from the folder, and writes `module.hlo` and `result.json` there.

Private names of JAX that it leans on (tests/compiler/test_private_names.py watches them): `jax._src.compiler.
get_compile_options`, `jax._src.interpreters.mlir.make_ir_context`, `jax._src.lib.xla_client.DeviceList`, and of a
device's client `compile`. `jax.experimental.topologies` is public, but an experiment.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: str) -> int:
    """Compile what is in `folder`."""
    path = Path(folder)
    job = json.loads((path / "job.json").read_text())
    result = compile_program(job, (path / "program").read_bytes(), path / "module.hlo")
    (path / "result.json").write_text(json.dumps(result))
    return 0


def compile_program(job: dict[str, Any], program: bytes, out: Path) -> dict[str, Any]:
    """Compile a program, write its HLO to `out`, and return what else the compiler says of it: an error perhaps."""
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
    begun = time.monotonic()
    try:
        with mlir.make_ir_context():
            module = ir.Module.parse(_without_copies(program))
            if job["results"] is not None:
                _let_results_take_places(module, job["results"])
            executable = devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
    except Exception as error:  # whatever the compiler says is the result
        return {"error": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - begun
    out.write_text(executable.hlo_modules()[0].to_string())
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    return {
        "devices": count,
        "device_kind": devices[0].device_kind,
        "compile_seconds": seconds,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "flops": cost.get("flops"),
        "accessed_bytes": cost.get("bytes accessed"),
    }


def _without_copies(program: bytes) -> Any:
    """Return the program without `mhlo.copy`, as which TensorFlow returns variables and which no compiler takes."""
    if b"mhlo.copy" not in program:
        return program
    pattern = r"mhlo\.copy (%[\w#]+)(?: \{[^}]*\})? : (tensor<[^>]*>)"
    return re.sub(pattern, r"stablehlo.reshape \1 : (\2) -> \2", program.decode())


def _let_results_take_places(module: Any, others: int) -> None:
    """Let results behind the first `others` take the memory of arguments of the same type, in their order.

    So it is in training: a variable's new value takes the place of the old one.
    """
    from jaxlib.mlir import ir

    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    free = list(range(len(kind.inputs)))
    attributes: dict[int, Any] = {}
    for result in range(others, len(kind.results)):
        place = next((i for i in free if kind.inputs[i] == kind.results[result]), None)
        if place is not None:
            free.remove(place)
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
            attributes[place] = ir.DictAttr.get({"tf.aliasing_output": number})
    nothing = ir.DictAttr.get({})
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([attributes.get(i, nothing) for i in range(len(kind.inputs))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
