"""Keras's own tests, those that its wheel brings, run against this package.

    python tests/keras_tests/run.py [--tests trainers models saving callbacks] [--log FOLDER] [--results FILE]

Each runs three times: as Keras is, with the exact step on one device, and in a scope of eight replicas. A test that
fails or is skipped in one of the other two, and not in stock Keras, is a defect, or stands in `explained.py` with its
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from explained import EXPLAINED, NOT_COLLECTED, Explained  # noqa: E402

MODES = {"stock": 0, "exact on one device": 1, "8 replicas": 8}
FOLDERS = ("trainers", "models", "saving", "callbacks")
SECONDS_OF_A_TEST, SECONDS_OF_A_FOLDER = 600, 2 * 60 * 60
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def main() -> int:
    """Print the table, and return 0 if every difference is explained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", nargs="*", default=FOLDERS, choices=FOLDERS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, help="a folder for what pytest prints, a file for each run")
    parser.add_argument("--results", type=Path, help="a file for what this prints")
    options = parser.parse_args()
    results = {mode: run(mode, options) for mode in MODES}
    rows, explained, unexplained = report(results)
    text = "\n".join([versions(), "", *table(rows), "", *explained, *unexplained, json.dumps({"rows": rows})])
    print(text)
    if options.results:
        options.results.write_text(text + "\n")
    return 1 if unexplained else 0


def versions() -> str:
    """Return what the tests ran with, in a line."""
    import keras

    backend = keras.backend.backend()
    version = sys.modules[backend].__version__
    return f"Keras {keras.__version__} on {backend} {version}, Python {platform.python_version()}"


def report(results: dict[str, dict[str, str]]) -> tuple[list[dict[str, object]], list[str], list[str]]:
    """Return the rows of the table, a line for each difference that is explained, and one for each other."""
    broken = dict.fromkeys(name for outcomes in results.values() for name in outcomes if "::" not in name)
    tests = {mode: {name: outcomes[name] for name in outcomes.keys() - broken} for mode, outcomes in results.items()}
    rows, explained, unexplained, different = [], [], [], set()
    for mode, outcomes in tests.items():
        why = {name: reason(name, MODES[mode]) for name in differences(tests["stock"], outcomes)}
        explained += [f"{mode}: {name}: {why[name]}" for name in why if why[name]]
        unexplained += [f"{mode}, not explained: {name} ({outcomes.get(name)})" for name in why if not why[name]]
        counts = Counter(outcomes.values())
        rows.append({"mode": mode, **{outcome: counts[outcome] for outcome in (PASSED, FAILED, SKIPPED)}})
        rows[-1].update(explained=sum(map(bool, why.values())), unexplained=sum(not each for each in why.values()))
        different |= set(why)
    for test in EXPLAINED:
        ran = {name for name in tests["stock"] if is_about(test, name)}
        if ran and not ran & different:
            unexplained.append(f"explained, and yet it passes: {test.name}")
    for name in broken:
        why_not = next((why for file, why in NOT_COLLECTED.items() if name.endswith(file)), None)
        (explained if why_not else unexplained).append(f"not collected: {name}: {why_not or 'not explained'}")
    return rows, explained, unexplained


def table(rows: list[dict[str, object]]) -> list[str]:
    """Return the lines of a table."""
    columns = [name for name in rows[0] if name != "mode"]
    lines = [f"{row['mode']:<22}" + "".join(f"{row[name]:>13}" for name in columns) for row in rows]
    return [" " * 22 + "".join(f"{name:>13}" for name in columns), *lines]


def differences(stock: dict[str, str], outcomes: dict[str, str]) -> list[str]:
    """Return the tests that fail and do not fail in stock Keras, or pass there and not here."""
    failed = {name for name, outcome in outcomes.items() if outcome == FAILED and stock.get(name) != FAILED}
    lost = {name for name, outcome in stock.items() if outcome == PASSED and outcomes.get(name) != PASSED}
    return sorted(failed | lost)


def reason(name: str, replicas: int) -> str | None:
    """Return why the test `name` fails with so many replicas and need not pass; `None` if nothing says so."""
    return next((test.why for test in EXPLAINED if is_about(test, name) and replicas >= test.replicas), None)


def is_about(test: Explained, name: str) -> bool:
    """Return whether what is explained is the test `name` on this backend."""
    import keras

    return name.endswith(test.name) and keras.backend.backend() in test.backends


def run(mode: str, options: argparse.Namespace) -> dict[str, str]:
    """Return what became of each test of the folders; a file that pytest could not collect has no `::` in its name.

    Each folder has processes of its own, which end with it: TensorFlow keeps memory of every model.
    """
    return {name: outcome for folder in options.tests for name, outcome in outcomes(folder, mode, options)}


def outcomes(folder: str, mode: str, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the name and the outcome of each test in a folder of Keras's source.

    A test that hangs ends its process: pytest-xdist says that it failed, and goes on in another.
    """
    import keras

    root = Path(keras.__file__).parents[1]
    files = sorted((root / "keras" / "src" / folder).glob("*_test.py"))
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(options.processes)]
        command += ["--disable-warnings", "--tb=native"]
        command += ["-p", "in_scope", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += ["-o", f"faulthandler_timeout={SECONDS_OF_A_TEST}", "-o", "faulthandler_exit_on_timeout=true"]
        command += ["--rootdir", str(root), "-c", os.devnull, f"--junitxml={report}", *map(str, files)]
        environ = {**os.environ, "KTE_KERAS_TESTS_REPLICAS": str(MODES[mode])}
        environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        with log_file(mode, folder, options.log or Path(temporary)).open("w") as log:
            status = wait(subprocess.Popen(command, cwd=temporary, env=environ, stdout=log, stderr=subprocess.STDOUT))
        if status not in (0, 1) or not report.exists():
            yield f"{folder}: pytest ended with status {status}", FAILED
        for case in ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ():
            yield "::".join(filter(None, [case.get("classname"), case.get("name")])), outcome(case)


def log_file(mode: str, folder: str, parent: Path) -> Path:
    """Return the file for what pytest prints."""
    parent.mkdir(parents=True, exist_ok=True)
    return parent / f"{mode.replace(' ', '-')}-{folder}.txt"


def wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status; a process that takes too long is ended, and its workers with it."""
    try:
        return process.wait(SECONDS_OF_A_FOLDER)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    return PASSED if case.find("skipped") is None else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
