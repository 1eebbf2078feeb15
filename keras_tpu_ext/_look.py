"""Reading variables, folders, files and versions without ever failing."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping

_READ_LIMIT = 1 << 20  # bytes; /proc/cpuinfo of a large host is a few hundred KiB


def value(environ: Mapping[str, str], variable: str) -> str:
    """An environment variable without surrounding blanks; an empty string where it is unset."""
    value = environ.get(variable)
    return value.strip() if isinstance(value, str) else ""


def one_line(text: str) -> str:
    """Text that can stand in one line of a message."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def names(root: str | os.PathLike[str], folder: str) -> list[str]:
    """The names in a folder, `accel2` before `accel10`; none where it cannot be read."""
    try:
        return sorted(os.listdir(os.path.join(root, folder)), key=lambda name: (len(name), name))
    except (OSError, ValueError):
        return []


def read(root: str | os.PathLike[str], file: str) -> str:
    """The beginning of a file as text; an empty string where it cannot be read."""
    try:
        with open(os.path.join(root, file), encoding="utf-8", errors="replace") as stream:
            return stream.read(_READ_LIMIT)
    except (OSError, ValueError):
        return ""


def version(package: str) -> str | None:
    """The installed version of a package, which is not imported; `None` where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
