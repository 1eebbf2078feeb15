"""Installs the built wheel beside TensorFlow, offline, and checks that no other version has changed.

Usage: check_wheel.py UV PYTHON
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def call(*command: str | Path) -> str:
    """Run a command and return what it prints; a failure ends this program with its text."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(uv: str, python: str) -> None:
    """Build, install and compare."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = home / "env" / "bin" / "python"
        locked = ("--build-constraints", "locks/build.txt", "--require-hashes")
        call(uv, "build", "--quiet", "--wheel", "--python", python, *locked, "--out-dir", home / "dist")
        (wheel,) = (home / "dist").glob("*.whl")
        if not wheel.name.endswith("-py3-none-any.whl"):
            sys.exit(f"The wheel must be pure Python; this one is {wheel.name}.")
        call(uv, "venv", "--quiet", "--seed", "--python", python, home / "env")
        locked = ("--require-hashes", "--requirement", "locks/keras3-tf.txt")
        call(uv, "pip", "install", "--quiet", "--python", environment, *locked)
        before = call(environment, "-m", "pip", "freeze").splitlines()
        call(environment, "-m", "pip", "install", "--quiet", "--no-index", wheel)
        after = call(environment, "-m", "pip", "freeze").splitlines()
        gone = sorted(set(before) - set(after))
        new = [line for line in after if line not in before]
        if gone or len(new) != 1 or not new[0].startswith("keras-tpu-ext"):
            sys.exit(f"Installing {wheel.name} changed the environment.\nGone: {gone}\nNew: {new}")
        call(environment, "-c", "import keras_tpu_ext; print(keras_tpu_ext.strategy_scope())")
        call(environment.with_name("keras-tpu-ext"), "doctor")
    print(f"{wheel.name}: installed offline beside {len(before)} packages, of which none has changed.")


if __name__ == "__main__":
    main(*sys.argv[1:])
