"""Runs the TPU compiler in its own process, with a time limit and a cache."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.checks.schema import (
    MismatchError,
    fields,
    integer,
    mapping,
    number,
    one_of,
    parse_json,
    row,
    text,
)
from keras_tpu_ext.errors import MissingExtraError, PreflightError
from keras_tpu_ext.machine.system import installed_version
from keras_tpu_ext.machine.versions import NEWEST_TESTED
from keras_tpu_ext.output.progress import last_lines, run_process
from keras_tpu_ext.preflight._hlo.flops import KERNEL, digest_of
from keras_tpu_ext.preflight._hlo.kernel_schedule import KernelCycles, cycles_of
from keras_tpu_ext.preflight.targets import Target
from keras_tpu_ext.resume.storage import folder_of

_CACHE_VERSION = 7
_CACHE_BYTES = 1 << 28  # unpacked; a file that holds more is never read
_WORKER = Path(__file__).with_name("_compile_worker.py")
_FACTS = {
    "compile_seconds": number,
    **dict.fromkeys(("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes", "code_bytes"), integer()),
    "versions": mapping(text),
    "kernels": mapping(row(number, number, number)),
}
# What makes the compiler write the instructions of a program; a libtpu that does not know it ends with an error.
_WRITES_INSTRUCTIONS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
)
# What is in a cached file, for a step that compiles and for one that does not.
_IS_COMPILED = fields({"hlo": text, "facts": fields(_FACTS), "error": one_of("")})
_IS_TOO_LARGE = fields({"hlo": one_of(""), "facts": fields({"versions": mapping(text)}), "error": text})
# Variables that describe this machine's own TPU, which the compiler must not look for.
_TPU_VARIABLES = ("TPU_", "CLOUD_TPU_", "MEGASCALE_", "XRT_")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's result for a program."""

    hlo: str  # text of the compiled module; empty if it does not compile
    facts: dict[str, Any]  # sizes, times and versions, see `_compile_worker.py`, and the cycles of kernels
    error: str = ""  # the compiler's error; empty if it compiles
    from_cache: bool = False  # whether it was compiled in an earlier call
    # The compiled program as JAX serialises it, and what it was compiled for. They are not kept in the cache, where
    # whoever can write could put machine code.
    executable: bytes = b""
    machine: dict[str, str] = dataclasses.field(default_factory=dict)


def compile_for(
    target: Target,
    lowered: LoweredStep,
    *,
    timeout_s: float,
    cache_dir: str | os.PathLike[str] | None,
    progress: Callable[[float], None],
) -> Compiled:
    """Compile a lowered step for a TPU slice."""
    cached = None if cache_dir is None else Path(cache_dir) / f"{_cache_key(target, lowered)}.json.gz"
    if cached is not None and (found := _read_cache(cached)) is not None:
        return found
    (compiled,) = compile_all(target, [lowered], timeout_s=timeout_s, progress=progress)
    if not compiled.error:
        compiled.facts["kernels"] = _kernels(target, lowered, timeout_s, progress) if KERNEL in compiled.hlo else {}
    # No other errors: they may be caused by the machine.
    if cached is not None and (not compiled.error or "RESOURCE_EXHAUSTED" in compiled.error):
        _write_cache(cached, compiled)
    return compiled


def compile_all(
    target: Target, lowered: Sequence[LoweredStep], *, timeout_s: float, progress: Callable[[float], None]
) -> list[Compiled]:
    """Compile lowered steps for a TPU slice, in one process of the compiler, without cache and cycles of kernels."""
    versions = compiler_versions(target)
    with tempfile.TemporaryDirectory(prefix="keras_tpu_ext_preflight_") as name:
        folders = [_written(Path(name) / str(number), target, one) for number, one in enumerate(lowered)]
        command, printed = [sys.executable, str(_WORKER), *map(str, folders)], Path(name) / "printed"
        try:
            most = timeout_s * len(folders)
            status = run_process(command, _environment(target), printed, timeout_s=most, progress=progress)
        except subprocess.TimeoutExpired as error:
            raise PreflightError(
                f"The compiler was not done for {target.name} after {most:g} s. Give it more time, "
                f"timeout_s={2 * timeout_s:g}, or fewer layers."
            ) from error
        if not all((folder / "result.json").exists() for folder in folders):
            raise PreflightError(_crash_message(target, status, last_lines(printed, 8)))
        return [_compiled(folder, target, versions) for folder in folders]


def compiler_versions(target: Target) -> dict[str, str]:
    """Return the versions of jax, jaxlib and, for a TPU, libtpu, without importing them."""
    found = {}
    for name in ("jax", "jaxlib") if target.is_cpu else ("jax", "jaxlib", "libtpu"):
        version = installed_version(name)
        if version is None:
            raise MissingExtraError(
                f"preflight asks the TPU compiler, and this Python has no {name}. It needs no TPU and takes "
                "0.5 GB of disk. Write: pip install 'jax[tpu]'"
            )
        found[name] = version
    return found


def default_cache_dir() -> Path:
    """Return the user's cache folder for preflight."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "keras_tpu_ext" / "preflight"


def _environment(target: Target) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_TPU_VARIABLES)}
    if target.is_cpu:
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
        inherited["XLA_FLAGS"] = flags  # the job has the number of devices
    else:
        inherited["JAX_FORCE_TPU_INIT"] = "1"  # JAX sets libtpu's arguments as it does beside a TPU
    return {
        **inherited,
        "JAX_PLATFORMS": "cpu",  # it compiles for a TPU, but runs nothing on one
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # next to a process that trains or compiles
        "TPU_SKIP_MDS_QUERY": "1",  # do not ask a metadata server for this machine's TPU
        "PYTHONSAFEPATH": "1",  # keep this folder out of sys.path
    }


def _job(target: Target, lowered: LoweredStep) -> dict[str, Any]:
    return {
        "topology": target.topology,
        "options": target.topology_options,
        "devices": target.devices,
        "partitions": lowered.partitions,
        "results": lowered.results,
        "compile_options": base64.b64encode(lowered.compile_options).decode(),
    }


def _written(folder: Path, target: Target, lowered: LoweredStep, instructions: str = "") -> Path:
    """Return a new folder with what `_compile_worker.py` reads."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({**_job(target, lowered), "instructions": instructions}))
    (folder / "program").write_bytes(lowered.program)
    return folder


def _compiled(folder: Path, target: Target, versions: dict[str, str]) -> Compiled:
    """Return what `_compile_worker.py` has written."""
    facts = json.loads((folder / "result.json").read_text())
    if "unreadable" in facts:
        raise PreflightError(
            f"The step compiles for {target.name}, but jaxlib {versions['jaxlib']} cannot read the program that "
            f"libtpu {versions['libtpu']} has compiled ({facts['unreadable'].splitlines()[0]}). "
            "Write: pip install --upgrade 'jax[tpu]'"
        )
    facts["versions"] = versions
    if "error" in facts:
        return Compiled("", facts, facts.pop("error"))
    hlo, executable = (folder / "module.hlo").read_text(), (folder / "executable").read_bytes()
    return Compiled(hlo, facts, executable=executable, machine=facts.pop("machine", {}))


def _kernels(
    target: Target, lowered: LoweredStep, timeout_s: float, progress: Callable[[float], None]
) -> dict[str, KernelCycles]:
    """Compile the kernels of a program alone; return the cycles of each, where the compiler tells, by its digest."""
    environment = _environment(target)
    with tempfile.TemporaryDirectory(prefix="keras_tpu_ext_preflight_") as name:
        arguments = f"{environment.get('LIBTPU_INIT_ARGS', '')} {_WRITES_INSTRUCTIONS.format(name)}"
        folder = _written(Path(name) / "program", target, lowered, name)
        command = [sys.executable, str(_WORKER), str(folder)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            environment |= {"LIBTPU_INIT_ARGS": arguments}
            run_process(command, environment, folder / "printed", timeout_s=timeout_s, progress=progress)
        found = folder / "kernels.json"
        texts = json.loads(found.read_text()) if found.exists() else {}
    cycles = {digest_of(body): cycles_of(text) for body, text in texts.items()}
    return {digest: one for digest, one in cycles.items() if one is not None}


def _crash_message(target: Target, status: int, printed: str) -> str:
    text = f"The compiler for {target.name} ended with status {status} and no result."
    if re.match(r"  (ImportError|ModuleNotFoundError|AttributeError)", printed.rpartition("\n")[2]):
        newest = NEWEST_TESTED["jax"]
        text += f" This release was tested with jax up to {newest}. Write: pip install 'jax[tpu]=={newest}'"
    return text + printed


def _cache_key(target: Target, lowered: LoweredStep) -> str:
    arguments = _environment(target).get("LIBTPU_INIT_ARGS", "")
    settings = [_CACHE_VERSION, _job(target, lowered), compiler_versions(target), arguments]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode() + lowered.identity).hexdigest()[:32]


def _read_cache(path: Path) -> Compiled | None:
    try:
        if not path.is_file():  # opening a FIFO would wait for its writer
            return None
        with gzip.open(path) as file:
            content = file.read(_CACHE_BYTES + 1)
        if len(content) > _CACHE_BYTES:
            return None
        found = parse_json(content)
        has_failed = isinstance(found, dict) and found.get("error") != ""
        found = (_IS_TOO_LARGE if has_failed else _IS_COMPILED)(found, "")
    except (OSError, EOFError, zlib.error, MismatchError):  # missing or damaged
        return None
    if has_failed and "RESOURCE_EXHAUSTED" not in found["error"]:
        return None
    return Compiled(**found, from_cache=True)


def _write_cache(path: Path, compiled: Compiled) -> None:
    content = json.dumps({"hlo": compiled.hlo, "facts": compiled.facts, "error": compiled.error}).encode()
    with contextlib.suppress(OSError):  # a full or read-only disk must not lose the result
        folder_of(str(path.parent)).write(path.name, lambda file: file.write(gzip.compress(content, compresslevel=3)))
