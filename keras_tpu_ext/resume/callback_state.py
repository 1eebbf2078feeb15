"""The state of callbacks and data: their attributes that have changed since training began; and what is not kept."""

from __future__ import annotations

import collections
import contextlib
import inspect
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.random_state import (
    is_generator,
    is_state_of_generator,
    set_state_of_generator,
    state_of_generator,
)
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume.encoding import encode, is_array
from keras_tpu_ext.resume.opening import warn
from keras_tpu_ext.resume.tensor_file import CannotWriteError

# Bytes of an array; a larger one is recognized by a sample of its values.
_LARGE = 2**24
_SAMPLE = 2**16
_FEW = 2**10  # elements of what no checkpoint can hold
# RuntimeError is JAX's, for an array whose memory was donated to the next step.
CANNOT_BE_KEPT = CannotWriteError, RecursionError, RuntimeError
NOT_KEPT = "cannot be kept"


def fingerprint(value: Any, here: str = "") -> tuple[Any, Any]:
    """Return a value that differs for different inputs; it begins with `NOT_KEPT` if no checkpoint can hold them.

    Args:
        value: The value.
        here: The module of the callback: objects of its classes are looked into.
    """
    if is_generator(value):
        value = state_of_generator(value)
    inside = _inside(value, here)
    try:
        if inside is not None:
            return NOT_KEPT, (id(value), _fingerprint_of(inside))
        return _fingerprint_of(value)
    except RecursionError:  # such as of an object that holds itself
        return NOT_KEPT, id(value)


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
    members: list[Any] = []
    try:
        encoded = encode(value, members)
    except CANNOT_BE_KEPT:
        if type(value) in (list, tuple):
            return NOT_KEPT, [_fingerprint_of(one) for one in value]
        if type(value) is dict:
            return NOT_KEPT, [(name, _fingerprint_of(one)) for name, one in list(value.items())]
        return NOT_KEPT, (id(value), _of_variable(value))
    return json.dumps(encoded), [zlib.crc32(_bytes(member)) for member in members]


def _of_variable(value: Any) -> int | None:
    """Return a number of what a variable holds; `None` of what is none, or of one that does not tell."""
    if not hasattr(value, "assign"):
        return None
    with contextlib.suppress(Exception):  # one for replicas gives no array
        return zlib.crc32(_bytes(np.asarray(value)))
    return None


def _bytes(member: Any) -> Any:
    return member if isinstance(member, bytes) else np.ascontiguousarray(member).reshape(-1).view(np.uint8)


_FRAMEWORKS = ("jax", "keras", "keras_tpu_ext", "numpy", "tensorflow", "tensorflow_addons", "tf_keras")
# Attributes that Keras sets in a callback, which are not part of its state.
OF_KERAS = ("model", "_model", "params", "validation_data")
_MOST_TEXTS = 10**6
_ROWS, _COLUMNS = "the rows of a CSVLogger", "its columns"

State: TypeAlias = Mapping[str, Any]
Texts: TypeAlias = "frozenset[str | bytes]"


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
        self._before: list[dict[str, Any]] = [{} for _ in self._callbacks]
        self._fresh: list[dict[str, _Form]] = [{} for _ in self._callbacks]
        self.not_kept: dict[str, list[str]] = {}  # attributes of the user's callbacks, by class
        self.note_attributes()

    def note_attributes(self) -> None:
        """Note new attributes: what is there when training begins is there again after an interruption."""
        kept = self._kept()
        for callback, before, fresh in zip(self._callbacks, self._before, self._fresh, strict=True):
            if not _tells(callback):
                new = {name: value for name, value in self._own(callback, kept).items() if name not in before}
                before.update({name: fingerprint(value, type(callback).__module__) for name, value in new.items()})
                fresh.update({name: _form(value) for name, value in new.items()})

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
                encode(state, [])
            except CANNOT_BE_KEPT:
                self.not_kept[type(callback).__qualname__] = ["what its get_state() returned"]
                return {}
            return {"state": state}
        own, here = self._own(callback, kept_elsewhere), type(callback).__module__
        now = {name: fingerprint(value, here) for name, value in own.items()}
        changed = [name for name in now if now[name] != self._before[number].get(name)]
        lost = [name for name in changed if now[name][0] == NOT_KEPT]
        if hasattr(callback, "_set_monitor_op"):
            lost = [name for name in lost if name != "monitor_op"]  # it is found again
        values = {name: own[name] for name in changed if now[name][0] != NOT_KEPT}
        values = {name: state_of_generator(one) if is_generator(one) else one for name, one in values.items()}
        kept = {name: value for name, value in values.items() if self._fits(number, name, value)}
        lost += [name for name in values if name not in kept]
        if lost and type(callback).__module__.partition(".")[0] not in _FRAMEWORKS:
            self.not_kept[type(callback).__qualname__] = lost
        if _is_csv_logger(callback):
            return {**kept, _ROWS: _read_rows(callback), _COLUMNS: callback.keys}
        return kept

    def _kept(self) -> set[int]:
        return {id(variable) for variable in self._variables()}

    def _own(self, callback: Any, kept: set[int]) -> dict[str, Any]:
        """Return the attributes of a callback that may be state."""
        own = list(vars(callback).items())  # other threads may add to it
        return {name: value for name, value in own if name not in self._but and id(value) not in kept}

    def _fits(self, number: int, name: str, value: Any) -> bool:
        """Return whether a callback may be given a value of an attribute, compared with what it had."""
        own = vars(self._callbacks[number]).get(name)
        if is_generator(own):
            return is_state_of_generator(own, value)
        fresh, kind = self._fresh[number].get(name), _kind(value)
        if fresh is None and name not in self._but and not name.startswith("__"):  # a default that its class has
            fresh = _form(inspect.getattr_static(type(self._callbacks[number]), name, _Form))
        if fresh is None or not fresh.kind or (kind != fresh.kind and "None" not in (kind, fresh.kind)):
            return False
        try:
            texts, keys = _texts(value)
        except CANNOT_BE_KEPT:
            return False
        return texts <= fresh.texts and (keys <= fresh.keys or keys <= fresh.keys | self._names())


class _Form(NamedTuple):
    """The form of an attribute's value."""

    kind: str  # the type, where all numbers are one; empty if no checkpoint can hold it
    texts: Texts = frozenset()  # all texts and bytes in it, but for the keys of dicts
    keys: Texts = frozenset()  # those of dicts


def _form(value: Any) -> _Form:
    try:
        encode(value, [])
        return _Form(_kind(value), *_texts(value))
    except CANNOT_BE_KEPT:
        return _Form("")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if is_array(value) and not _is_text(value):
        return "array" if np.ndim(value) else "number"
    return "number" if isinstance(value, (bool, int, float)) else type(value).__name__


def _texts(value: Any) -> tuple[Texts, Texts]:
    """Return the texts in a value, and those in keys of its dicts."""
    texts: set[str | bytes] = set()
    keys: set[str | bytes] = set()

    def add(value: Any, texts: set[str | bytes]) -> None:
        if isinstance(value, (str, bytes)):
            texts.add(value)
        elif _is_text(value):
            unique = np.unique(value)
            if unique.size > _MOST_TEXTS:
                raise CannotWriteError("too many texts to compare")
            texts.update(unique.tolist())
        elif type(value) is dict:
            for name, one in list(value.items()):
                add(name, keys)
                add(one, texts)
        elif type(value) in (list, tuple, set):
            for one in list(value):
                add(one, texts)

    add(value, texts)
    return frozenset(texts), frozenset(keys)


def _is_text(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "US"


def _check_best_weights(callback: Any, state: State) -> None:
    """Check that an `EarlyStopping` gets weights of its model."""
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


_NOT_KEPT = (
    "{name} keeps {what}, which no checkpoint can hold: after an interruption it begins anew. Kept are attributes "
    "that are there when training begins and keep their type: numbers, arrays, lists and dicts of these, and no new "
    "text, which might be a path. Give it get_state(), which returns numbers, strings, arrays, lists or dicts, and "
    "set_state(state)"
)


class LostStateWarnings:
    """Warns, once of each, of what is lost."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, data: str, model: str, callbacks: Mapping[str, Sequence[str]]) -> None:
        """Warn of what cannot be saved, or is not restored.

        Args:
            data: Why the position in the data cannot be saved; empty if it can.
            model: A part of the model that cannot be saved; empty if all can.
            callbacks: By the class of a callback, its attributes that are lost.
        """
        if data:
            self._once(
                "data",
                "after an interruption this training may go on in another order or with other random numbers, for "
                f"the state of its data cannot be saved: {data}",
            )
        if model:
            self._once("model", f"after an interruption this training goes on with others than {model}")
        for name, lost in callbacks.items():
            self._once(name, _NOT_KEPT.format(name=name, what=" and ".join(lost)))

    def warn_of_divergence(self, kept: str | None) -> None:
        """Warn of a loss that is no finite number; `kept` is the last checkpoint before it."""
        cure = f"{kept} is the last checkpoint with a finite one, and is kept: to go on from it, remove the later"
        self._once(
            "divergence",
            f"the loss is no finite number any more; {cure if kept else 'no checkpoint has a finite one'}",
        )

    def _once(self, what: str, text: str) -> None:
        if what not in self._given:
            self._given.add(what)
            warn(text)
