"""Run an example as a user does: in a process of its own, from the root of the repository."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python examples/...` with the package that is being tested, and keep what it prints.

    Where `make test` has told XLA to spare itself optimising, the example does too.
    """
    package = Path(importlib.util.find_spec("keras_tpu_ext").origin).parents[1]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def table(finished: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the rows of the final table by name."""
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = finished.stdout.split("\nResult\n------\n")[1].strip().splitlines()
    return dict(re.split(r" {3,}", row, maxsplit=1) for row in rows)
