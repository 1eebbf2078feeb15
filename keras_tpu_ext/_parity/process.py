"""Running one process of a parity check, and saying plainly why it failed where it did."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_tpu_ext._parity.job import Failure, Job, Outcome
from keras_tpu_ext.errors import ArgumentError, ParityCheckError

_MARK = "KERAS_TPU_EXT_IN_PARITY_CHECK"


def refuse_inside_a_check() -> None:
    """Refuse to start a check while a process of another one loads the user's file.

    Raises:
        ArgumentError: If this is such a process.
    """
    if os.environ.get(_MARK):
        raise ArgumentError(
            "check_parity runs when the file is imported, and each process of the check imports it. "
            'Put the call under `if __name__ == "__main__":`.'
        )


def run_worker(job: Job, timeout_s: float) -> Outcome:
    """Do `job` in a fresh process.

    Args:
        job: What to do.
        timeout_s: Seconds after which it is ended.

    Raises:
        ArgumentError: If what the user gave cannot be checked.
        ParityCheckError: If the process failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="keras_tpu_ext_parity_") as name:
        folder = Path(name)
        (folder / "job").write_bytes(pickle.dumps(job))
        status = _wait(folder, job, timeout_s)
        written = folder / "outcome"
        outcome = pickle.loads(written.read_bytes()) if written.exists() else None
        printed = (folder / "stderr").read_text(errors="replace")
    if isinstance(outcome, Outcome):
        return outcome
    if isinstance(outcome, Failure):
        if outcome.is_argument:
            raise ArgumentError(outcome.text)
        raise ParityCheckError(f"{job.builder.label} failed {_where(job)}: {outcome.text}{_last_lines(printed)}")
    raise ParityCheckError(
        f"The process {_where(job)} ended with status {status} and no result.{_last_lines(printed)}"
    )


def _wait(folder: Path, job: Job, timeout_s: float) -> int:
    # Files and no pipes: what a process of the user's leaves behind may hold a pipe open for ever.
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        command = [sys.executable, "-m", "keras_tpu_ext._parity.worker", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=_environment(job))
        try:
            return process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ParityCheckError(
                f"The process {_where(job)} was not done after {timeout_s:g} s. "
                f"Give it more time, timeout_s={2 * timeout_s:g}, or a smaller batch, model or number of `steps`."
            ) from error
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _environment(job: Job) -> dict[str, str]:
    """Return the environment of this process, with both sides on the CPU and its own path."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    if job.backend:
        inherited["KERAS_BACKEND"] = job.backend
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(job.path),
        "PYTHONSAFEPATH": "1",  # or the current folder comes before the rest of the path
        "CUDA_VISIBLE_DEVICES": "-1",  # a GPU rounds in its own way, and this process may hold it
        "JAX_PLATFORMS": "cpu",
        _MARK: "1",
    }


def _where(job: Job) -> str:
    return f"with {job.replicas} replicas" if job.distributed else "with one device"


def _last_lines(printed: str, count: int = 12) -> str:
    lines = [line for line in printed.splitlines() if line.strip()][-count:]
    return "\nThe last lines that it printed:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
