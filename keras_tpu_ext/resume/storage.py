"""Folders in which files are written completely or not at all: on this machine, or in object stores like `gs://`."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

_UNFINISHED = ".keras_tpu_ext-unfinished"


def folder_of(path: str) -> Folder:
    """Return the folder of a path, which may be a URL that fsspec knows."""
    return _ObjectStore(path) if "://" in path else Folder(path)


class Folder:
    """A folder of this machine: files are written under a name of their own, synced to the disk, and then renamed."""

    is_local = True  # whether it is a folder of this machine

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        """Return whether it exists."""
        return os.path.isdir(self.path)

    def names(self) -> list[str]:
        """Return the names of what is in it."""
        return os.listdir(self.path) if self.exists() else []

    def is_file(self, name: str) -> bool:
        """Return whether something in it is a file, and no folder or pipe."""
        return os.path.isfile(self.path_of(name))

    def path_of(self, name: str) -> str:
        """Return the path of a file in it."""
        return os.path.join(self.path, name)

    def size_of(self, name: str) -> int:
        """Return the number of bytes of a file."""
        return os.path.getsize(self.path_of(name))

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file for reading."""
        return open(self.path_of(name), "rb")

    def write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        """Let a function write a file, which is then complete or absent."""
        os.makedirs(self.path or ".", exist_ok=True)
        path = self.path_of(name)
        aside = f"{path}.{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}"
        try:
            with open(aside, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(aside)
            raise
        self._sync()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path_of(name))

    def prepare(self) -> None:
        """Create the folder."""
        os.makedirs(self.path, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path):
            pass

    def remove_unfinished(self) -> None:
        """Remove partial files that a killed process left behind; no other may be writing."""
        for name in self.names():
            if name.endswith(_UNFINISHED):
                with contextlib.suppress(OSError):
                    self.remove(name)

    def _sync(self) -> None:
        """Sync changed names to the disk; not every system supports this."""
        with contextlib.suppress(OSError):
            folder = os.open(self.path or ".", os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


class _ObjectStore(Folder):
    """A folder of an object store, in which a file exists once all of it has been sent."""

    is_local = False

    def __init__(self, path: str) -> None:
        super().__init__(path.rstrip("/"))
        self._files, self._inside = importlib.import_module("fsspec").core.url_to_fs(self.path)

    def exists(self) -> bool:
        return bool(self.names())  # empty folders do not exist there

    def names(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            with _as_os_error():
                found = self._files.ls(self._inside, detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def is_file(self, name: str) -> bool:
        with _as_os_error():
            return bool(self._files.isfile(f"{self._inside}/{name}"))

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def size_of(self, name: str) -> int:
        return int(self._files.size(f"{self._inside}/{name}"))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            with _as_os_error():
                self._files.get_file(f"{self._inside}/{name}", local)
            with open(local, "rb") as file:
                yield file

    def write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            with open(local, "wb") as file:
                fill(file)
            with _as_os_error():
                self._files.put_file(local, f"{self._inside}/{name}")

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), _as_os_error():
            self._files.rm_file(f"{self._inside}/{name}")

    def prepare(self) -> None:
        self.write(_PROBE, lambda file: None)
        self.remove(_PROBE)

    def remove_unfinished(self) -> None:
        pass  # there are none


_PROBE = "keras_tpu_ext-writes-here"


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn the errors of the many libraries behind fsspec into `OSError`s."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
