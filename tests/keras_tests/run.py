"""Keras's own tests, those that its wheel brings, run against this package.

    python tests/keras_tests/run.py [--tests trainers models saving callbacks]

Each runs three times: as Keras is, with the exact step on one device, and in a scope of eight replicas. A test that
stock Keras passes must pass in all, or stand in `explained.py` with its reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from explained import EXPLAINED  # noqa: E402

MODES = {"stock": 0, "exact on one device": 1, "8 replicas": 8}
FOLDERS = ("trainers", "models", "saving", "callbacks")


def main() -> int:
    """Print the table, and return 0 if every difference is explained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", nargs="*", default=FOLDERS, choices=FOLDERS)
    folders = parser.parse_args().tests
    results = {mode: passed_and_failed(folders, replicas) for mode, replicas in MODES.items()}
    stock, unexplained = results["stock"], 0
    print(f"{'':<22}{'passed':>8}{'failed':>8}{'explained':>11}")
    for mode, outcomes in results.items():
        new = {name for name, ok in outcomes.items() if not ok and stock.get(name)}
        missing = [name for name in sorted(new) if reason(name, MODES[mode]) is None]
        failed = sum(not ok for ok in outcomes.values())
        print(f"{mode:<22}{len(outcomes) - failed:>8}{failed:>8}{len(new) - len(missing):>11}")
        for name in missing:
            print(f"    not explained: {name}")
        unexplained += len(missing)
    return 1 if unexplained else 0


def reason(name: str, replicas: int) -> str | None:
    """Return why the test `name` fails with so many replicas and need not pass; `None` if nothing says so."""
    return next((why for part, least, why in EXPLAINED if part in name and replicas >= least), None)


def passed_and_failed(folders: list[str], replicas: int) -> dict[str, bool]:
    """Return for each test that ran whether it passed."""
    import keras

    root = Path(keras.__file__).parent / "src"
    files = [str(file) for folder in folders for file in sorted((root / folder).glob("*_test.py"))]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "in_scope", "-p", "no:cacheprovider"]
        command += ["--rootdir", folder, "-c", os.devnull, f"--junitxml={report}", *files]
        environ = {**os.environ, "KTE_KERAS_TESTS_REPLICAS": str(replicas), "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        (Path(os.environ["KTE_KERAS_TESTS_LOG"]) / f"{replicas}.log").write_text(
            done.stdout
        ) if "KTE_KERAS_TESTS_LOG" in os.environ else None
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}": case.find("failure") is None
            and case.find("error") is None
            for case in cases
            if case.find("skipped") is None
        }


if __name__ == "__main__":
    sys.exit(main())
