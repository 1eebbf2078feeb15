"""The state of callbacks and data: their attributes that have changed since training began."""

from __future__ import annotations

import collections
import contextlib
import inspect
import json
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.random_state import (
    is_generator,
    is_state_of_generator,
    set_state_of_generator,
    state_of_generator,
)
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume.encoding import CannotWriteError, encode, is_array

_FRAMEWORKS = ("jax", "keras", "keras_tpu_ext", "numpy", "tensorflow", "tensorflow_addons", "tf_keras")
# Attributes that Keras sets in a callback, which are not part of its state.
OF_KERAS = ("model", "_model", "params", "validation_data")
# Bytes of arrays in an attribute; a larger one is recognized by a sample of its values.
_LARGE = 2**24
_SAMPLE = 2**16
_MOST_TEXTS = 10**6
_FEW = 2**10  # elements of what no checkpoint can hold
_ROWS, _COLUMNS = "the rows of a CSVLogger", "its columns"

State = Mapping[str, Any]


class NotKept(NamedTuple):
    """Attributes of a callback that do not outlive an interruption.

    Attributes:
        unwritable: Those that no checkpoint can hold.
        unlike: Those that are not restored: they were not there when training began, were of another type, or hold
            a text that the callback did not have then, and that may be a path.
    """

    unwritable: list[str]
    unlike: list[str]


class CallbackStates:
    """The state of the callbacks of one `fit`, or of its `PyDataset`.

    A callback with `get_state()` and `set_state(state)` defines its own state. For any other it is the attributes
    that have changed since training began; this is right for Keras's own, and for most. The rows of a `CSVLogger` are
    kept too.

    A file may come from anybody. So only attributes are restored that a callback has when training begins, with
    values of the same type, and no texts but those that it has then: never a function, and never a path.

    Args:
        callbacks: The callbacks, after their `on_train_begin`.
        but: Names of attributes that are not state.
        variables: Returns the variables that are kept in the checkpoint anyway.
        names: Returns the names of what is logged, which may be keys of dicts.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        but: Sequence[str] = (),
        variables: Callable[[], list[Any]] = list,
        names: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._callbacks = list(callbacks)
        self._names = names
        self._but = but
        self._variables = variables
        kept = self._kept()
        self._before = [{} if _tells(one) else self._fingerprints(one, kept) for one in self._callbacks]
        self._fresh = [{} if _tells(one) else self._forms(one) for one in self._callbacks]
        self.not_kept: dict[str, NotKept] = {}  # of the user's callbacks

    def begin_epoch(self) -> None:
        """Note attributes that the first epoch's begin has made: those are made again after an interruption."""
        kept = self._kept()
        for number, one in enumerate(self._callbacks):
            if not _tells(one):
                self._before[number] = {**self._fingerprints(one, kept), **self._before[number]}
                self._fresh[number] = {**self._forms(one), **self._fresh[number]}

    def read(self) -> list[tuple[str, State]]:
        """Return the name and the state of each callback; `not_kept` then lists what does not outlive it.

        Returns:
            For each callback its class and its state, which no longer changes.
        """
        self.not_kept = {}
        kept = self._kept()
        return [
            (type(one).__qualname__, _copied(self._of(number, one, kept)))
            for number, one in enumerate(self._callbacks)
        ]

    def assign(self, saved: Sequence[tuple[str, State]]) -> list[str]:
        """Give callbacks the states that `read` returned; return the classes of states without a callback.

        A state is given to the callback of the same class, the first one to the first.
        """
        left = dict(enumerate(self._callbacks))
        without = []
        for name, state in saved:
            number = next((one for one, callback in left.items() if type(callback).__qualname__ == name), None)
            if number is None:
                without += [name] if state else []
                continue
            found = left.pop(number)
            if _tells(found):
                if "state" in state:
                    found.set_state(state["state"])
                continue
            own = {one: value for one, value in state.items() if self._fits(number, one, value)}
            _check_best_weights(found, own)
            if "min_delta" in own and getattr(found, "monitor_op", found) is None:
                found._set_monitor_op()  # which changes the sign of `min_delta`, once
            for one, value in _copied(own).items():
                if is_generator(vars(found).get(one)):
                    set_state_of_generator(vars(found)[one], value)
                else:
                    vars(found)[one] = value
            if _is_csv_logger(found):
                _restore_csv(found, state.get(_ROWS), state.get(_COLUMNS))
        return without

    def _of(self, number: int, callback: Any, kept_elsewhere: set[int]) -> State:
        if _tells(callback):
            state = callback.get_state()
            try:
                _encoded(state)
            except _CANNOT_BE_KEPT:
                self.not_kept[type(callback).__qualname__] = NotKept(["what its get_state() returned"], [])
                return {}
            return {"state": state}
        now = self._fingerprints(callback, kept_elsewhere)
        changed = [name for name in now if now[name] != self._before[number].get(name)]
        lost = [name for name in changed if now[name][0] == _NOT_KEPT]
        if hasattr(callback, "_set_monitor_op"):
            lost = [name for name in lost if name != "monitor_op"]  # it is found again
        values = {name: vars(callback)[name] for name in changed if now[name][0] != _NOT_KEPT}
        values = {name: state_of_generator(one) if is_generator(one) else one for name, one in values.items()}
        kept = {name: value for name, value in values.items() if self._fits(number, name, value)}
        unlike = [name for name in values if name not in kept]
        if (lost or unlike) and type(callback).__module__.partition(".")[0] not in _FRAMEWORKS:
            self.not_kept[type(callback).__qualname__] = NotKept(lost, unlike)
        if _is_csv_logger(callback):
            return {**kept, _ROWS: _read_rows(callback), _COLUMNS: callback.keys}
        return kept

    def _kept(self) -> set[int]:
        return {id(variable) for variable in self._variables()}

    def _fingerprints(self, callback: Any, kept: set[int]) -> dict[str, Any]:
        own = list(vars(callback).items())  # other threads may add to it
        here = type(callback).__module__
        return {
            name: _fingerprint(value, here) for name, value in own if name not in self._but and id(value) not in kept
        }

    def _forms(self, callback: Any) -> dict[str, _Form]:
        kept = self._kept()
        own = list(vars(callback).items())
        return {name: _form(value) for name, value in own if name not in self._but and id(value) not in kept}

    def _fits(self, number: int, name: str, value: Any) -> bool:
        """Return whether a callback may be given a value of an attribute, compared with what it had."""
        own = vars(self._callbacks[number]).get(name)
        if is_generator(own):
            return is_state_of_generator(own, value)
        fresh, form = self._fresh[number].get(name), _form(value)
        if fresh is None and name not in self._but and not name.startswith("__"):  # a default that its class has
            fresh = _form(inspect.getattr_static(type(self._callbacks[number]), name, _Form))
        if fresh is None or "" in (fresh.kind, form.kind):
            return False
        is_kind = form.kind == fresh.kind or "None" in (form.kind, fresh.kind)
        if not is_kind or not form.texts <= fresh.texts:
            return False
        return form.keys <= fresh.keys or form.keys <= fresh.keys | self._names()


class _Form(NamedTuple):
    """The form of an attribute's value.

    Attributes:
        kind: The type, where all numbers are one; empty if no checkpoint can hold it.
        texts: All texts and bytes in it, but for the keys of dicts.
        keys: Those of dicts.
    """

    kind: str
    texts: frozenset[str | bytes] = frozenset()
    keys: frozenset[str | bytes] = frozenset()


def _form(value: Any) -> _Form:
    try:
        _encoded(value)
        texts, keys = frozenset(_texts(value)), frozenset(_texts(value, keys=True))
    except _CANNOT_BE_KEPT:
        return _Form("")
    if value is None:
        return _Form("None")
    if is_array(value) and not _is_text(value):
        return _Form("array" if np.ndim(value) else "number")
    return _Form("number" if isinstance(value, (bool, int, float)) else type(value).__name__, texts, keys)


def _texts(value: Any, *, keys: bool = False) -> Iterator[str | bytes]:
    """Yield the texts in a value, in the keys of its dicts or elsewhere."""
    if isinstance(value, (str, bytes)):
        yield from () if keys else (value,)
    elif _is_text(value):
        if not keys:
            unique = np.unique(value)
            if unique.size > _MOST_TEXTS:
                raise CannotWriteError("too many texts to compare")
            yield from unique.tolist()
    elif type(value) in (list, tuple, set, dict):
        for one in list(value.values() if isinstance(value, dict) else value):
            yield from _texts(one, keys=keys)
        for one in list(value) if keys and isinstance(value, dict) else ():
            yield from _texts(one)


def _is_text(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "US"


def _check_best_weights(callback: Any, state: State) -> None:
    """Check that an `EarlyStopping` gets weights of its model.

    Raises:
        CheckpointError: If they are others.
    """
    best = state.get("best_weights")
    if best is None or not isinstance(callback, _runtime.keras.callbacks.EarlyStopping):
        return
    if [np.shape(one) for one in best] != [np.shape(one) for one in callback.model.get_weights()]:
        raise CheckpointError("the best weights of its EarlyStopping are none of this model")


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


def _restore_csv(logger: Any, rows: Any, columns: Any) -> None:
    """Restore the file of a `CSVLogger`, without later rows, after the logger has reopened it, and its columns."""
    if isinstance(rows, bytes):
        logger.csv_file.close()
        with open(logger.filename, "wb") as file:
            file.write(rows)
        given, logger.append = logger.append, True
        logger.on_train_begin()
        logger.append = given
    if isinstance(columns, list) and all(type(one) is str for one in columns):
        logger.keys = list(columns)


def _still(value: Any) -> Any:
    """Return a copy whose lists and dicts, at any depth, no other thread changes."""
    if type(value) is dict:
        return {name: _still(one) for name, one in list(value.items())}
    return [_still(one) for one in list(value)] if type(value) is list else value


def _fingerprint(value: Any, here: str = "") -> tuple[Any, Any]:
    """Return a value that differs for different inputs; it begins with `_NOT_KEPT` if no checkpoint can hold them.

    Args:
        value: The value.
        here: The module of the callback: objects of its classes are looked into.
    """
    if is_generator(value):
        value = state_of_generator(value)
    inside = _inside(value, here)
    try:
        if inside is not None:
            return _NOT_KEPT, (_Identity(value), _fingerprint_of(_still(inside)))
        return _fingerprint_of(_still(value))
    except RecursionError:  # such as of an object that holds itself
        return _NOT_KEPT, _Identity(value)


def _inside(value: Any, here: str) -> Any:
    """Return what changes in an object that no checkpoint can hold; `None` if that is unknown."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.flat[:: value.size // _FEW + 1].tolist()
    is_container = isinstance(value, (list, tuple, set, dict)) and type(value) not in (list, tuple, set, dict)
    if is_container or isinstance(value, collections.deque):
        return [len(value), list(value.items() if isinstance(value, dict) else value)[:_FEW]]
    is_own = here and type(value).__module__ == here and not isinstance(value, (type, _runtime.keras.layers.Layer))
    return dict(vars(value)) if is_own and hasattr(value, "__dict__") else None


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
