"""Mutation testing: put one fault after the other into a copy of the package and see whether the gate finds it.

    make faults
    python tests/faults/run.py --names gradients-are-not-summed --runtimes keras3_tf --only-first
    python tests/faults/run.py --score out/faults.jsonl

For each pair of a fault (`faults.py`) and a runtime that it concerns it copies the tracked files, makes the edit, and
runs the gate tier of that runtime, as `make test` does, with the copy first on the path: first the tests that are
most likely to fail, then, if none has, all of them. A pair is caught if a test fails or runs into the time limit.
Each result is a line of JSON, written at once; pairs that the file has already are not run again.

It needs the environments that `make test` makes, in `.envs/` or where `KTE_ENVS` says.
"""

from __future__ import annotations

import argparse
import contextlib
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
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import environments
import faults
import marks
from environments import Environment
from faults import FAULTS, PACKAGE, ROOT, Fault

ENVIRONMENTS = {name.replace("-", "_"): environment for name, environment in environments.environments().items()}
RUNTIMES = {name: ENVIRONMENTS[name] for name in faults.RUNTIMES}
_SHARED_DATA = os.environ.get("KTE_SHARED_DATA") or str(ROOT.parent / "shared" / "data")


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
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)  # so that nothing is left running
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", choices=[fault.name for fault in FAULTS], metavar="NAME")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--results", type=Path, default=ROOT / "out" / "faults.jsonl")
    parser.add_argument("--only-first", action="store_true", help="run the tests that are most likely to fail only")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run of tests")
    parser.add_argument(
        "--score", type=Path, metavar="FILE", help="print the score of a file of results; run nothing"
    )
    asked = parser.parse_args()
    if asked.score is not None:
        print(score(_read(asked.score)))
        return
    chosen = [fault for fault in FAULTS if not asked.names or fault.name in asked.names]
    pairs = [(fault, name) for name in asked.runtimes for fault in chosen if name in fault.runtimes]
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
            verdict = "caught" if outcome.caught else "NOT CAUGHT"
            print(f"{verdict:<12}{name:<14}{fault.name} ({seconds} s)", flush=True)
    print(score(_read(asked.results)))


def judge(fault: Fault, runtime: Environment, copy: Path, *, only_first: bool, timeout: float) -> Outcome:
    """Return what the gate of a runtime says of a fault that is in `copy`."""
    first = list(_collectable(runtime, fault.first))
    outcome = _run(runtime, first, copy, timeout) if first else Outcome(False)
    if outcome.caught or only_first:
        return outcome
    return _run(runtime, [], copy, timeout)


def score(results: list[dict[str, Any]]) -> str:
    """Return a table of what was caught on each runtime, and the pairs that were not."""
    found = {(one["name"], one["runtime"]): one["caught"] for one in results}
    pairs = [(fault.name, runtime) for runtime in RUNTIMES for fault in FAULTS if runtime in fault.runtimes]
    lines = [f"{'runtime':<14}{'pairs':>6}{'measured':>10}{'caught':>8}"]
    for title, runtimes in [*((runtime, [runtime]) for runtime in RUNTIMES), ("all", list(RUNTIMES))]:
        here = [pair for pair in pairs if pair[1] in runtimes]
        measured = [found[pair] for pair in here if pair in found]
        lines.append(f"{title:<14}{len(here):>6}{len(measured):>10}{sum(measured):>8}")
    missed = [f"  {name} on {runtime}" for name, runtime in pairs if found.get((name, runtime)) is False]
    return "\n".join([*lines, *(["not caught:", *missed] if missed else [])])


def _collectable(runtime: Environment, tests: tuple[str, ...]) -> Iterator[str]:
    """Yield the tests that a runtime can import: a file that is named on its command line, pytest does import."""
    for test in tests:
        path = ROOT / test.split("::")[0]
        about = marks.of_file(path) if path.is_file() else None
        if about is None or runtime.marks & about:
            yield test


def _run(runtime: Environment, tests: list[str], copy: Path, timeout: float) -> Outcome:
    """Run tests, or all of the gate."""
    # The list of faults does not fit the copy, which has one.
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--ignore=tests/faults"]
    command = [str(runtime.python), "-m", "pytest", *options, *tests]
    environ = {**os.environ, **environments.for_all(), **runtime.variables}
    environ |= {"KTE_SHARED_DATA": _SHARED_DATA, "PYTHONPATH": str(copy)}
    # To a file, because a process that a test has left behind would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Outcome(True, note="timeout")
        finally:
            _kill_group(process)
        output.seek(0)
        return _outcome(status, output.read())


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and all that it and its tests have started, if any of them still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(status: int, output: str) -> Outcome:
    """Return what pytest's exit status means; a fault has to make a test fail, and not the command."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    by = failed[1] if failed else ""
    if status == 1:
        return Outcome(True, by)
    if status in (0, 5):  # 5: none of these tests is in the gate
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


if __name__ == "__main__":
    main()
