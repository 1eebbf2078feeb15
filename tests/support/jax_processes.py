"""Start programs that `keras.distribution.initialize` joins on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path


def start(program: str, number: int, port: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program as process `number` of those that share a port, on this package's folder."""
    package = Path(importlib.util.find_spec("keras_tpu_ext").origin).parents[1]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(number), port, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
        cwd=path.split(os.pathsep)[0],
    )


def free_port() -> str:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def said(process: subprocess.Popen[str], beginning: str) -> str | None:
    """Read what a process prints until a line that begins so (collectives print lines of their own)."""
    return next((line for line in process.stdout if line.startswith(beginning)), None)
