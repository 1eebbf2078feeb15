"""The processes of a parity check: their tasks, results and failures."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from keras_tpu_ext.errors import ArgumentError, ParityCheckError
from keras_tpu_ext.output.progress import Progress, last_lines, run_process
from keras_tpu_ext.tools.parity.batches import Batch
from keras_tpu_ext.tools.parity.checks import Part
from keras_tpu_ext.tools.parity.function_reference import FunctionReference
from keras_tpu_ext.tools.parity.inspection import Facts

_MARK = "KERAS_TPU_EXT_IN_PARITY_CHECK"


@dataclasses.dataclass(frozen=True)
class Task:
    """The work of one process, which is pickled for it."""

    build_model: FunctionReference  # the function that makes the model
    batch: Batch  # `x`, `y` and `sample_weight` as structures of arrays; `None` if there is none
    replicas: int  # number of replicas of the check
    distributed: bool  # whether this process has the replicas, not one device
    steps: int  # number of training steps with the batch
    start: list[Any] | None  # the weights to start from; `None` starts from the model's own
    path: list[str]  # the `sys.path` with which the function is found
    backend: str = ""  # Keras's backend in this process; empty for that of the parent process
    exact: bool = True  # whether plain Keras models use the exact step
    as_on_tpu: bool = False  # whether Keras takes its TPU code paths


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of one process."""

    facts: Facts  # properties of the model
    start: list[Any]  # the weights that it started from
    parts: dict[str, Part]  # the result of each part of the check, by name
    rounding: dict[str, Part]  # the same parts on one device, with rounding alone changed; empty on several replicas


def refuse_nested_check() -> None:
    """Check that this is not a process of another check that is loading the user's file."""
    if os.environ.get(_MARK):
        raise ArgumentError(
            "check_parity runs when the file is imported, and each process of the check imports it. "
            'Put the call under `if __name__ == "__main__":`.'
        )


def run_worker(task: Task, timeout_s: float, *, progress: bool = False) -> Outcome:
    """Run `task` in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="keras_tpu_ext_parity_") as name:
        folder = Path(name)
        (folder / "task").write_bytes(pickle.dumps(task))
        with Progress(f"parity: training {_where(task)}", shown=progress) as line:
            status = _wait(folder, task, timeout_s, line)
        # What the worker returns, or the error or its text.
        outcome: Outcome | ArgumentError | str | None
        written = folder / "outcome"
        outcome = pickle.loads(written.read_bytes()) if written.exists() else None
        printed = last_lines(folder / "printed", 12)
    if isinstance(outcome, Outcome):
        return outcome
    if isinstance(outcome, ArgumentError):
        raise outcome
    if outcome is None:
        failed = f"The process {_where(task)} ended with status {status} and no result."
    else:
        failed = f"{task.build_model.label} failed {_where(task)}: {outcome}"
    raise ParityCheckError(failed + printed)


def _wait(folder: Path, task: Task, timeout_s: float, line: Progress) -> int:
    command = [sys.executable, "-m", "keras_tpu_ext.tools.parity.worker", str(folder)]
    try:
        return run_process(command, _environment(task), folder / "printed", timeout_s=timeout_s, progress=line.update)
    except subprocess.TimeoutExpired as error:
        raise ParityCheckError(
            f"The process {_where(task)} was not done after {timeout_s:g} s. "
            f"Give it more time, timeout_s={2 * timeout_s:g}, or a smaller batch, model or number of `steps`."
        ) from error


def _environment(task: Task) -> dict[str, str]:
    """Return the environment of the worker: this process's, but on the CPU and with its own path."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    if task.backend:
        inherited["KERAS_BACKEND"] = task.backend
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(task.path),
        "PYTHONSAFEPATH": "1",  # otherwise the current folder comes first in the path
        "CUDA_VISIBLE_DEVICES": "-1",  # a GPU rounds differently, and the parent process may hold it
        "JAX_PLATFORMS": "cpu",
        _MARK: "1",
    }


def _where(task: Task) -> str:
    return f"with {task.replicas} replicas" if task.distributed else "with one device"
