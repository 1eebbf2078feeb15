"""One writer: a folder of checkpoints belongs to one process at a time."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from types import ModuleType
from typing import NamedTuple

from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.schema import MismatchError
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume.checkpoint import time_text
from keras_tpu_ext.resume.storage import Folder

fcntl: ModuleType | None = None
with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

_LOCK, _RECORD = "keras_tpu_ext.lock", "keras_tpu_ext.owner.json"
_LARGEST = 10_000  # bytes of an owner's record


class Owner(NamedTuple):
    """The process that writes into a folder."""

    host: str  # its machine
    pid: int  # its number there
    since: float  # when it began, in seconds since 1970
    token: str  # a random text


_owner = schema.record(Owner)


class HeldError(CheckpointError):
    """Another process writes into the folder."""

    def __init__(self, path: str, owner: Owner | None) -> None:
        who = "another process"
        if owner is not None:
            who = f"process {owner.pid} on {schema.plain(owner.host)}, since {time_text(owner.since)},"
        super().__init__(
            f"AutoResume cannot write into {path}: {who} does so. Two trainings cannot share a folder. Wait until "
            "it has ended, or end it; or give AutoResume another directory."
        )


class FolderLock:
    """The right of this process to write into a folder; it ends with the process.

    On a disk it is a lock of the system. Where there are none, as in an object store, it is a file that names the
    owner: who comes later takes the folder over, and the one before writes no more.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._owner = Owner(socket.gethostname(), os.getpid(), time.time(), secrets.token_hex(8))
        self._file: int | None = None
        self._is_recorded = False  # whether the file names this process, in place of a lock

    def acquire(self) -> None:
        """Take the right."""
        self._file = _lock(self._folder, self._owner)
        if self._file is None:
            self._folder.write(_RECORD, lambda file: file.write(_text_of(self._owner)))
            self._is_recorded = True

    def check(self) -> None:
        """Check that no other process has taken the folder over."""
        if self._file is not None and not _is_at(self._folder.path_of(_LOCK), self._file):
            self.release()  # somebody has removed it
            self.acquire()
        if self._is_recorded:
            found = _recorded(self._folder)
            if found is not None and found.token != self._owner.token:
                raise HeldError(self._folder.path, found)

    def release(self) -> None:
        """Give the right back."""
        if self._file is not None:
            _open_locks.discard(self._file)
            path = self._folder.path_of(_LOCK)
            with contextlib.suppress(OSError):
                if _is_at(path, self._file):
                    os.remove(path)
            os.close(self._file)
            self._file = None
        if self._is_recorded:
            with contextlib.suppress(OSError, HeldError):
                self.check()
                self._folder.remove(_RECORD)
            self._is_recorded = False


_open_locks: set[int] = set()


def _close_in_child() -> None:
    """Close the locks in a forked process: as long as one of them is open, the folder is locked."""
    for file in _open_locks:
        with contextlib.suppress(OSError):
            os.close(file)
    _open_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(folder: Folder, owner: Owner) -> int | None:
    """Return the open file that is the lock of a folder; `None` where there are no locks."""
    if fcntl is None or not folder.is_local:
        return None
    path = folder.path_of(_LOCK)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = _parsed(os.pread(file, _LARGEST, 0))
            os.close(file)
            raise HeldError(folder.path, found) from None
        except OSError:
            os.close(file)
            return None
        if _is_at(path, file):
            break
        os.close(file)  # of one that has just been given back and removed
    if os.fstat(file).st_nlink != 1:  # a link to another file, which must not be written
        os.close(file)
        raise OSError(f"{path} is a link")
    os.ftruncate(file, 0)
    os.pwrite(file, _text_of(owner), 0)
    _open_locks.add(file)
    return file


def _is_at(path: str, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _recorded(folder: Folder) -> Owner | None:
    """Return who takes a folder without locks for his; `None` if nobody does."""
    if _RECORD not in folder.names():
        return None
    try:
        with folder.open(_RECORD) as file:
            found = _parsed(file.read(_LARGEST))
    except FileNotFoundError:
        return None
    return found or Owner("a process that does not tell", 0, 0, "")


def _text_of(owner: Owner) -> bytes:
    return json.dumps(owner._asdict()).encode()


def _parsed(text: bytes) -> Owner | None:
    try:
        owner: Owner = _owner(schema.parse_json(text), "")
        return owner
    except MismatchError:
        return None
