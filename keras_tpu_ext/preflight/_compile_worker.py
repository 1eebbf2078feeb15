"""The process that runs the TPU compiler: `python _compile_worker.py FOLDER ...`.

It is run as a file, so that it imports only JAX, not this package. It reads `job.json` and `program` (StableHLO)
from each folder, and writes `module.hlo`, `executable` and `result.json` there. If the job names a folder into which
the compiler writes its instructions, it writes those of Pallas kernels to `kernels.json` instead.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(*folders: str) -> int:
    """Compile the programs in folders, all for the same devices, or their kernels alone."""
    devices: Any = None
    for path in map(Path, folders):
        job, program = json.loads((path / "job.json").read_text()), (path / "program").read_bytes()
        devices = devices or _devices(job)
        if job["instructions"]:
            kernels = compile_kernels(devices[:1], program, Path(job["instructions"]))
            (path / "kernels.json").write_text(json.dumps(kernels))
        else:
            result = compile_program(job, devices, program, path / "module.hlo")
            (path / "result.json").write_text(json.dumps(result))
    return 0


def compile_program(job: dict[str, Any], devices: Any, program: bytes, out: Path) -> dict[str, Any]:
    """Compile a program and write its HLO to `out`; return its sizes and times, or the compiler's error."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    start = time.monotonic()
    try:
        with mlir.make_ir_context():
            module = ir.Module.parse(_replace_mhlo_copy(program))
            if job["results"] is not None:
                _donate_arguments(module, job["results"])
            options = _options(len(devices), partitions=job["partitions"])
            if job["compile_options"]:
                options = type(options).ParseFromString(base64.b64decode(job["compile_options"]))
            executable = _compile(module, devices, options)
    except TypeError:  # a bug in this program
        raise
    except Exception as error:  # any error of the compiler is a result
        return {"error": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - start
    try:
        out.write_text(executable.hlo_modules()[0].to_string())
    except Exception as error:  # libtpu writes what this jaxlib does not know
        return {"unreadable": f"{type(error).__name__}: {error}"}
    memory, first = executable.get_compiled_memory_stats(), devices[0]
    # A program for devices that are not here has a method of its own.
    serialize = getattr(executable, "serialize", None) or (lambda: first.client.serialize_executable(executable))
    out.with_name("executable").write_bytes(serialize())
    return {
        "machine": {
            "platform": first.platform,
            "build": first.client.platform_version.strip().splitlines()[-1],
            "device kind": first.device_kind,
            "devices": " ".join(map(str, devices)),
            "LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", ""),  # to which JAX adds for a TPU
        },
        "compile_seconds": seconds,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }


def compile_kernels(devices: Any, program: bytes, instructions: Path) -> dict[str, str]:
    """Compile each Pallas kernel of a program alone; return the instructions of each by its body."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    found: dict[str, str] = {}
    with mlir.make_ir_context():
        for kernel in _kernels(ir.Module.parse(_replace_mhlo_copy(program)).operation):
            body = json.loads(ir.StringAttr(kernel.attributes["backend_config"]).value)["custom_call_config"]["body"]
            if body not in found:
                before = set(instructions.iterdir())
                try:
                    _compile(_alone(kernel), devices, _options(1, partitions=0))
                except TypeError:  # a bug in this program
                    raise
                except Exception:  # alone it may get less memory: then nothing is known of it, and of others all
                    found[body] = ""
                else:
                    found[body] = _instructions_of_kernel(set(instructions.iterdir()) - before)
    return found


def _kernels(operation: Any) -> Iterator[Any]:
    """Yield the Pallas kernels in an operation."""
    from jaxlib.mlir import ir

    target = operation.attributes["call_target_name"] if operation.name == "stablehlo.custom_call" else None
    if target is not None and ir.StringAttr(target).value == "tpu_custom_call":
        yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _kernels(inner.operation)


def _alone(kernel: Any) -> Any:
    """Return a module that only calls a kernel."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    with kernel.location:
        module = ir.Module.create()
        kinds = [one.type for one in kernel.operands], [one.type for one in kernel.results]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", kinds)
            with ir.InsertionPoint(main.add_entry_block()):
                copy = kernel.clone()
                for i, argument in enumerate(main.arguments):
                    copy.operands[i] = argument
                func.ReturnOp(list(copy.results))
    return module


def _instructions_of_kernel(files: set[Path]) -> str:
    """Return the instructions of the kernel of a compilation, the longest of those that it has written."""
    texts = [path.read_text() for path in files if re.search(r"\d-final_bundles\.txt$", path.name)]
    return max(texts, key=len, default="")


def _devices(job: dict[str, Any]) -> Any:
    """Return the devices of a topology, of which there need be none, or those of the CPU."""
    import jax
    from jax.experimental import topologies

    if job["topology"] == "cpu":
        jax.config.update("jax_num_cpu_devices", job["devices"])
        return jax.devices()
    return topologies.get_topology_desc(platform="tpu", topology_name=job["topology"], **job["options"]).devices


def _options(count: int, *, partitions: int) -> Any:
    import numpy as np
    from jax._src import compiler

    shape = (1, count) if partitions else (count, 1)
    options = compiler.get_compile_options(*shape, device_assignment=np.arange(count).reshape(shape))
    build = options.executable_build_options
    build.use_spmd_partitioning = bool(partitions)
    build.use_shardy_partitioner = bool(partitions)
    return options


def _compile(module: Any, devices: Any, options: Any) -> Any:
    """Compile a module; JAX before 0.8 takes it as bytes, and JAX before 0.7 without devices."""
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client

    client, where = devices[0].client, xla_client.DeviceList(tuple(devices))
    compile_ = client.compile if devices[0].platform == "tpu" else getattr(client, "compile_and_load", client.compile)
    try:
        return compile_(module, where, options)
    except TypeError:
        program = mlir.module_to_bytecode(module)
    try:
        return compile_(program, where, options)
    except TypeError:
        return compile_(program, options)


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
    sys.exit(main(*sys.argv[1:]))
