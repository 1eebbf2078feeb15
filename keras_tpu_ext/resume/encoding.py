"""Plain Python values as JSON and arrays, and back.

Plain are `None`, booleans, numbers, texts, bytes, arrays, and lists, tuples, dicts and sets of these. What is read
back is of these types whatever stands in a file: no name in it is looked up anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.schema import MismatchError
from keras_tpu_ext.resume import tensor_file
from keras_tpu_ext.resume.tensor_file import CannotWriteError, TensorFile

Content: TypeAlias = Any  # plain values
_MOST_KEYS = 1000
_LARGE = 2**256  # Python cannot compare larger integers with a float


def encode(content: Content, arrays: list[np.ndarray]) -> Any:
    """Return the JSON form of `content`, which other threads may change; arrays and bytes are added to `arrays`."""
    if content is None or type(content) in (bool, float, str) or (type(content) is int and abs(content) < _LARGE):
        return content
    if type(content) is list:
        return [encode(one, arrays) for one in content]
    if type(content) is tuple:
        return {"tuple": [encode(one, arrays) for one in content]}
    if type(content) is dict:
        return {"dict": [[encode(name, arrays), encode(value, arrays)] for name, value in list(content.items())]}
    if type(content) is set:
        return {"set": [encode(one, arrays) for one in sorted(content, key=repr)]}
    if isinstance(content, bytes):
        arrays.append(np.frombuffer(content, np.uint8))
        return {"bytes": len(arrays) - 1}
    if is_array(content):
        arrays.append(_in_numpy(content))
        return {"scalar" if isinstance(content, np.generic) else "array": len(arrays) - 1}
    raise _cannot_write(content)


def decode(encoded: Any, file: TensorFile, *, values: bool) -> Content:
    """Return the content that `encode` was given."""
    decoder = _Decoder(file.read if values else file.zeros, file.number)
    try:
        content = decoder.decode(encoded)
    except RecursionError:
        raise MismatchError("its content", "nested less deeply", encoded) from None
    if decoder.read != file.number:
        raise MismatchError("its content", f"one with {file.number} arrays", decoder.read)
    return content


class _Decoder:
    """Decodes JSON in which each array stands once, in the order of the file: so memory has a bound."""

    def __init__(self, array: Callable[[int], np.ndarray], number: int) -> None:
        self._array_of = array
        self._number = number
        self.read = 0  # number of arrays that were read

    def decode(self, encoded: Any) -> Content:
        if isinstance(encoded, list):
            return [self.decode(one) for one in encoded]
        if not isinstance(encoded, dict):
            if type(encoded) is int and abs(encoded) >= _LARGE:
                raise MismatchError("an integer", "one of at most 256 bits", type(encoded))
            return encoded
        if len(encoded) != 1:
            raise MismatchError("a value", "one of the kinds of a checkpoint", encoded)
        ((kind, value),) = encoded.items()
        if kind in ("array", "scalar", "bytes"):
            return self._array(kind, value)
        if kind == "dict":
            pairs = schema.list_of(schema.row(schema.anything, schema.anything))(value, "a dict")
            _check_hashes([name for name, _ in pairs])
            return {self._hashable(name): self.decode(one) for name, one in pairs}
        if kind == "set":
            values = schema.list_of(schema.anything)(value, "a set")
            _check_hashes(values)
            return {self._hashable(one) for one in values}
        if kind == "tuple":
            return tuple([self.decode(one) for one in schema.list_of(schema.anything)(value, "a tuple")])
        raise MismatchError("a value", "one of the kinds of a checkpoint", encoded)

    def _array(self, kind: str, number: Any) -> Any:
        if type(number) is not int or number != self.read or number >= self._number:
            raise MismatchError("an array", f"the one with the number {self.read}", number)
        self.read += 1
        array = self._array_of(number)
        if kind == "array":
            return array
        if kind == "scalar" and array.shape == ():
            return array[()]
        if kind == "bytes" and array.dtype == np.uint8 and array.ndim == 1:
            return array.tobytes()
        raise MismatchError(f"array {number}", f"the form of {kind}", f"{array.dtype} {array.shape}")

    def _hashable(self, encoded: Any) -> Any:
        value = self.decode(encoded)
        try:
            hash(value)
        except TypeError:
            raise MismatchError("a key", "a value that cannot change", encoded) from None
        return value


def _check_hashes(keys: list[Any]) -> None:
    """Check that few keys can have one hash in common: with many, Python takes the square of their number."""
    if any(type(one) is int and abs(one) > schema.LARGEST for one in keys):
        raise MismatchError("a key", "an integer of 64 bits", "a larger one")
    if sum(type(one) not in (int, str) for one in keys) > _MOST_KEYS:
        raise MismatchError("the keys", f"at most {_MOST_KEYS} that are no texts or integers", keys)


def is_array(content: Any) -> bool:
    """Return whether `content` is an in-memory array, of NumPy or of a framework, that nothing else writes into.

    Memory maps, datasets of a file, tables and variables do not count, although they convert to arrays.
    """
    kind = type(content)
    if kind is np.ndarray or isinstance(content, np.generic):
        return tensor_file.is_storable(content.dtype)
    is_tensor = kind.__module__.partition(".")[0] in ("jax", "jaxlib", "tensorflow")
    return is_tensor and hasattr(content, "__array__") and not hasattr(content, "assign")


def _in_numpy(content: Any) -> np.ndarray:
    try:
        array = np.asarray(content)
    except MemoryError:
        raise
    except Exception:  # a JAX random key, a dataset in a TensorFlow tensor
        raise _cannot_write(content) from None
    if not tensor_file.is_storable(array.dtype):  # a TensorFlow string
        raise _cannot_write(content)
    return array


def _cannot_write(content: Any) -> CannotWriteError:
    return CannotWriteError(f"{type(content).__module__}.{type(content).__qualname__}")
