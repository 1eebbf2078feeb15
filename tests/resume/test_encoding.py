"""Plain values in a file: what is read is what was written, and of no other kind."""

import collections
import io
import json

import ml_dtypes
import numpy as np
import pytest

from keras_tpu_ext.checks.schema import MismatchError
from keras_tpu_ext.resume import tensor_file
from keras_tpu_ext.resume.encoding import decode, encode
from keras_tpu_ext.resume.tensor_file import CannotWriteError, TensorFile

pytestmark = pytest.mark.gate_on("keras3_jax")


def written(value):
    arrays = []
    file = io.BytesIO()
    tensor_file.write(file, encode(value, arrays), arrays)
    return file.getvalue()


def opened(content):
    return TensorFile(io.BytesIO(content))


def read(content, values=True):
    file = opened(content)
    file.check()
    return decode(file.content, file, values=values)


def the_same(one, other):
    if isinstance(one, np.ndarray | np.generic):
        kinds = [(type(each), each.dtype, each.shape, each.tobytes()) for each in (one, other)]
        return kinds[0] == kinds[1]
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(the_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(the_same, one, other))
    return type(one) is type(other) and (one == other or one != one)


VALUES = {
    "plain": [None, True, 3, 0.1, float("inf"), float("nan"), "ä", "\ud800", (1, (2,)), {3: "int", (1, 2): "tuple"}],
    "arrays": [
        np.arange(6, dtype="int8").reshape(2, 3),
        np.float32(0.1),
        np.zeros((0, 3)),
        np.array("text"),
        np.bool_(1),
    ],
    "dates": [np.array(["2020-01-01"], "M8[D]"), np.timedelta64(3, "s"), np.array([b"ab"])],
    "order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "bytes": {"iterator": b"\x00\xff", "empty": b""},
}


def test_what_is_read_is_what_was_written():
    assert the_same(read(written(VALUES)), VALUES)
    assert read(written([{1, 2}, np.longdouble(2)])) == [{1, 2}, np.longdouble(2)]
    assert the_same(read(written(np.arange(3, dtype=">f4"))), np.arange(3, dtype="f4"))


def test_an_array_that_is_read_can_be_written_to():
    found = read(written(np.arange(3)))
    found += 1
    assert found.tolist() == [1, 2, 3]


OF_ML_DTYPES = [name for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and "info" not in name]


@pytest.mark.parametrize("shape", [(2, 3), (1,), ()])
@pytest.mark.parametrize("dtype", OF_ML_DTYPES)
def test_dtypes_that_numpy_has_not(dtype, shape):
    values = np.array(np.arange(6)[: np.prod(shape, dtype=int)].reshape(shape), dtype=getattr(ml_dtypes, dtype))
    assert the_same(read(written(values)), values)


@pytest.mark.parametrize(
    "value",
    [object(), lambda: None, np.less, print, np.array([object()]), np.void(b"abc"), collections.OrderedDict(a=1)],
)
def test_what_is_not_plain_is_named(value):
    with pytest.raises(CannotWriteError, match=r"\w+\.\w+"):
        written({"value": value})


def test_safetensors_reads_it_too():
    """The format is theirs."""
    safetensors = pytest.importorskip("safetensors.numpy")
    found = safetensors.load(written([np.arange(3.0), np.arange(4, dtype="int16").reshape(2, 2), b"ab"]))
    assert [found[f"array-{number}"].tolist() for number in range(3)] == [[0, 1, 2], [[0, 1], [2, 3]], [97, 98]]


def test_without_values_arrays_take_no_memory():
    content = written([np.ones((1000, 1000)), np.float32(2)])
    array, scalar = read(content, values=False)
    assert (array.shape, array.strides, scalar) == ((1000, 1000), (0, 0), 0)


def test_every_byte_that_changes_is_seen():
    whole = written({"array": np.arange(4), "bytes": b"abc", "number": 3})
    for place in range(len(whole)):
        for bit in (1, 32):
            changed = bytearray(whole)
            changed[place] ^= bit
            with pytest.raises(MismatchError):
                read(bytes(changed))


def test_a_file_that_is_cut_off_or_longer_is_seen():
    whole = written(np.arange(40))
    for length in range(len(whole)):
        with pytest.raises(MismatchError):
            read(whole[:length])
    with pytest.raises(MismatchError, match=r"one after the other, 320 bytes|one after the other, 321 bytes"):
        read(whole + b"x")


def forged(content, arrays=(), rows=None, **table):
    """Return a file with a right digest, whatever stands in it."""
    file = io.BytesIO()
    tensor_file.write(file, content, list(arrays))
    whole = file.getvalue()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    metadata = header.pop("__metadata__")
    text = json.loads(metadata["keras_tpu_ext"])
    text["arrays"] = text["arrays"] if rows is None else rows
    header.update({name.replace("_", "-"): value for name, value in table.items()})
    text = json.dumps(text)
    metadata = {"keras_tpu_ext": text, "keras_tpu_ext.sha256": tensor_file._digest(text, header)}
    start = json.dumps({"__metadata__": metadata, **header}).encode()
    return len(start).to_bytes(8, "little") + start + whole[8 + length :]


ONE = [np.arange(4, dtype="uint8")]
DIGEST = "054edec1d0211f624fed0cbca9d4f9400b0e491c43742af2c5b0abebf0c990d8"  # of 0 to 3
REFUSED = {
    "a function": ({"function": "os:system"}, {}, "one of the kinds of a checkpoint"),
    "two kinds at once": ({"tuple": [], "list": []}, {}, "one of the kinds of a checkpoint"),
    "no kind": ({}, {}, "one of the kinds of a checkpoint"),
    "a dict of no pairs": ({"dict": [[1]]}, {}, "a list of 2"),
    "a key that is a list": ({"dict": [[[], 1]]}, {}, "a value that cannot change"),
    "a set with a list": ({"set": [[1]]}, {}, "a value that cannot change"),
    "an array that is not there": ({"array": 0}, {}, "the one with the number 0"),
    "an array twice": ([{"array": 0}, {"array": 0}], {"arrays": ONE}, "the one with the number 1"),
    "an array that nothing holds": ([], {"arrays": ONE}, "one with 1 arrays"),
    "a number that is a text": ({"array": "0"}, {"arrays": ONE}, "the one with the number 0"),
    "a number that is true": ({"array": False}, {"arrays": ONE}, "the one with the number 0"),
    "a scalar of four": ({"scalar": 0}, {"arrays": ONE}, "the form of scalar"),
    "bytes of floats": ({"bytes": 0}, {"arrays": [np.zeros(3)]}, "the form of bytes"),
    "an object": ({"array": 0}, {"arrays": ONE, "rows": [["object", [4], DIGEST]]}, "numbers, text, bytes or dates"),
    "a dtype of parts": ({"array": 0}, {"arrays": ONE, "rows": [["u1,u1,u1,u1", [1], DIGEST]]}, "numbers, text"),
    "a text of size 0": ({"array": 0}, {"arrays": ONE, "rows": [["<U0", [2**40], DIGEST]]}, "numbers, text"),
    "another size": ({"array": 0}, {"arrays": ONE, "rows": [["uint8", [5], DIGEST]]}, "5 bytes; got 4"),
    "a size below 0": ({"array": 0}, {"arrays": ONE, "rows": [["uint8", [-4], DIGEST]]}, "an integer of at least 0"),
    "a size beyond all": ({"array": 0}, {"arrays": ONE, "rows": [["uint8", [2**40, 2**40, 0], DIGEST]]}, "NumPy can"),
    "40 dimensions": ({"array": 0}, {"arrays": ONE, "rows": [["uint8", [1] * 39 + [4], DIGEST]]}, "NumPy can have"),
    "another digest": ({"array": 0}, {"arrays": ONE, "rows": [["uint8", [4], "0" * 64]]}, "the digest of array-0"),
    "a boolean of 2": ({"array": 0}, {"arrays": ONE, "rows": [["bool", [4], DIGEST]]}, "values of bool"),
    "no characters": (
        {"array": 0},
        {
            "arrays": [np.array([2**31], "uint32")],
            "rows": [["<U1", [1], "6d58692645c9d1cfaf13541cbd258f86193ef63c2f1d38f6bbca9617372d7bd6"]],
        },
        "values of",
    ),
    "a gap": (
        {"array": 0},
        {"arrays": ONE, "array_0": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}},
        "after",
    ),
    "beyond the end": (
        {"array": 0},
        {"arrays": ONE, "array_0": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}},
        "4 bytes in all",
    ),
    "an unknown key": ({"array": 0}, {"arrays": ONE, "array_0": {"code": 1}}, "no other keys than dtype"),
    "an array too many": ([], {"array_0": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, "that of 0 arrays"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_none_of_ours_writes_is_refused(kind):
    content, forging, message = REFUSED[kind]
    with pytest.raises(MismatchError, match=message):
        read(forged(content, **forging))


def test_a_header_without_end_is_refused():
    with pytest.raises(MismatchError, match="no longer than the file"):
        read((2**60).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize("text", ["[" * 10**5 + "]" * 10**5, '{"tuple":' * 10**4 + "[]" + "}" * 10**4])
def test_what_is_nested_without_end_is_refused(text):
    header = json.dumps(
        {"__metadata__": {"keras_tpu_ext": '{"arrays":[],"content":' + text + "}", "keras_tpu_ext.sha256": ""}}
    )
    metadata = json.loads(header)["__metadata__"]
    metadata["keras_tpu_ext.sha256"] = tensor_file._digest(metadata["keras_tpu_ext"], {})
    start = json.dumps({"__metadata__": metadata}).encode()
    with pytest.raises(MismatchError, match=r"nested|JSON"):
        read(len(start).to_bytes(8, "little") + start)


def test_a_key_that_stands_there_twice_is_refused():
    start = b'{"__metadata__": {}, "__metadata__": {}}'
    with pytest.raises(MismatchError, match="a key stands there twice"):
        read(len(start).to_bytes(8, "little") + start)
