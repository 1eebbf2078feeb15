"""Files of compiled programs, such as `step.kte`: `PreflightReport.save` writes them, `strategy_scope` takes them.

They have the format of `resume/tensor_file.py`, JSON and bytes, each with a digest, and are checked before they are
used. An executable is machine code, so a file is read only if its own digest is the one in the user's program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common import user_frame
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram, Signature, differences
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.schema import MismatchError
from keras_tpu_ext.errors import ArgumentError, CompiledFileWarning
from keras_tpu_ext.machine import system
from keras_tpu_ext.machine.versions import find_versions
from keras_tpu_ext.resume import tensor_file
from keras_tpu_ext.resume.storage import folder_of

_FORMAT = "compiled programs, 1"
_LARGEST = 1 << 32  # bytes of a file; one that is longer is never read
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_FLAG = "--xla_force_host_platform_device_count"  # it changes nothing in a program
_MACHINE = (
    *("keras_tpu_ext", "keras", "jax", "jaxlib", "libtpu", "platform", "build", "device kind", "devices", "mesh"),
    *("XLA_FLAGS", "LIBTPU_INIT_ARGS", "processor"),
)
_content = schema.fields(
    {
        "format": schema.one_of(_FORMAT),
        "target": schema.text,
        "machine": schema.fields(dict.fromkeys(_MACHINE, schema.text)),
        "programs": schema.list_of(
            schema.fields(
                {
                    "name": schema.text,
                    "steps": schema.integer(1),
                    "module": schema.text,
                    "digest": schema.matching(_SHA256, "the 64 hexadecimal digits of a SHA-256"),
                    "arguments": schema.list_of(schema.text),
                    "options": schema.text,
                    "seconds": schema.number,
                }
            )
        ),
    }
)


class SavedFile(NamedTuple):
    """What a file holds."""

    target: str  # the name of the slice, such as `"v5e-8"`
    machine: dict[str, str]  # what the programs were compiled for and with
    programs: tuple[SavedProgram, ...]

    def misfit(self, facts: Mapping[str, str]) -> str:
        """Return what differs on devices with these facts; empty if the programs fit, as far as the facts tell."""
        here = machine_of(facts)
        if self.machine["platform"] != here["platform"]:
            here = {"platform": here["platform"]}  # then all else differs, too
        return "; ".join(differences({name: self.machine[name] for name in here}, here))

    def offer(self, strategy: Any) -> None:
        """Let models use the programs in place of compiling, if they fit the devices of a strategy."""
        assert _runtime.saved_programs is not None, "open_saved has asked"
        facts = _runtime.saved_programs.facts_of(strategy)
        misfit = self.misfit(facts)
        if misfit:
            text = f"The programs in `compiled`, for {self.target}, do not fit, so steps are compiled here. {misfit}"
            user_frame.warn(text, CompiledFileWarning)
        else:
            _runtime.saved_programs.offer(self.programs, facts)

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write it into a file and return the SHA-256 of that."""
        programs = [
            {"name": one.name, "steps": one.steps, "seconds": one.seconds, **dataclasses.asdict(one.signature)}
            for one in self.programs
        ]
        content = {"format": _FORMAT, "target": self.target, "machine": self.machine, "programs": programs}
        file = io.BytesIO()
        tensor_file.write(file, content, [np.frombuffer(one.executable, "uint8") for one in self.programs])
        folder, name = os.path.split(os.fspath(path))
        folder_of(folder).write(name, lambda part: part.write(file.getbuffer()))
        return hashlib.sha256(file.getbuffer()).hexdigest()


def open_saved(caller: str, compiled: Any) -> SavedFile:
    """Return what is in the file that the argument `compiled` names.

    Raises:
        ArgumentError: If there is none, it has another digest, or this release cannot read it.
    """
    pair = compiled if isinstance(compiled, (tuple, list)) and len(compiled) == 2 else (None, None)
    path, sha256 = pair[0], str(pair[1]).lower()
    if not isinstance(path, (str, os.PathLike)) or not _SHA256.fullmatch(sha256):
        needed = "a file with its SHA-256, because it holds machine code that this process would run"
        write = 'compiled=("step.kte", "..."), the line that report.save("step.kte") printed'
        raise check.argument_error(caller, "compiled", needed, repr(compiled), write)
    if _runtime.saved_programs is None:
        terms = _runtime.message_terms
        raise ArgumentError(
            f"{caller}: `compiled` needs Keras 3 on JAX; this is {terms.keras} on {terms.framework}. Leave it out."
        )
    path = check.path(path)
    anew = 'the line that report.save("step.kte") printed'
    if not os.path.isfile(path):  # opening a FIFO would wait for its writer
        raise check.argument_error(caller, "compiled", "a file that is there", repr(path), anew)
    with open(path, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise check.argument_error(caller, "compiled", f"a file of at most {_LARGEST:,} bytes", repr(path), anew)
    if hashlib.sha256(content).hexdigest() != sha256:
        got = f"{path!r}, which is another file or was changed, and was not used"
        raise check.argument_error(caller, "compiled", f"a file of the SHA-256 {sha256}", got, anew)
    try:
        return _parsed(content)
    except MismatchError as error:
        got = f"{path!r}, in which {error}"
        raise check.argument_error(caller, "compiled", "a file that this release wrote", got, anew) from None


def _parsed(content: bytes) -> SavedFile:
    file = tensor_file.TensorFile(io.BytesIO(content))
    found = _content(file.content, "")
    rows, programs = found["programs"], []
    if file.number != len(rows) or len({row["digest"] for row in rows}) != len(rows):
        raise MismatchError("programs", f"{file.number} that are different from each other", rows)
    for number, row in enumerate(rows):
        executable = file.read(number)
        if executable.dtype != np.uint8 or executable.ndim != 1:
            raise MismatchError(f"programs[{number}]", "bytes", f"{executable.dtype}{list(executable.shape)}")
        signature = Signature(row["module"], row["digest"], tuple(row["arguments"]), row["options"])
        programs.append(SavedProgram(row["name"], row["steps"], signature, row["seconds"], executable.tobytes()))
    return SavedFile(found["target"], found["machine"], tuple(programs))


def machine_of(facts: Mapping[str, str]) -> dict[str, str]:
    """Return what programs are compiled for and with: facts of devices, and those of this Python and its flags."""
    versions, is_tpu = find_versions(), facts["platform"] == "tpu"
    arguments = facts.get("LIBTPU_INIT_ARGS", os.environ.get("LIBTPU_INIT_ARGS", ""))
    return {
        **facts,
        "keras_tpu_ext": system.installed_version("keras-tpu-ext") or "",
        "keras": versions.keras or "",
        "jax": versions.jax or "",
        "jaxlib": system.installed_version("jaxlib") or "",
        "libtpu": (versions.libtpu or "") if is_tpu else "",
        "XLA_FLAGS": _flags(os.environ.get("XLA_FLAGS", "")),
        "LIBTPU_INIT_ARGS": _flags(arguments) if is_tpu else "",
        "processor": "" if is_tpu else system.processor(),
    }


def _flags(text: str) -> str:
    return " ".join(sorted(flag for flag in text.split() if not flag.startswith(_NO_FLAG)))
