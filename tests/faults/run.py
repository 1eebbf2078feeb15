"""Puts one mistake after the other into a copy of the package and sees whether `make test` would find it.

    python tests/faults/run.py --results out/faults.jsonl
    python tests/faults/run.py --names gradients-are-not-summed --runtimes keras3_tf --only-first

For each pair of a fault (`faults.py`) and a runtime that it concerns it copies the tracked files, makes the edit, and
runs the tests of that runtime with the copy before everything else on the path: first those that are most likely to
fail, then, if none has, all that `make test` runs there. A pair is caught if a test fails, or runs into the time
limit. Each result is a line of JSON, written at once; pairs that the file has already are not run again.

It needs the environments that `make test` makes, in `.envs/` or where `KTE_ENVS` says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS, PACKAGE, ROOT, Fault

ENVS = Path(os.environ.get("KTE_ENVS", ROOT / ".envs"))

_ON_KERAS2 = (
    *("tests/parity", "tests/_runtime", "tests/addons/test_keras2_import.py", "tests/integration/test_handbook.py"),
    *("tests/test_doctor.py", "tests/test_command.py", "tests/layers"),
)
_ON_TF215 = (
    *(*_ON_KERAS2, "tests/models", "tests/integration/test_large_batch.py"),
    *("tests/test_precision.py", "tests/test_strategy.py"),
)
_JAX = {
    "KERAS_BACKEND": "jax",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".envs" / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


class Runtime(NamedTuple):
    """How `make test` runs the tests on a runtime: as the Makefile has it.

    Attributes:
        folder: The environment, under `.envs`.
        environ: Environment variables.
        tests: What it runs.
        strange: How the names of files begin that are about another runtime (tests/conftest.py).
    """

    folder: str
    environ: dict[str, str]
    tests: tuple[str, ...]
    strange: tuple[str, ...]


RUNTIMES = {
    "keras3_tf": Runtime(
        "keras3-tf",
        {"KTE_PARITY_PART": "1/16", "KTE_SHARE": "1/4"},
        ("tests",),
        ("test_jax_", "test_keras2_"),
    ),
    "keras3_jax": Runtime(
        "keras3-jax",
        {"KTE_PARITY_PART": "5/16", "KTE_SHARE": "2/4", **_JAX},
        ("tests",),
        ("test_tf_", "test_tensorflow_", "test_keras2_"),
    ),
    "keras2_tf215": Runtime(
        "keras2-tf215",
        {"KTE_PARITY_PART": "9/16", "KTE_SHARE": "3/8"},
        _ON_TF215,
        ("test_jax_", "test_tf_", "test_keras3_"),
    ),
    "keras2_tf221": Runtime(
        "keras2-tf221",
        {"KTE_PARITY_PART": "13/16", "KTE_SHARE": "4/8", "TF_USE_LEGACY_KERAS": "1"},
        _ON_KERAS2,
        ("test_jax_", "test_tf_", "test_keras3_"),
    ),
}
_FOR_ALL = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "KTE_PARITY_CASES": "1",
    "KTE_SHARED_DATA": str(ROOT.parent / "shared" / "data"),
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX") or str(ROOT / ".envs" / "bytecode"),
}


class Outcome(NamedTuple):
    """What came of running some tests.

    Attributes:
        caught: Whether the fault was noticed.
        by: The first test that failed.
        note: `"timeout"`, `"import"` where nothing could be imported, or empty.
    """

    caught: bool
    by: str = ""
    note: str = ""


def main() -> None:
    """Run what the command line asks for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", choices=[fault.name for fault in FAULTS], metavar="NAME")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--results", type=Path, default=ROOT / "out" / "faults.jsonl")
    parser.add_argument("--only-first", action="store_true", help="run the tests that are most likely to fail only")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run of tests")
    asked = parser.parse_args()
    faults = [fault for fault in FAULTS if not asked.names or fault.name in asked.names]
    pairs = [(fault, name) for name in asked.runtimes for fault in faults if name in fault.runtimes]
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    done = {(one["name"], one["runtime"]) for one in _read(asked.results)}
    with tempfile.TemporaryDirectory(prefix="kte-faults-") as folder:
        for fault, name in pairs:
            if (fault.name, name) in done:
                continue
            begin = time.monotonic()
            copy = _copy_with(fault, Path(folder) / "copy")  # one place, so that Python compiles the copy once
            outcome = judge(fault, RUNTIMES[name], copy, only_first=asked.only_first, timeout=asked.timeout)
            seconds = round(time.monotonic() - begin, 1)
            _append(asked.results, {"name": fault.name, "runtime": name, **outcome._asdict(), "seconds": seconds})
            print(
                f"{'caught' if outcome.caught else 'NOT CAUGHT':<12}{name:<14}{fault.name} ({seconds} s)", flush=True
            )
    _tell([one for one in _read(asked.results) if any(pair[0].name == one["name"] for pair in pairs)])


def judge(fault: Fault, runtime: Runtime, copy: Path, *, only_first: bool, timeout: float) -> Outcome:
    """Return what the tests of a runtime say of a fault that is in `copy`."""
    outcome = _run(runtime, list(_of(runtime, fault.first)), copy, timeout)
    if outcome.caught or only_first:
        return outcome
    return _run(runtime, list(runtime.tests), copy, timeout)


def _of(runtime: Runtime, tests: tuple[str, ...]) -> Iterator[str]:
    """Yield those tests that `make test` may run on a runtime."""
    for test in tests:
        path = Path(test.split("::")[0])
        if not path.name.startswith(runtime.strange) and any(path.is_relative_to(one) for one in runtime.tests):
            yield test


def _run(runtime: Runtime, tests: list[str], copy: Path, timeout: float) -> Outcome:
    if not tests:
        return Outcome(False)
    python = ENVS / runtime.folder / "bin" / "python"
    # The list of faults does not fit the copy, which has one.
    options = ["-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "--ignore=tests/faults"]
    environ = {**os.environ, **_FOR_ALL, **runtime.environ, "PYTHONPATH": str(copy)}
    command = [str(python), "-m", "pytest", *options, *tests]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=copy, env=environ, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that tests have started
            if isinstance(error, subprocess.TimeoutExpired):
                return Outcome(True, note="timeout")
            raise
    return _outcome(process.returncode, output)


def _outcome(status: int, output: str) -> Outcome:
    """Return what pytest's exit status means; a fault has to make a test fail, and not the command."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    by = failed[1] if failed else ""
    if status == 1:
        return Outcome(True, by)
    if status in (0, 5):  # 5: of these tests `make test` runs none
        return Outcome(False)
    if status < 0:
        return Outcome(True, by, f"ended by signal {-status}")
    if status in (2, 3) or "ImportError while loading conftest" in output:
        return Outcome(True, by, "import")
    raise RuntimeError(f"pytest could not run: it ended with {status}\n{output[-2000:]}")


def _copy_with(fault: Fault, copy: Path) -> Path:
    """Make `copy` the tracked files with the fault in them; return it."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    path = copy / PACKAGE.relative_to(ROOT) / fault.path
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.name}: the text is {text.count(fault.old)} times in {fault.path}"
    path.write_text(text.replace(fault.old, fault.new))
    return copy


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def _append(results: Path, line: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _tell(found: list[dict[str, Any]]) -> None:
    """Print the score, and what was not caught."""
    missed = [one for one in found if not one["caught"]]
    names = {one["name"] for one in found}
    everywhere = names - {one["name"] for one in missed}
    pairs = f"caught {len(found) - len(missed)} of {len(found)} (fault, runtime) pairs"
    print(f"{pairs}; {len(everywhere)} of {len(names)} faults on every runtime that they concern")
    for one in missed:
        print(f"  not caught: {one['name']} on {one['runtime']}")


if __name__ == "__main__":
    main()
