"""The state of callbacks and data: their attributes that have changed since training began."""

from __future__ import annotations

import contextlib
import json
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.resume.checkpoint import FRAMEWORKS, CannotWriteError, encode, is_array

# Attributes that Keras sets in a callback, which are not part of its state.
OF_KERAS = ("model", "_model", "params", "validation_data")
# Bytes of arrays in an attribute; a larger one is recognized by a sample of its values.
_LARGE = 2**24
_SAMPLE = 2**16
_ROWS = "the rows of a CSVLogger"

State = Mapping[str, Any]


class CallbackStates:
    """The state of the callbacks of one `fit`, or of its `PyDataset`.

    A callback with `get_state()` and `set_state(state)` defines its own state. For any other it is the attributes
    that have changed since training began; this is right for Keras's own, and for most. The file of a `CSVLogger` is
    kept too.

    Args:
        callbacks: The callbacks, after their `on_train_begin`.
        but: Names of attributes that are not state.
        variables: Returns the variables that are kept in the checkpoint anyway.
    """

    def __init__(
        self, callbacks: Sequence[Any], *, but: Sequence[str] = (), variables: Callable[[], list[Any]] = list
    ) -> None:
        self._callbacks = list(callbacks)
        self._but = but
        self._variables = variables
        kept = self._kept()
        self._before = [{} if _tells(one) else self._fingerprints(one, kept) for one in self._callbacks]
        self.not_kept: dict[str, list[str]] = {}  # attributes of the user's callbacks

    def read(self) -> list[tuple[str, State]]:
        """Return the name and the state of each callback; `not_kept` then lists what no checkpoint can hold.

        Returns:
            For each callback its class and its state, which no longer changes.
        """
        self.not_kept = {}
        kept = self._kept()
        return [
            (type(one).__qualname__, _copied(self._of(one, before, kept)))
            for one, before in zip(self._callbacks, self._before, strict=True)
        ]

    def assign(self, saved: Sequence[tuple[str, State]]) -> list[str]:
        """Give callbacks the states that `read` returned; return the classes of states without a callback.

        A state is given to the callback of the same class, the first one to the first.
        """
        left = list(self._callbacks)
        without = []
        for name, state in saved:
            found = next((one for one in left if type(one).__qualname__ == name), None)
            if found is None:
                without += [name] if state else []
                continue
            left.remove(found)
            if _tells(found):
                if "state" in state:
                    found.set_state(state["state"])
            else:
                own = {attribute: value for attribute, value in state.items() if attribute != _ROWS}
                vars(found).update(_copied(own))
                if state.get(_ROWS) is not None:
                    _write_rows(found, state[_ROWS])
        return without

    def _of(self, callback: Any, before: Mapping[str, Any], kept_elsewhere: set[int]) -> State:
        if _tells(callback):
            state = callback.get_state()
            try:
                _encoded(state)
            except _CANNOT_BE_KEPT:
                self.not_kept[type(callback).__qualname__] = ["what its get_state() returned"]
                return {}
            return {"state": state}
        now = self._fingerprints(callback, kept_elsewhere)
        changed = [name for name in now if now[name] != before.get(name)]
        lost = [name for name in changed if now[name][0] == _NOT_KEPT]
        if lost and type(callback).__module__.partition(".")[0] not in FRAMEWORKS:
            self.not_kept[type(callback).__qualname__] = lost
        kept = {name: vars(callback)[name] for name in changed if name not in lost}
        return {**kept, _ROWS: _read_rows(callback)} if _is_csv_logger(callback) else kept

    def _kept(self) -> set[int]:
        return {id(variable) for variable in self._variables()}

    def _fingerprints(self, callback: Any, kept: set[int]) -> dict[str, Any]:
        own = list(vars(callback).items())  # other threads may add to it
        return {name: _fingerprint(value) for name, value in own if name not in self._but and id(value) not in kept}


def _copied(value: Any) -> Any:
    """Return a copy of lists, dicts and arrays at any depth, in NumPy; it is written while training continues."""
    if is_array(value):
        return value if isinstance(value, np.generic) else np.array(value)
    if type(value) is dict:
        return {name: _copied(one) for name, one in list(value.items())}
    if type(value) in (list, tuple, set):
        return type(value)(_copied(one) for one in list(value))
    return value


_NOT_KEPT = "cannot be kept"


def _tells(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _is_csv_logger(callback: Any) -> bool:
    return isinstance(callback, _runtime.keras.callbacks.CSVLogger)


def _read_rows(logger: Any) -> bytes | None:
    """Return the contents of a `CSVLogger`'s file, to which all rows are written; `None` if it is not local."""
    with contextlib.suppress(OSError), open(logger.filename, "rb") as file:
        return file.read()
    return None


def _write_rows(logger: Any, rows: bytes) -> None:
    """Restore the file of a `CSVLogger`, without later rows, after the logger has reopened it."""
    logger.csv_file.close()
    with open(logger.filename, "wb") as file:
        file.write(rows)
    given, logger.append = logger.append, True
    logger.on_train_begin()
    logger.append = given


def _still(value: Any) -> Any:
    """Return a copy whose lists and dicts, at any depth, no other thread changes."""
    if type(value) is dict:
        return {name: _still(one) for name, one in list(value.items())}
    return [_still(one) for one in list(value)] if type(value) is list else value


def _fingerprint(value: Any) -> tuple[Any, Any]:
    """Return a value that differs for different inputs; it begins with `_NOT_KEPT` if no checkpoint can hold them."""
    try:
        return _fingerprint_of(_still(value))
    except RecursionError:  # such as of an object that holds itself
        return _NOT_KEPT, _Identity(value)


def _fingerprint_of(value: Any) -> tuple[Any, Any]:
    if type(value) is np.ndarray and is_array(value) and value.nbytes > _LARGE:
        return id(value), zlib.crc32(_bytes(value.flat[:: value.size // _SAMPLE + 1]))
    try:
        encoded, members = _encoded(value)
    except _CANNOT_BE_KEPT:
        if type(value) in (list, tuple):
            return _NOT_KEPT, [_fingerprint_of(one) for one in value]
        if type(value) is dict:
            return _NOT_KEPT, [(name, _fingerprint_of(one)) for name, one in value.items()]
        return _NOT_KEPT, (_Identity(value), _of_variable(value))
    return json.dumps(encoded), [zlib.crc32(_bytes(member)) for member in members]


def _of_variable(value: Any) -> int | None:
    """Return a number of what a variable holds; `None` of what is none, or of one that does not tell."""
    if not hasattr(value, "assign"):
        return None
    with contextlib.suppress(Exception):  # one for replicas gives no array
        return zlib.crc32(_bytes(np.asarray(value)))
    return None


class _Identity:
    """Equal to that of the same object, which it does not keep alive if possible."""

    def __init__(self, value: Any) -> None:
        try:
            self._get: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __eq__(self, other: object) -> bool:
        value = self._get()
        return isinstance(other, _Identity) and value is not None and value is other._get()

    __hash__ = None  # type: ignore[assignment]


def _encoded(value: Any) -> tuple[Any, list[Any]]:
    members: list[Any] = []
    return encode(value, members), members


# RuntimeError is JAX's, for an array whose memory was donated to the next step.
_CANNOT_BE_KEPT = CannotWriteError, RecursionError, RuntimeError


def _bytes(member: Any) -> Any:
    return member if isinstance(member, bytes) else np.ascontiguousarray(member).reshape(-1).view(np.uint8)
