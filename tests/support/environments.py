"""The environments of tests/environments.mk, in which the Makefile runs the tests, for programs."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "environments.mk"
ENVS = Path(os.environ.get("KTE_ENVS", ROOT / ".envs"))


class Environment(NamedTuple):
    """An environment of the tests.

    Attributes:
        folder: Where it is, in `.envs` or `KTE_ENVS`.
        marks: What the marks of tests call it (tests/conftest.py).
        tests: The paths that it is for; empty for all.
        variables: Environment variables beside those of `for_all()`.
    """

    folder: Path
    marks: frozenset[str]
    tests: tuple[str, ...]
    variables: dict[str, str]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def environments() -> dict[str, Environment]:
    """Return the environments by their names in the table."""
    values = _read()
    return {
        name.removesuffix(".folder"): Environment(
            ENVS / folder,
            frozenset(values[name.replace(".folder", ".marks")].split()),
            tuple(values.get(name.replace(".folder", ".tests"), "").split()),
            variables(name.removesuffix(".folder")),
        )
        for name, folder in values.items()
        if name.endswith(".folder")
    }


def variables(name: str) -> dict[str, str]:
    """Return the environment variables of a row."""
    words = shlex.split(_read().get(f"{name}.variables", ""))
    return dict(word.split("=", 1) for word in words)


def for_all() -> dict[str, str]:
    """Return the environment variables of every environment."""
    return {name.removeprefix("export "): value for name, value in _read().items() if name.startswith("export ")}


def _read() -> dict[str, str]:
    """Return the variables of the table, as make has them."""
    values = {"CURDIR": str(ROOT)}
    for line in re.sub(r"\\\n\s*", "", TABLE.read_text(encoding="utf-8")).splitlines():
        if line and not line.startswith("#"):
            name, keep, value = re.fullmatch(r"((?:export )?[\w.-]+) ([?:])= ?(.*)", line).groups()
            value = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], value)
            values[name] = os.environ.get(name.removeprefix("export "), value) if keep == "?" else value
    return values
