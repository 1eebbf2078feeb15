"""What the benchmarks share: their options, paired timing and its statistics, another checkout, and the report.

Whatever disturbs a shared machine for a second or more hits both turns of a pair, so that their ratio says more than
either time. Import this before a framework: it keeps TensorFlow's log quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30


def parser(doc: str, *, against: bool = False) -> argparse.ArgumentParser:
    """A parser that a script's docstring describes, with `--against` if the script can compare two checkouts."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    if against:
        made.add_argument("--against", type=Path, metavar="PATH", help="compare this checkout with the one in PATH")
    return made


@contextlib.contextmanager
def memory_used() -> Iterator[dict[str, float]]:
    """Yield a dict that has the most memory in GiB at the end: of this process, of its largest child, of all at once.

    The last is what a machine needs. It is sampled ten times a second, as resident memory.
    """
    import psutil

    found = {"python_gib": 0.0, "compiler_gib": 0.0, "at_once_gib": 0.0}
    this, ended = psutil.Process(), threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            total = 0
            for process in (this, *this.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
            found["at_once_gib"] = max(found["at_once_gib"], total / GIB)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield found
    finally:
        ended.set()
        sampler.join()
        for name, who in (("python_gib", resource.RUSAGE_SELF), ("compiler_gib", resource.RUSAGE_CHILDREN)):
            found[name] = resource.getrusage(who).ru_maxrss * 1024 / GIB


def timed(run: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Run something and return its seconds."""
    begun = time.perf_counter()
    run(*args, **kwargs)
    return time.perf_counter() - begun


def interleave(runs: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 1) -> dict[str, list[float]]:
    """Let every run have its turn in each round, and return the seconds of all turns by name.

    Each round begins with another run, A B B A for two, so that none gains by its place.

    Args:
        runs: By name, what runs once and returns its seconds.
        rounds: Number of rounds that count.
        warm_up: Number of rounds before them that do not.
    """
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = runs[name]()
            if turn >= 0:
                times[name].append(seconds)
    return times


def paired(a: Callable[[], float], b: Callable[[], float], *, pairs: int, warm_up: int = 1) -> dict[str, Any]:
    """Run `a` and `b` in turns; return the summary of the paired ratios a / b, the ratios and the median seconds."""
    times = interleave({"a": a, "b": b}, pairs, warm_up=warm_up)
    ratios = [one / other for one, other in zip(times["a"], times["b"], strict=True)]
    seconds = {f"{name}_s": float(np.median(found)) for name, found in times.items()}
    return {**summarize(ratios), **seconds, "ratios": [round(ratio, 4) for ratio in ratios]}


def summarize(ratios: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of paired ratios, with the bootstrap's 95 % confidence interval of the median."""
    resampled = np.random.default_rng(0).choice(ratios, (5000, len(ratios)))
    interval = np.quantile(np.median(resampled, axis=1), (0.025, 0.975)).tolist()
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return {"ratio": median, "quartiles": [low, high], "interval": interval, "pairs": len(ratios)}


def in_words(row: Mapping[str, Any]) -> str:
    """The median of a summary with its confidence interval."""
    low, high = row["interval"]
    return f"ratio {row['ratio']:.3f} (95 % confidence interval {low:.3f} to {high:.3f}, {row['pairs']} pairs)"


@contextlib.contextmanager
def workers(against: Path | None) -> Iterator[list[Callable[..., Any]]]:
    """Start a process with the package of this checkout and one with that of another; for `None` start none.

    Yields:
        Two callables, which call a function of the script in their process and return its result.
    """
    with contextlib.ExitStack() as stack:
        if against is None:
            yield [lambda function, *args: function(*args)] * 2
        else:
            yield [_worker(path.resolve(), stack) for path in (ROOT, against)]


def _worker(path: Path, stack: contextlib.ExitStack) -> Callable[..., Any]:
    pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
    sys.path.insert(0, str(path))  # a spawned process begins with the path of its parent
    try:
        found = pool.submit(importlib.util.find_spec, "keras_tpu_ext").result().origin
    finally:
        sys.path.remove(str(path))
    if Path(found).resolve().parents[1] != path:
        raise SystemExit(f"The keras_tpu_ext of {path} was to be measured, and {found} was imported.")
    return lambda function, *args: pool.submit(function, *args).result()


def _keras() -> Any:
    return sys.modules["keras_tpu_ext"]._runtime.keras


def in_memory(*arrays: Any, batch_size: int) -> dict[str, Any]:
    """Arguments of `fit` for x, y and sample weights, ready to be taken quickly."""
    if _keras().backend.backend() == "jax":
        named = zip(("x", "y", "sample_weight"), arrays, strict=False)
        return {**dict(named), "batch_size": batch_size, "shuffle": False}
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # at the end of a pipeline its thread may take half a second, in any turn
    batches = tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size, drop_remainder=True)
    return {"x": batches.cache().prefetch(2).with_options(options)}


def preflight(model: Any, batch: Any, target: str, per_replica_batch: int) -> Any:
    """Return the report of preflight by the compiler alone, without corrections, which not all generations have."""
    import keras_tpu_ext as kte

    return kte.preflight(model, batch, target, per_replica_batch, progress=False, timeout_s=3600, corrections=False)


def estimate(report: Any) -> dict[str, Any]:
    """The numbers of a preflight report as a row; a report without them ends the benchmark."""
    if report.time is None or report.memory is None or report.collectives is None:
        raise SystemExit(str(report))
    return {
        "seconds": report.step_seconds,
        **{key: getattr(report, key) for key in ("samples_per_sec", "host_bytes", "compile_seconds", "versions")},
        **{key: getattr(report.time, key) for key in ("mfu", "by_compiler", "unknown_loops")},
        "shares": dict(report.time.shares),
        "hbm_bytes": report.memory.needed,
        "collectives": report.collectives.count,
        "collective_bytes": report.collectives.bytes,
    }


def machine() -> dict[str, Any]:
    """What ran the benchmark: cores, device and versions, and the backend and runtime where the package is loaded."""
    loaded = {name: sys.modules.get(name) for name in ("jax", "jaxlib", "tensorflow", "numpy")}
    about = {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    if "keras_tpu_ext" in sys.modules:
        loaded["keras"] = keras = _keras()
        about["backend"] = backend = keras.backend.backend()
        version = getattr(keras, "__version__", "2")  # that of TensorFlow 2.15 has none
        about["runtime"] = f"keras{version[0]}_{'tf' if backend == 'tensorflow' else backend}"
    about["device"] = _device_name(about.get("backend"))
    versions = {name: module.__version__ for name, module in sorted(loaded.items()) if hasattr(module, "__version__")}
    return {**about, "versions": {"python": platform.python_version(), **versions}}


def _device_name(backend: str | None) -> str:
    """The accelerator that the backend computes on, else the model of the CPU."""
    names = []
    if backend == "jax":
        names = [device.device_kind for device in sys.modules["jax"].devices() if device.platform != "cpu"]
    elif backend == "tensorflow":
        config = sys.modules["tensorflow"].config
        found = map(config.experimental.get_device_details, config.list_physical_devices("GPU"))
        names = [details.get("device_name", "GPU") for details in found]
    with contextlib.suppress(OSError):  # macOS and Windows have no /proc
        names += re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return [*names, platform.processor()][0]


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def report(benchmark: str, *, against: Path | None = None, quiet: bool = False, **found: Any) -> None:
    """Print a line about the machine, unless `quiet`, and one of JSON with it and all that was found."""
    commits = {"commit": _commit(ROOT), **({"against": _commit(against)} if against else {})}
    about = {**machine(), **commits}
    if not quiet:
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        commit = " against ".join(commits.values())
        print(f"{about['machine']}, {about['device']}; {versions}; commit {commit}")
    print(json.dumps({"benchmark": benchmark, **about, **found}), flush=True)
