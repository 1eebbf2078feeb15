"""`strategy_scope(compile_cache=...)`: programs that were compiled once are read from a folder.

JAX asks this cache in place of its own, which leaves half an entry where a process is killed or a disk is full, and
warns of it for ever; needs a further package to be bounded; and writes a path into its keys, so that a folder that
has moved is useless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import CacheUse, CompileWatch
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext.callbacks._hooks import all_of
from keras_tpu_ext.callbacks.auto_resume import AutoResume, absolute, folder_argument
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.machine.system import installed_version, processor
from keras_tpu_ext.output.announce import announce
from keras_tpu_ext.preflight._compiler import default_cache_dir
from keras_tpu_ext.resume.storage import folder_of

_MOST_BYTES = 2 * 2**30
_SUFFIX = ".program"


class CompileCache:
    """A folder of compiled programs, with the two methods that JAX calls.

    An entry is the SHA-256 of what JAX gives, and that: what was cut off or changed is compiled and written anew. In
    a folder of this machine the programs used longest ago make room for new ones, from 2 GiB on.

    Args:
        path: The folder, or its URL.

    Raises:
        OSError: If it is no folder, or cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = path  # JAX logs it
        self._folder = folder_of(path)
        self.problem: OSError | None = None  # why nothing is written
        try:
            self._folder.prepare()
        except OSError as error:
            if not self._folder.exists():
                raise
            self.problem = error
        # JAX's key has the version of libtpu from JAX 0.6 on (jax#27814), and never what the CPU can do.
        made_for = f"{installed_version('libtpu')} {processor()}"
        self._end = f"-{hashlib.sha256(made_for.encode()).hexdigest()[:8]}{_SUFFIX}"

    def get(self, key: str) -> bytes | None:
        """Return a program, or `None` if there is none that is whole."""
        name = key + self._end
        if self._folder.is_local and not self._folder.is_file(name):  # opening a FIFO would wait for its writer
            return None
        try:
            with self._folder.open(name) as file:
                digest, program = file.read(32), file.read()
        except FileNotFoundError:
            return None
        if hashlib.sha256(program).digest() != digest:
            return None
        if self._folder.is_local:
            with contextlib.suppress(OSError):
                os.utime(self._folder.path_of(name))
        return program

    def put(self, key: str, program: bytes) -> None:
        """Keep a program; after an error, of which JAX warns, no other is kept."""
        if self.problem is not None:
            return
        try:
            if self._folder.is_local:
                with contextlib.suppress(FileNotFoundError):  # another process removes some, too
                    self._make_room(_MOST_BYTES - len(program))
            self._folder.write(key + self._end, lambda file: file.write(hashlib.sha256(program).digest() + program))
        except OSError as error:
            self.problem = error
            raise

    def _make_room(self, most: int) -> None:
        """Remove the programs used longest ago until no more than `most` bytes are left."""
        entries = [entry for entry in os.scandir(self._path) if entry.name.endswith(_SUFFIX)]
        programs = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        sizes = {entry.name: (entry.stat().st_mtime, entry.stat().st_size) for entry in programs}
        total = sum(size for _, size in sizes.values())
        for name in sorted(sizes, key=sizes.__getitem__):
            if total <= most:
                return
            self._folder.remove(name)
            total -= sizes[name][1]


@dataclasses.dataclass
class _Use:
    """What this process uses."""

    wanted: str | None = None  # what `strategy_scope` was given
    cache: CompileCache | None = None
    watch: CompileWatch | None = None  # of what has not been told


_USE = _Use()


def use_compile_cache(wanted: str | os.PathLike[str]) -> None:
    """Let JAX look in a folder before it compiles; see `strategy_scope`.

    Raises:
        ArgumentError: If it is no folder, or cannot be made.
        RuntimeNotSupportedError: If this is not Keras 3 on JAX.
    """
    path = absolute(folder_argument("strategy_scope", wanted, "compile_cache", "programs"))
    own = _runtime.devices.compile_cache_dir()
    if _USE.watch is None:
        _USE.watch = _runtime.probes.watch_compiles()
        _runtime.progress.watch_fits(_in_fit)
    _USE.wanted = str(wanted)
    if wanted != "auto":
        try:
            _open(path)
        except OSError as error:
            raise check.argument_error(
                "strategy_scope", "compile_cache", "a folder", f"{path!r} ({error})", 'compile_cache="auto"'
            ) from error
    elif own is None:
        _open_if_possible(str(default_cache_dir().with_name("compile")))
    elif _USE.cache is None or own != _USE.cache._path:
        _USE.wanted = own
        announce(f'strategy_scope: compile_cache="auto" leaves JAX the compilation cache that it has, in {own}')


def _open(path: str) -> None:
    if _USE.cache is None or _USE.cache._path != path:
        _USE.cache = CompileCache(path)
        if _USE.cache.problem is not None:
            announce(f"strategy_scope: compiled programs are read from {path}; none is kept: {_USE.cache.problem}")
    _runtime.devices.use_compile_cache(path, _USE.cache)


def _open_if_possible(path: str) -> None:
    try:
        _open(path)
    except OSError as error:
        announce(f"strategy_scope: compiled programs are not kept in {path}: {error}")


def _in_fit(model: Model, callbacks: list[Callback], began: float, at_end: contextlib.ExitStack) -> list[Any]:
    """Use the folder beside an `AutoResume`'s, before the step is compiled; tell at the end what came from it."""
    for callback in all_of(callbacks):
        if _USE.wanted == "auto" and isinstance(callback, AutoResume):
            _open_if_possible(f"{callback._path}-compile-cache")
    if _USE.watch is not None:
        at_end.callback(_tell, _USE.watch)
    return callbacks


def _tell(watch: CompileWatch) -> None:
    _USE.watch = _runtime.probes.watch_compiles()
    if watch.cache != CacheUse() and _runtime.devices.is_chief():
        announce(f"compile_cache: {watch.cache} ({_runtime.devices.compile_cache_dir()})")
