"""Functions that read variables, folders, files and versions, and never raise."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping

_READ_LIMIT = 1 << 20  # bytes; /proc/cpuinfo of a large host is a few hundred KiB


def get_variable(environ: Mapping[str, str], name: str) -> str:
    """Return an environment variable, stripped; an empty string if it is unset."""
    value = environ.get(name)
    return value.strip() if isinstance(value, str) else ""


def one_line(text: str) -> str:
    """Return printable text in one line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def list_folder(root: str | os.PathLike[str], folder: str) -> list[str]:
    """Return the names in a folder, `accel2` before `accel10`; an empty list if it cannot be read."""
    try:
        return sorted(os.listdir(os.path.join(root, folder)), key=lambda name: (len(name), name))
    except (OSError, ValueError):
        return []


def read_text(root: str | os.PathLike[str], file: str) -> str:
    """Return the beginning of a file; an empty string if it cannot be read."""
    try:
        with open(os.path.join(root, file), encoding="utf-8", errors="replace") as stream:
            return stream.read(_READ_LIMIT)
    except (OSError, ValueError):
        return ""


def read_link(root: str | os.PathLike[str], link: str) -> str:
    """Return the target of a symbolic link; an empty string if it cannot be read."""
    try:
        return os.readlink(os.path.join(root, link))
    except (OSError, ValueError):
        return ""


def installed_version(package: str) -> str | None:
    """Return the version of a package, without importing it; `None` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the architecture and the features of this machine's processor, which programs for it may use."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", read_text("/", "proc/cpuinfo"), re.MULTILINE)
    return " ".join([platform.machine(), *sorted(found[1].split() if found else [])])
