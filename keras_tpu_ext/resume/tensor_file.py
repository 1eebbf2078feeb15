"""Files of arrays in the format of safetensors, each array with a digest, and read without trusting the file.

The format is that of https://github.com/huggingface/safetensors#format: the length of a JSON header, the header, and
the bytes of the arrays, without gaps. Its metadata hold a text of ours and a digest of it. Nothing is compressed, so
what is read takes no more memory than the file is long, and a fixed multiple of the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from keras_tpu_ext.checks import schema
from keras_tpu_ext.checks.schema import MismatchError

LARGEST_HEADER = 25_000_000  # bytes; Python objects of JSON take up to 100 times that
_CHUNK = 1 << 24
_MOST_DIMENSIONS = 32
_TEXT, _DIGEST, _NAME = "keras_tpu_ext", "keras_tpu_ext.sha256", "array-{}"
# Names of dtypes in safetensors; others are there as bytes, "U8".
_NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}
_OF_ML_DTYPES = [kind for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and "info" not in name]
# The dtypes that an array may have, by their names in a file; text, bytes and dates by their own.
_NUMBERS: list[Any] = [*_NAMES, "complex64", "complex128", np.longdouble, np.clongdouble, *_OF_ML_DTYPES]
_DTYPES: dict[str, np.dtype] = {np.dtype(kind).name: np.dtype(kind) for kind in _NUMBERS}
_WORDS = re.compile(r"<U[1-9]\d{0,7}|\|S[1-9]\d{0,7}|<[mM]8(\[(\d{1,6})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_LAST_CODE_POINT = 0x10FFFF

_tensor = schema.fields(
    {
        "dtype": schema.one_of(*sorted(set(_NAMES.values()))),
        "shape": schema.list_of(schema.integer()),
        "data_offsets": schema.row(schema.integer(), schema.integer()),
    }
)
_ours = schema.fields(
    {
        "arrays": schema.list_of(schema.row(schema.text, schema.list_of(schema.integer()), schema.text)),
        "content": schema.anything,
    }
)


class CannotWriteError(TypeError):
    """A file cannot hold an object."""


def is_storable(dtype: np.dtype) -> bool:
    """Return whether arrays of a dtype can be written."""
    return dtype.newbyteorder("=") in _DTYPES.values() or _WORDS.fullmatch(_name_of(dtype)) is not None


def write(file: BinaryIO, content: Any, arrays: Sequence[np.ndarray]) -> None:
    """Write a file."""
    table: dict[str, Any] = {}
    rows, end = [], 0
    for number, array in enumerate(arrays):
        name, begin, end = _name_of(array.dtype), end, end + array.nbytes
        known = _NAMES.get(name)
        shape = list(array.shape) if known else [array.nbytes]
        table[_NAME.format(number)] = {"dtype": known or "U8", "shape": shape, "data_offsets": [begin, end]}
        rows.append([name, list(array.shape), hashlib.sha256(_bytes_of(array)).hexdigest()])
    text = json.dumps({"arrays": rows, "content": content}, separators=(",", ":"))
    header = json.dumps({"__metadata__": {_TEXT: text, _DIGEST: _digest(text, table)}, **table}).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > LARGEST_HEADER:
        raise CannotWriteError(
            f"its lists, texts and numbers take {len(header):,} bytes, more than {LARGEST_HEADER:,}"
        )
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for array in arrays:
        file.write(_bytes_of(array))


class TensorFile:
    """A file of arrays, open for reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise MismatchError("the length of its header", "no longer than the file", length)
        header = schema.mapping(schema.anything)(schema.parse_json(file.read(length)), "its header")
        metadata = schema.mapping(schema.text)(header.pop("__metadata__", None), "__metadata__")
        table = schema.mapping(_tensor)(header, "its header")
        text = metadata.get(_TEXT, "")
        if metadata.get(_DIGEST) != _digest(text, header):
            raise MismatchError("the digest of its header", _digest(text, header), metadata.get(_DIGEST))
        ours = _ours(schema.parse_json(text), "")
        self.content = ours["content"]  # what JSON held
        self._rows = ours["arrays"]
        self._begin = 8 + length
        self._offsets = _offsets(table, len(self._rows), size - self._begin)
        for number, (dtype, shape, _) in enumerate(self._rows):
            _check_size(_NAME.format(number), dtype, shape, self._offsets[number])
        self.number = len(self._rows)  # number of arrays

    def read(self, number: int) -> np.ndarray:
        """Return an array, after checking its digest."""
        name, shape, digest = self._rows[number]
        begin, end = self._offsets[number]
        content = bytearray(end - begin)
        self._file.seek(self._begin + begin)
        read = self._file.readinto(content)  # type: ignore[attr-defined]
        _check_digest(number, digest, hashlib.sha256(content), read == end - begin)
        dtype = _dtype_of(name)
        _check_values(number, dtype, content)
        return np.frombuffer(content, dtype).reshape(shape)

    def zeros(self, number: int) -> np.ndarray:
        """Return an array of the same form that holds zeros, which take no memory."""
        name, shape, _ = self._rows[number]
        return np.broadcast_to(np.zeros((), _dtype_of(name)), shape)

    def check(self) -> None:
        """Check the digests of all arrays, a part at a time."""
        self._file.seek(self._begin)
        for number, (_, _, expected) in enumerate(self._rows):
            begin, end = self._offsets[number]
            digest, left = hashlib.sha256(), end - begin
            while left and (part := self._file.read(min(left, _CHUNK))):
                digest.update(part)
                left -= len(part)
            _check_digest(number, expected, digest, not left)


def _offsets(table: dict[str, Any], number: int, size: int) -> list[tuple[int, int]]:
    """Return where each array begins and ends; they fill the file in order."""
    if list(table) != [_NAME.format(one) for one in range(number)]:
        raise MismatchError("its header", f"that of {number} arrays in order", table)
    offsets = [one["data_offsets"] for one in table.values()]
    ends = [0, *(end for _, end in offsets)]
    if [begin for begin, _ in offsets] != ends[:-1] or ends != sorted(ends) or ends[-1] != size:
        raise MismatchError("its arrays", f"one after the other, {size} bytes in all", [*offsets])
    return offsets


def _check_size(where: str, name: str, shape: tuple[int, ...], offsets: tuple[int, int]) -> None:
    dtype = _dtype_of(name)
    size = math.prod(one for one in shape if one) * dtype.itemsize  # NumPy refuses this, too, if there is a zero
    if len(shape) > _MOST_DIMENSIONS or size > schema.LARGEST:
        raise MismatchError(f"the shape of {where}", "one that NumPy can have", list(shape))
    size = 0 if 0 in shape else size
    if size != offsets[1] - offsets[0]:
        raise MismatchError(f"{where}, {name} of the shape {list(shape)},", f"{size} bytes", offsets[1] - offsets[0])


def _check_digest(number: int, expected: str, digest: Any, is_whole: bool) -> None:
    if not is_whole or digest.hexdigest() != expected:
        raise MismatchError(f"the digest of {_NAME.format(number)}", expected, digest.hexdigest())


def _check_values(number: int, dtype: np.dtype, content: bytearray) -> None:
    """Check that all values are those of the dtype, where not every byte is one."""
    if dtype.kind == "b":
        is_one = not content or np.frombuffer(content, "uint8").max() <= 1
    elif dtype.kind == "U":
        is_one = not content or np.frombuffer(content, "uint32").max() <= _LAST_CODE_POINT
    else:
        return
    if not is_one:
        raise MismatchError(_NAME.format(number), f"values of {dtype.name}", "others")


def _name_of(dtype: np.dtype) -> str:
    dtype = dtype.newbyteorder("=")
    return dtype.str if dtype.kind in "USmM" else dtype.name


def _dtype_of(name: str) -> np.dtype:
    if name not in _DTYPES and not _WORDS.fullmatch(name):
        raise MismatchError("a dtype", "that of numbers, text, bytes or dates", name)
    return _DTYPES[name] if name in _DTYPES else np.dtype(name)


def _bytes_of(array: np.ndarray) -> Any:
    """Return the bytes of an array, without copying them if they are in order."""
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return native.reshape(-1).view(np.uint8).data if native.size else b""


def _digest(text: str, table: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([text, table]).encode()).hexdigest()
