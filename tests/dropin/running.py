"""Run the old kernels of `kernels/`, each in a fresh process, and compare what they find.

    python tests/dropin/running.py                     # on TF 2.15: writes references/kernels.json
    python tests/dropin/running.py --replicas 8 NAME   # on Keras 3, with the line: says what differs

A kernel is told in `KERNEL_OUT` where to write its results, as JSON. What it would download stands in the home folder
that it gets: Fashion-MNIST (really scikit-learn's digits), and Reuters where the real data is.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REFERENCES = HERE / "references" / "kernels.json"
LINE = "import keras_tpu_ext.dropin\n"
SHARED_DATA = Path(os.environ.get("KTE_SHARED_DATA", ROOT.parent / "shared" / "data"))
KERNELS = sorted(path.stem for path in (HERE / "kernels").glob("*.py"))
NEEDS_REUTERS = "reuters_conv1d"
# What the tests of this repository set for themselves, or a user might, and a kernel must not see.
_NOT_HANDED_ON = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "KTE_REHEARSE", "COLAB_TPU_ADDR", "TPU_NAME", "KERAS_HOME")


class KernelFailedError(AssertionError):
    """A kernel ended with an error; the text is the end of what it printed."""


def references() -> dict:
    """What each kernel found on TensorFlow 2.15."""
    return json.loads(REFERENCES.read_text(encoding="utf-8"))


def run(name: str, *, replicas: int | None = None, folder: Path | None = None, timeout: float = 900) -> dict:
    """Run the kernel `name`: as it is or, with `replicas`, after the one line on so many CPU devices."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        script = HERE / "kernels" / f"{name}.py"
        variables = _variables(Path(work))
        if replicas is not None:
            with_line = Path(work, f"{name}.py")
            with_line.write_text(LINE + script.read_text(encoding="utf-8"), encoding="utf-8")
            script = with_line
            variables["KTE_REHEARSE"] = str(replicas)
        done = subprocess.run(
            [sys.executable, str(script)], cwd=work, env=variables, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode:
            raise KernelFailedError(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return _rounded(json.loads(Path(variables["KERNEL_OUT"]).read_text(encoding="utf-8")))


def differences(found: object, reference: object, *, rtol: float, atol: float = 1e-5, at: str = "") -> list[str]:
    """Say where `found` is not `reference`: another key, another length, a number that is not close."""
    if isinstance(reference, dict):
        if not isinstance(found, dict) or set(found) != set(reference):
            return [f"{at}: keys {sorted(found)} instead of {sorted(reference)}"]
        pairs = [(f"{at}/{key}", found[key], reference[key]) for key in reference]
    elif isinstance(reference, list):
        if not isinstance(found, list) or len(found) != len(reference):
            return [f"{at}: {found} instead of {reference}"]
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(found, reference, strict=True))]
    elif isinstance(reference, float):
        same = isinstance(found, (int, float)) and math.isclose(found, reference, rel_tol=rtol, abs_tol=atol)
        return [] if same else [f"{at}: {found} instead of {reference}"]
    else:
        return [] if found == reference else [f"{at}: {found!r} instead of {reference!r}"]
    return [line for where, *pair in pairs for line in differences(*pair, rtol=rtol, atol=atol, at=where)]


def _variables(work: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_HANDED_ON}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return variables | {
        "HOME": str(_home(work)),
        "KERNEL_OUT": str(work / "out.json"),
        "MPLBACKEND": "Agg",
        "PYTHONPATH": os.pathsep.join(path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _home(work: Path) -> Path:
    home = work / "home"
    shutil.copytree(_datasets(), home / ".keras" / "datasets")
    return home


@functools.cache
def _datasets() -> Path:
    """A folder as Keras keeps downloads in, made once in a process."""
    import atexit

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write_digits(folder / "fashion-mnist")
    if (reuters := SHARED_DATA / "reuters.npz").exists():
        shutil.copy(reuters, folder)
    return folder


def _write_digits(folder: Path) -> None:
    """Write scikit-learn's digits, scaled to 28 x 28, as the four files of Fashion-MNIST."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.pad(np.kron(digits.images * 15, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2))).astype("uint8")
    labels = digits.target.astype("uint8")
    folder.mkdir()
    for name, rows in {"train": slice(0, 1280), "t10k": slice(1280, 1600)}.items():
        part = images[rows]
        sizes = np.array([2051, *part.shape], ">i4").tobytes()
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(sizes + part.tobytes()))
        sizes = np.array([2049, len(part)], ">i4").tobytes()
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(sizes + labels[rows].tobytes()))


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=KERNELS, metavar="NAME")
    parser.add_argument("--replicas", type=int, help="put the line first, and compare instead of writing references")
    options = parser.parse_args()
    known = references() if REFERENCES.exists() else {}
    for name in options.names or KERNELS:
        try:
            found = run(name, replicas=options.replicas)
        except (KernelFailedError, subprocess.TimeoutExpired) as error:
            print(f"{name}: FAILED\n{error}", flush=True)
            continue
        if options.replicas is None:
            known[name] = found
            REFERENCES.parent.mkdir(exist_ok=True)
            REFERENCES.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(name, json.dumps(found)[:400], flush=True)
        else:
            expected = known[name] | {"replicas": options.replicas}
            wrong = differences(found, expected, rtol=2e-3)
            print(
                f"{name}: {'the same' if not wrong else f'{len(wrong)} differences: ' + '; '.join(wrong[:8])}",
                flush=True,
            )


if __name__ == "__main__":
    main()
