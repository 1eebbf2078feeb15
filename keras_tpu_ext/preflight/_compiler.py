"""Running the TPU compiler in a process of its own, with a time limit, and keeping what it made."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext.errors import MissingExtraError, PreflightError
from keras_tpu_ext.preflight.targets import Target

_FORMAT = 3  # of what is kept; another number finds nothing of before
_WORKER = Path(__file__).with_name("_compile_worker.py")
# What a machine with a TPU sets for its own slice, and what would send the process looking for one.
_OF_A_SLICE = ("TPU_", "CLOUD_TPU_", "MEGASCALE_", "XRT_")
_TICK = 0.2  # seconds


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a program.

    Attributes:
        hlo: The text of the compiled module; empty where it does not compile.
        facts: What else it says, see `_compile_worker.py`.
        error: Why it does not compile; empty where it does.
        was_kept: Whether it was compiled in an earlier call.
    """

    hlo: str
    facts: dict[str, Any]
    error: str = ""
    was_kept: bool = False


def compile_for(
    target: Target,
    lowered: LoweredStep,
    *,
    timeout_s: float,
    cache_dir: str | os.PathLike[str] | None,
    progress: Callable[[float], None],
) -> Compiled:
    """Compile a program for a target.

    Args:
        target: What to compile for.
        lowered: The program.
        timeout_s: Seconds after which the compiler is ended.
        cache_dir: Folder in which results are kept, or `None` to keep none.
        progress: Called now and then with the seconds that it has taken.

    Raises:
        MissingExtraError: If JAX or libtpu is not installed.
        PreflightError: If the compiler took too long, or ended without a result.
    """
    versions = compiler_versions()
    job = {
        "topology": target.topology,
        "options": target.topology_options,
        "partitions": lowered.partitions,
        "results": lowered.results,
    }
    environment = _environment(target)
    key = _key(lowered.identity, job, versions, environment.get("LIBTPU_INIT_ARGS", ""))
    kept = None if cache_dir is None else Path(cache_dir) / key
    if kept is not None and (found := _read(kept)) is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="keras_tpu_ext_preflight_") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "program").write_bytes(lowered.program)
        status = _wait(folder, environment, timeout_s, progress, target)
        if not (folder / "result.json").exists():
            raise PreflightError(_no_result(target, status, (folder / "printed").read_text(errors="replace")))
        facts = json.loads((folder / "result.json").read_text())
        error = facts.pop("error", "")
        hlo = "" if error else (folder / "module.hlo").read_text()
    compiled = Compiled(hlo, {**facts, "versions": versions}, error)
    # Of errors only the one that is a result: others may come of the machine.
    if kept is not None and (not error or "RESOURCE_EXHAUSTED" in error):
        _write(kept, compiled)
    return compiled


def compiler_versions() -> dict[str, str]:
    """Return the versions of what compiles, without importing it.

    Raises:
        MissingExtraError: If something is not installed.
    """
    found = {}
    for name in ("jax", "jaxlib", "libtpu"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(name) is None:
                raise MissingExtraError(
                    f"preflight asks the TPU compiler, and this Python has no {name}. It needs no TPU and takes "
                    "0.5 GB of disk. Write: pip install 'keras-tpu-ext[preflight]'"
                ) from None
            found[name] = "unknown"
    return found


def default_cache_dir() -> Path:
    """Return the folder in which results are kept where nothing else is said."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "keras_tpu_ext" / "preflight"


def _environment(target: Target) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_SLICE)}
    return {
        **inherited,
        "LIBTPU_INIT_ARGS": " ".join([target.flags, os.environ.get("LIBTPU_INIT_ARGS", "")]).strip(),
        "JAX_PLATFORMS": "cpu",  # nothing is run on a TPU, it is compiled for one only
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # beside a process that trains, or compiles as well
        "TPU_SKIP_MDS_QUERY": "1",  # nobody is asked over the network which TPU this is
        "PYTHONSAFEPATH": "1",  # or this folder comes first in the path
    }


def _wait(
    folder: Path, environment: dict[str, str], timeout_s: float, progress: Callable[[float], None], target: Target
) -> int:
    # A file and no pipe: the compiler prints as much as it likes, and nothing waits for who holds a pipe open.
    with (folder / "printed").open("wb") as out:
        command = [sys.executable, str(_WORKER), str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        begun = time.monotonic()
        try:
            while process.poll() is None:
                seconds = time.monotonic() - begun
                if seconds > timeout_s:
                    raise PreflightError(
                        f"The compiler was not done for {target.name} after {timeout_s:g} s. Give it more time, "
                        f"timeout_s={2 * timeout_s:g}, or fewer layers."
                    )
                progress(seconds)
                time.sleep(_TICK)
            return process.returncode
        finally:  # also where the user interrupts
            if process.poll() is None:
                process.kill()
                process.wait()


def _no_result(target: Target, status: int, printed: str) -> str:
    lines = [line for line in printed.splitlines() if line.strip()][-8:]
    text = f"The compiler for {target.name} ended with status {status} and no result."
    return "\n".join([text, "The last lines that it printed:", *(f"  {line}" for line in lines)] if lines else [text])


def _key(program: bytes, job: dict[str, Any], versions: dict[str, str], arguments: str) -> str:
    said = json.dumps([_FORMAT, job, versions, arguments], sort_keys=True).encode()
    return hashlib.sha256(said + program).hexdigest()[:32]


def _read(kept: Path) -> Compiled | None:
    try:
        with gzip.open(kept.with_suffix(".json.gz"), "rt") as file:
            found = json.load(file)
        return Compiled(found["hlo"], found["facts"], found["error"], was_kept=True)
    except (OSError, EOFError, zlib.error, ValueError, KeyError):  # not there, or not whole
        return None


def _write(kept: Path, compiled: Compiled) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        with gzip.open(part, "wt", compresslevel=3) as file:
            json.dump({"hlo": compiled.hlo, "facts": compiled.facts, "error": compiled.error}, file)
        part.replace(kept.with_suffix(".json.gz"))
    except OSError:  # a full or read-only disk is no reason to lose the result
        return
