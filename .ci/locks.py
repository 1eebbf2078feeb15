"""Locks the groups of pyproject.toml, each in a file of `locks/`: all that it needs, with versions and hashes.

python .ci/locks.py UV [--upgrade]    writes the locks; --upgrade takes the newest versions that the groups allow
python .ci/locks.py                   checks, offline, that they fit pyproject.toml
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tomllib  # new in Python 3.11

ROOT = Path(__file__).resolve().parents[1]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
PARTS = ("notebooks", "test")  # parts of other groups: they have no environment
LOCKS = {name: ROOT / "locks" / f"{name}.txt" for name in sorted(GROUPS) if name not in PARTS}
# The pinned Keras, JAX and test tools need it.
PYTHON = "3.11"


def groups(name: str) -> list[str]:
    """Return the groups that a lock holds."""
    return [name, "test"] if name.startswith("keras") and not name.endswith("-alone") else [name]


def requirements(group: str) -> Iterator[str]:
    """Yield what a group asks for, as a lock writes it: without extras."""
    for item in GROUPS[group]:
        if isinstance(item, str):
            yield re.sub(r"\[.*\]", "", item)
        else:
            yield from requirements(item["include-group"])


def write(uv: str, *options: str) -> None:
    """Write all locks; one that stays as it was keeps its time, so that make leaves its environment alone."""
    for name, file in LOCKS.items():
        before = (file.read_bytes(), file.stat().st_mtime_ns) if file.exists() else (b"", 0)
        alone = ["--no-deps"] if name == "peers" or name.endswith("-alone") else []
        command = [uv, "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
        command += ["--python-version", PYTHON, "--fork-strategy", "fewest", "--custom-compile-command", "make lock"]
        command += ["--output-file", str(file), *(f"--group={group}" for group in groups(name)), *alone, *options]
        subprocess.run(command, cwd=ROOT, check=True)
        if file.read_bytes() == before[0]:
            os.utime(file, ns=(before[1], before[1]))


def check() -> str:
    """Return how the locks differ from pyproject.toml, a line for each; empty if they fit."""
    lines = [f"{file}: no group asks for it\n" for file in (ROOT / "locks").iterdir() if file not in LOCKS.values()]
    for name, file in LOCKS.items():
        packages = re.split(r"^(?=\w)", file.read_text(encoding="utf-8"), flags=re.MULTILINE) if file.exists() else []
        locked = {package.split()[0] for package in packages if "(pyproject.toml:" in package}
        wanted = {requirement for group in groups(name) for requirement in requirements(group)}
        lines += [f"{file.name}: {one} is in pyproject.toml only\n" for one in sorted(wanted - locked)]
        lines += [f"{file.name}: {one} is in the lock only\n" for one in sorted(locked - wanted)]
    return "".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(*sys.argv[1:])
    elif differences := check():
        sys.exit(f"{differences}The locks do not fit pyproject.toml. Write: make lock")
