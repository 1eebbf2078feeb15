"""Files that hold the state of a training: complete or absent, and checked when they are read.

A checkpoint is a zip archive with a checksum for each part: `checkpoint.json`, its arrays as `.npy` files, and any
bytes. NumPy and zip readers of other programs can read it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import math
import re
import sys
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume.storage import Folder, folder_of

# Dicts, lists, tuples, strings, numbers, None, arrays, bytes, and functions of frameworks.
Content: TypeAlias = Any

FORMAT = 1
_CONTENT = "checkpoint.json"
_NAME = re.compile(r"checkpoint-(\d+)\.zip")
# Functions of these packages are written by name.
FRAMEWORKS = ("jax", "keras", "keras_tpu_ext", "numpy", "tensorflow", "tensorflow_addons", "tf_keras")
# NumPy cannot write dtypes of other packages, such as bfloat16; their bytes are written as integers.
_REGISTERED = 2  # NumPy's `isbuiltin` of such a dtype
_INTEGERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


class CannotWriteError(TypeError):
    """A checkpoint cannot hold an object."""


class DamagedError(CheckpointError):
    """A checkpoint is damaged."""


class Found(NamedTuple):
    """A checkpoint in a folder.

    Attributes:
        number: Number of checkpoints written before it.
        name: Its name.
    """

    number: int
    name: str


class CheckpointFolder:
    """The checkpoints of one training.

    Args:
        path: The folder, or a URL that fsspec knows. It is created on the first write.
        keep: Number of checkpoints to keep.

    Raises:
        ImportError: If fsspec, or what it needs for such a URL, is not installed.
        ValueError: If fsspec does not know such a URL.
    """

    def __init__(self, path: str, keep: int = 2) -> None:
        self.path = path
        self.folder = folder_of(path)
        self._keep = keep
        self._damaged: set[str] = set()

    def find(self) -> list[Found]:
        """Return the checkpoints, the newest first."""
        matches = [match for match in map(_NAME.fullmatch, self.folder.names()) if match]
        return sorted((Found(int(match[1]), match[0]) for match in matches), reverse=True)

    def read_newest(self) -> tuple[Found, Content] | tuple[None, None]:
        """Return the newest complete checkpoint, and its content; `damaged` then names the newer ones.

        Raises:
            CheckpointError: If it is of a newer version of this package.
            OSError: If it cannot be read, which does not say that it is damaged.
        """
        for found in self.find():
            try:
                return found, read(self.folder, found.name)
            except DamagedError:
                self._damaged.add(found.name)
        return None, None

    @property
    def damaged(self) -> list[str]:
        """The names of checkpoints that could not be read, in order."""
        return sorted(self._damaged)

    def write(self, content: Content) -> Found:
        """Write a checkpoint and remove those that need not be kept; return the new one.

        Raises:
            OSError: If it cannot be written; then nothing of it stays.
        """
        before = self.find()
        number = before[0].number + 1 if before else 0
        name = f"checkpoint-{number:06d}.zip"
        write(self.folder, name, content)
        whole = [found.name for found in before if found.name not in self._damaged]
        for old in [*self._damaged, *whole[self._keep - 1 :]]:
            self.folder.remove(old)
        self._damaged.clear()
        return Found(number, name)


def write(folder: Folder, name: str, content: Content) -> None:
    """Write a checkpoint.

    Args:
        folder: The folder to write to.
        name: Its name.
        content: Its content.

    Raises:
        CannotWriteError: If a checkpoint cannot hold something in `content`.
        OSError: If it cannot be written; then nothing of it stays.
    """
    members: list[bytes | np.ndarray] = []
    text = json.dumps({"format": FORMAT, "content": encode(content, members)}).encode()

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for number, member in enumerate(members):
                _write_member(archive, number, member)
            archive.writestr(_CONTENT, text)

    folder.write(name, fill)


def read(folder: Folder, name: str) -> Content:
    """Return what a checkpoint holds.

    Raises:
        CheckpointError: If it is of a newer version of this package.
        DamagedError: If it is damaged.
        OSError: If it cannot be read, which does not say that it is damaged.
    """
    path = folder.path_of(name)
    with folder.open(name) as file, _explaining_damage(path), zipfile.ZipFile(_Reading(file)) as archive:
        header = json.loads(archive.read(_CONTENT))
        if header["format"] > FORMAT:
            raise CheckpointError(
                f"{path} was written by a newer version of keras_tpu_ext: its format is {header['format']}, and this "
                f"version reads up to {FORMAT}. Upgrade this package, or give AutoResume another directory."
            )
        return decode(header["content"], _Members(archive))


def read_summary(folder: Folder, name: str) -> Content:
    """Return the content of a checkpoint, with `None` for arrays and bytes, after checking all of it.

    Raises:
        DamagedError: If it is damaged.
        OSError: If it cannot be read, which does not say that it is damaged.
    """
    path = folder.path_of(name)
    with folder.open(name) as file, _explaining_damage(path), zipfile.ZipFile(_Reading(file)) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        return decode(json.loads(archive.read(_CONTENT))["content"], None)


@contextlib.contextmanager
def _explaining_damage(path: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except _CannotReadError as error:
        raise error.reason from None
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "there is not enough memory to read it", path) from error
    except Exception as error:  # a file with damaged bytes may raise anything
        raise DamagedError(f"{path} is damaged, or no checkpoint of keras_tpu_ext: {error}") from error


class _CannotReadError(Exception):
    """A disk does not return the bytes of a file. Not an OSError, because zipfile takes that for damage."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


class _Reading:
    """An open file that distinguishes read failures from errors that its bytes cause in a reader.

    Args:
        file: The file. Its bytes determine the positions to read from, so an impossible position is damage.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes.

        Raises:
            _CannotReadError: If they cannot be read.
        """
        try:
            return self._file.read(size)
        except OSError as error:
            raise _CannotReadError(error) from error


def encode(content: Content, members: list[bytes | np.ndarray]) -> Any:
    """Return the JSON form of `content`; arrays and bytes are added to `members`.

    Raises:
        CannotWriteError: If a checkpoint cannot hold something in it.
    """
    if content is None or type(content) in (bool, int, float, str):
        return content
    if type(content) is list:
        return [encode(one, members) for one in content]
    if type(content) is tuple:
        return {"tuple": [encode(one, members) for one in content]}
    if type(content) is dict:
        return {"dict": [[encode(name, members), encode(value, members)] for name, value in content.items()]}
    if type(content) is set:
        return {"set": [encode(one, members) for one in sorted(content, key=repr)]}
    if isinstance(content, bytes):
        members.append(content)
        return {"bytes": len(members) - 1}
    if is_array(content):
        return _encode_array(content, members)
    if callable(content):
        return {"function": _name_of(content)}
    raise _cannot_write(content)


def is_array(content: Any) -> bool:
    """Return whether `content` is an in-memory array, of NumPy or of a framework, that nothing else writes into.

    Memory maps, datasets of a file, tables and variables do not count, although they convert to arrays.
    """
    kind = type(content)
    if kind is np.ndarray or isinstance(content, np.generic):
        dtype = content.dtype
        is_raw = dtype.kind == "V" and dtype.isbuiltin != _REGISTERED
        return not (dtype.hasobject or dtype.names or is_raw)
    is_tensor = kind.__module__.partition(".")[0] in ("jax", "jaxlib", "tensorflow")
    return is_tensor and hasattr(content, "__array__") and not hasattr(content, "assign")


def decode(encoded: Any, members: _Members | None) -> Content:
    """Return the content that `encode` was given; without `members`, `None` for arrays and bytes."""
    if isinstance(encoded, list):
        return [decode(one, members) for one in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if "array" in encoded:
        return None if members is None else members.array(**encoded)
    ((kind, value),) = encoded.items()
    if kind == "bytes":
        return None if members is None else members.read(value)
    if kind == "function":
        return _function_of(value)
    if kind == "dict":
        return {decode(name, members): decode(one, members) for name, one in value}
    return {"tuple": tuple, "set": set}[kind](decode(one, members) for one in value)


def _encode_array(content: Any, members: list[bytes | np.ndarray]) -> dict[str, Any]:
    try:
        array = np.asarray(content)
    except MemoryError:
        raise
    except Exception:  # a JAX random key, a dataset in a TensorFlow tensor
        raise _cannot_write(content) from None
    if array.dtype.hasobject:  # a TensorFlow string
        raise _cannot_write(content)
    members.append(array)
    scalar = isinstance(content, np.generic)
    return {"array": len(members) - 1, "dtype": array.dtype.name, "scalar": scalar}


def _write_member(archive: zipfile.ZipFile, number: int, member: bytes | np.ndarray) -> None:
    if isinstance(member, bytes):
        archive.writestr(str(number), member)
        return
    if member.dtype.isbuiltin == _REGISTERED:
        member = np.ascontiguousarray(member).view(_INTEGERS[member.dtype.itemsize]).reshape(member.shape)
    with archive.open(f"{number}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, member, allow_pickle=False)


class _Members:
    """The arrays and bytes of an open checkpoint."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def read(self, number: int) -> bytes:
        """Return bytes, checked."""
        return self._archive.read(str(number))

    def array(self, array: int, dtype: str, scalar: bool) -> Any:
        """Return an array, checked."""
        # Reading to the end checks the checksum.
        found = np.load(io.BytesIO(self._archive.read(f"{array}.npy")), allow_pickle=False)
        found = found if found.dtype.name == dtype else found.view(np.dtype(dtype))
        return found[()] if scalar else found


def _name_of(function: Any) -> str:
    """Return `"module:name"` of a function of a framework.

    Raises:
        CannotWriteError: If it is not one.
    """
    module = getattr(function, "__module__", None) or ("numpy" if isinstance(function, np.ufunc) else "")
    name = f"{module}:{getattr(function, '__qualname__', getattr(function, '__name__', ''))}"
    if module.partition(".")[0] not in FRAMEWORKS or _function_of(name) is not function:
        raise _cannot_write(function)
    return name


def _cannot_write(content: Any) -> CannotWriteError:
    return CannotWriteError(f"{type(content).__module__}.{type(content).__qualname__}")


def _function_of(name: str) -> Any:
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in FRAMEWORKS or module.partition(".")[0] not in sys.modules:
        return None
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def size_text(size: float) -> str:
    """Return a number of bytes as text, such as `"12.3 MB"`."""
    power = 0 if size < 1 else min(int(math.log(size, 1000)), 4)
    return f"{size / 1000**power:.{0 if power == 0 else 1}f} {['bytes', 'kB', 'MB', 'GB', 'TB'][power]}"
