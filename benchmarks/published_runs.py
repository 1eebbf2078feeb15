"""What `plan` says of whole trainings on TPUs, next to the wall time in the logs that were published of them.

    git clone https://github.com/mlcommons/training_results_v0.5 logs/training_results_v0.5
    git clone https://github.com/mlcommons/training_results_v0.7 logs/training_results_v0.7
    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/published_runs.py --logs logs

Batch, steps, evaluations and time are read from the logs, those of all trainings that were submitted of a kind; the
models are those of published_steps.py. The time is that from `run_start` to `run_stop`, of the log whose time is the
median. In v0.7 a run may compile before `run_start`; the plan counts it either way. Batches are here at once: what
the input of those runs cost is not known. The two runs on v4 were held out until the first time that this ran, and
were missed (1.64 and 1.38 of the time); since then their steps are in published_steps.py. The last line is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import _bert
import _resnet50
import harness
import keras
import numpy as np
import published_steps

import keras_tpu_ext as kte

EXAMPLES = {"resnet": (1281167, 50000), "bert": (0, 10000)}  # of an epoch and of an evaluation
_ENTRY = re.compile(r":::MLPv0.5.0 \w+ (?P<seconds>[\d.]+) \(.*?\) (?P<key>\w+)(?:: (?P<value>.*))?")


class Run(NamedTuple):
    """Trainings of one kind, and where their logs are."""

    target: str
    model: Literal["resnet", "bert"]
    logs: str


V05, V07 = "training_results_v0.5/v0.5.0/google/{}/results/tpu/resnet", "training_results_v0.7/Google/results/{}"
RUNS = (
    Run("v3-8", "resnet", V05.format("cloud_v3.8/resnet-tpuv3-8")),
    Run("v2-8", "resnet", V05.format("cloud_v2.8/resnet-tpuv2-8")),
    Run("v3-32", "resnet", V05.format("research_v3.32/resnet-tpuv3-32")),
    Run("v3-32", "resnet", V07.format("tpu-v3-32-TF2.0/resnet")),
    Run("v3-32", "bert", V07.format("tpu-v3-32-TF2.0/bert")),
    Run("v4-16", "resnet", V07.format("tpu-v4-16-TF/resnet")),
    Run("v4-16", "bert", V07.format("tpu-v4-16-TF/bert")),
)


class Log(NamedTuple):
    """What a log says of a training."""

    batch: int
    steps: int
    evaluations: int
    seconds: float


def entries(path: Path) -> list[tuple[float, str, Any, dict[str, Any]]]:
    """Return the time in seconds, the key, the value and the metadata of each entry of a log, in either form."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith(":::MLLOG "):
            entry = json.loads(line.removeprefix(":::MLLOG "))
            found.append((entry["time_ms"] / 1e3, entry["key"], entry["value"], entry["metadata"]))
        elif match := _ENTRY.match(line):
            text = match["value"]
            value = json.loads(text) if text and text[0] in "{[0123456789" else text
            found.append((float(match["seconds"]), match["key"], value, value if isinstance(value, dict) else {}))
    return found


def read(path: Path, model: str) -> Log:
    """Return what a log says.

    A log of v0.5 counts epochs from 0 in its accuracies; one of v0.7 says how many epochs, or steps of BERT, a block
    has.
    """
    found = entries(path)
    times = {key: seconds for seconds, key, _, _ in found}
    batch = next(value for _, key, value, _ in found if key in ("global_batch_size", "input_batch_size"))
    accuracies = [more for _, key, _, more in found if key == "eval_accuracy"]
    starts = [more["epoch_count"] for _, key, _, more in found if key == "block_start"]
    blocks = sum(starts) or accuracies[-1]["epoch"] + 1
    per_epoch = -(-EXAMPLES[model][0] // batch) if model == "resnet" else 1
    return Log(batch, blocks * per_epoch, len(accuracies), times["run_stop"] - times["run_start"])


class Ready(keras.utils.PyDataset):
    """Batches of zeros, which take no time and no memory."""

    def __init__(self, batch: Any, size: int, steps: int) -> None:
        super().__init__()
        self._batch = keras.tree.map_structure(
            lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (size, *leaf.shape[1:])), batch
        )
        self._steps = steps

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return self._steps

    def __getitem__(self, index: int) -> Any:
        return self._batch


def planned(run: Run, log: Log) -> Any:
    """Return the plan of a training; an epoch is what lies between two evaluations."""
    model: Callable[[], Any]
    model, batch = (
        (published_steps.resnet, _resnet50.batch) if run.model == "resnet" else (_bert.compiled, _bert.batch)
    )
    evaluated = Ready(batch(), log.batch, -(-EXAMPLES[run.model][1] // log.batch))
    data = Ready(batch(), log.batch, round(log.steps / log.evaluations))
    return kte.plan(model, data, epochs=log.evaluations, target=run.target, validation_data=evaluated, progress=False)


def main() -> None:
    """Print a line for each run, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--logs", type=Path, required=True, help="folder with both repositories")
    parser.add_argument("--only", default="", help="text that is in the logs of the runs to be done")
    options = parser.parse_args()
    rows = []
    for run in RUNS:
        if options.only not in run.logs:
            continue
        logs = [read(path, run.model) for path in sorted((options.logs / run.logs).glob("result_*.txt"))]
        middle = sorted(logs, key=lambda log: log.seconds)[len(logs) // 2]
        report = planned(run, middle)
        low, high = report.seconds_range
        is_in = low <= middle.seconds <= high
        print(
            f"{run.target:6s} {run.model:7s} batch {middle.batch:5,}  {middle.steps:6,} steps, "
            f"{middle.evaluations:2} evaluations  took {middle.seconds / 3600:6.3f} h  "
            f"planned {report.seconds / 3600:6.3f} h "
            f"({low / 3600:.3f} to {high / 3600:.3f})  {report.seconds / middle.seconds:.3f}"
            f"{'' if is_in else '  OUT'}",
            flush=True,
        )
        rows.append({
            **run._asdict(), **middle._asdict(), "runs": len(logs), "planned": report.seconds,
            "range": [low, high], "buckets": dict(report.buckets), "in_range": is_in,
        })  # fmt: skip
    print(f"{sum(row['in_range'] for row in rows)} of {len(rows)} in the range")
    harness.report("published_runs", rows=rows)


if __name__ == "__main__":
    main()
